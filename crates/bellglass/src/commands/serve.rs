//! `bellglass serve`: API and worker in one process.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use bellglass_server::App;
use bellglass_store::StoreError;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Format;
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::host_network::HostNetwork;
use crate::installation::{Installation, Installed, SandboxSettings};
use crate::live_files::LiveFiles;
use crate::run_folder;

pub(super) async fn serve(
    config: &Config,
    flags: &cli::Serve,
    format: Format,
) -> anyhow::Result<Exit> {
    let listen = config.listen(flags.listen.as_deref())?;
    let slots = config.slots(flags.slots)?;
    let data = config.data(flags.storage.data.as_ref())?;
    let settings = config.server_settings(listen, &data)?;
    let images = config.images(&flags.storage.images)?;

    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| {
        format!("cannot listen on {listen}; is another server running there? choose another with --listen")
    })?;
    let address = listener.local_addr()?;
    let sandboxes = SandboxSettings { warm: Some(config.warm(flags.warm)), ..config.sandboxes() };
    let (network, models) = (config.network()?, config.models(&data)?);
    run_folder::sweep(&sandboxes).await;
    let installation = Installation::open(&data, &images, network, models, &sandboxes).await?;
    let installation = installation.with_mcp(config.mcp()?);
    // Before anything is counted.
    let other_metrics = crate::telemetry::count()?;
    let shutdown = CancellationToken::new();
    let worker = installation.worker(slots, config.lease(), config.sweep_every());
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    let working = worker.abort_handle();
    let app = App {
        store: installation.store.clone(),
        artifacts: installation.artifacts.clone(),
        live: Arc::new(LiveFiles {
            live: installation.live.clone(),
            store: installation.store.clone(),
            embedder: installation.models.embedder(),
        }),
        offer: config.offer(installation.models.offer())?,
        isolation: Arc::new(Installed(installation.backends.clone())),
        images: installation.images.clone(),
        settings,
        other_metrics,
        worker_runs: Arc::new(move || !working.is_finished()),
    };
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    tokio::spawn(reload_on_signal(config.named.clone(), installation.network.clone()));
    announce(address, &data, slots, format);

    let serving = bellglass_server::serve(listener, app, shutdown.clone().cancelled_owned());
    let ended = run_together(serving, worker, &shutdown).await;
    installation.end_warm_sandboxes().await;
    installation.store.close().await;
    ended?;
    tracing::info!("stopped; jobs that were running go on when the server starts again");
    Ok(Exit::Success)
}

/// Runs server and worker until both are at their end. When one of them ends, so does the other: a
/// server that accepts jobs on which nobody works would be worse than none.
async fn run_together(
    serving: impl Future<Output = io::Result<()>>,
    mut worker: JoinHandle<Result<(), StoreError>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    tokio::pin!(serving);
    let (served, worked, uncalled) = tokio::select! {
        served = &mut serving => {
            shutdown.cancel();
            (served, worker.await, false)
        }
        worked = &mut worker => {
            let uncalled = !shutdown.is_cancelled();
            if uncalled {
                tracing::error!("the worker ended by itself; stopping the server");
            }
            shutdown.cancel();
            (serving.await, worked, uncalled)
        }
    };
    worked.context("the worker panicked")?.context("the worker failed")?;
    anyhow::ensure!(!uncalled, "the worker ended by itself");
    served.context("the server failed")
}

fn announce(address: std::net::SocketAddr, data: &std::path::Path, slots: usize, format: Format) {
    match format {
        Format::Json => {
            // One line on standard output, so that a script can wait for it.
            println!(
                "{}",
                serde_json::json!({ "listening": format!("http://{address}"), "data": data })
            );
        }
        Format::Text => {
            let data = data.display().to_string();
            tracing::info!(data, slots, "Bellglass serves http://{address}");
        }
    }
}

/// Reads the configuration again at SIGHUP and puts its part about the network in force.
async fn reload_on_signal(named: Option<PathBuf>, network: Arc<HostNetwork>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        match Config::load(named.as_deref()).and_then(|config| config.network_config()) {
            Ok(config) => {
                network.replace(config);
                tracing::info!("the network part of the configuration was read again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the configuration stays as it was");
            }
        }
    }
}

/// Stops gently at the first Ctrl-C or SIGTERM, at once at the second.
async fn cancel_on_signal(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::warn!("signals cannot be caught; a stop will not be gentle");
        return;
    };
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
    };
    next().await;
    tracing::info!("stopping; once more to stop at once");
    shutdown.cancel();
    next().await;
    std::process::exit(i32::from(Exit::Failure as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves until it is told to stop, as the real one does.
    async fn together(
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) -> anyhow::Result<()> {
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone().cancelled_owned();
        let serving = async {
            stopped.await;
            Ok(())
        };
        run_together(serving, tokio::spawn(work), &shutdown).await
    }

    #[tokio::test]
    async fn a_worker_that_ends_takes_the_server_with_it() {
        let failed = together(async { Err(StoreError::Closed) }).await.unwrap_err();
        assert_eq!(failed.to_string(), "the worker failed");
        let panicked = together(async { panic!("a bug") }).await.unwrap_err();
        assert_eq!(panicked.to_string(), "the worker panicked");
        let ended = together(async { Ok(()) }).await.unwrap_err();
        assert_eq!(ended.to_string(), "the worker ended by itself");
    }

    #[tokio::test]
    async fn a_server_that_ends_takes_the_worker_with_it() {
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone().cancelled_owned();
        let worker = tokio::spawn(async {
            stopped.await;
            Ok(())
        });
        let serving = async { Err(io::Error::other("no socket")) };
        let failed = run_together(serving, worker, &shutdown).await.unwrap_err();
        assert_eq!(failed.to_string(), "the server failed");
    }
}
