//! Gathers what the worker counts, for the server's `/metrics`.

use anyhow::Context as _;
use bellglass_server::OtherMetrics;
use metrics::Unit;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::sync::Arc;
use std::time::Duration;

/// Seconds: a sandbox starts within the first few of these.
const BUCKETS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0];

/// Starts counting in this process. May be called once.
pub(crate) fn count() -> anyhow::Result<OtherMetrics> {
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS)?;
    let handle = builder.install_recorder().context("cannot start counting")?;
    metrics::describe_counter!(
        "bellglass_jobs_finished_total",
        "Jobs that came to their end here."
    );
    metrics::describe_counter!("bellglass_steps_total", "Steps that were run here, by tool.");
    metrics::describe_gauge!("bellglass_sandboxes_running", "Sandboxes that run here now.");
    metrics::describe_histogram!(
        "bellglass_sandbox_start_seconds",
        Unit::Seconds,
        "Time from the order of a sandbox to its guest's greeting."
    );
    metrics::gauge!("bellglass_sandboxes_running").set(0.0);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        // Samples wait in memory until they are summed up, also when nobody asks for the text.
        let mut beat = tokio::time::interval(Duration::from_secs(10));
        loop {
            beat.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(Arc::new(move || handle.render()))
}
