//! `bellglass work`: a worker alone, on a store that it shares with servers and other workers.

use anyhow::{Context as _, ensure};
use bellglass_server::Listeners;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Format;
use super::process::{cancel_on_signal, reload_on_signal, run_together, start};
use super::serve::{app, install, meet_the_others};
use crate::cli;
use crate::cluster_config;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::SandboxSettings;
use crate::storage_config::Sharing;

pub(super) async fn work(
    config: &Config,
    flags: &cli::Work,
    format: Format,
) -> anyhow::Result<Exit> {
    let slots = config.slots(flags.slots)?;
    let data = config.data(flags.storage.data.as_ref())?;
    let storage = config.storage()?.open(&data).await?;
    ensure!(
        storage.sharing == Sharing::Shared,
        "`work` needs a database that servers share: set `url` under [store] to a PostgreSQL; \
         `bellglass serve` alone does both on one machine"
    );
    let cluster = config.shared_by()?.context(cluster_config::REMEDY)?;
    let sandboxes = SandboxSettings { warm: Some(config.warm(flags.warm)), ..config.sandboxes() };
    let installation = install(config, &flags.storage, storage, &data, &sandboxes).await?;
    // Before anything is counted.
    let other_metrics = crate::telemetry::count()?;
    let internal = meet_the_others(&installation, Some(&cluster)).await?;
    let shutdown = CancellationToken::new();
    let pace = config.pace(slots, config.grace(Sharing::Shared));
    let (worker, worked) = start(installation.worker(pace), &shutdown);
    let settings = config.relayed_settings();
    let app = app(config, &installation, settings, Some(&cluster), other_metrics)?;
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    tokio::spawn(reload_on_signal(config.named.clone(), installation.network.clone()));
    let name = installation.worker_name();
    match format {
        // One line on standard output, so that a script can wait for it.
        Format::Json => println!("{}", json!({ "worker": name, "data": data })),
        Format::Text => tracing::info!(worker = %name, slots, "working"),
    }

    let listeners = Listeners { public: None, internal };
    let serving = bellglass_server::serve_on(listeners, app, worked.cancelled_owned());
    let ended = run_together(serving, worker, &shutdown).await;
    // Whatever can be told to the database: no sandbox outlives this process.
    let told = installation.store.announce_worker(name, None).await;
    installation.end_warm_sandboxes().await;
    installation.store.close().await;
    ended?;
    told?;
    tracing::info!("stopped; jobs that were not at their end go on with other workers");
    Ok(Exit::Success)
}
