//! `bellglass serve`: API and worker in one process.

use std::sync::Arc;

use anyhow::Context as _;
use bellglass_server::App;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Format;
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::live_files::LiveFiles;

pub(super) async fn serve(
    config: &Config,
    flags: &cli::Serve,
    format: Format,
) -> anyhow::Result<Exit> {
    let listen = config.listen(flags.listen.as_deref())?;
    let settings = config.server_settings(listen)?;
    let slots = config.slots(flags.slots)?;
    let data = config.data(flags.storage.data.as_ref())?;
    let images = config.images(&flags.storage.images)?;

    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| {
        format!("cannot listen on {listen}; is another server running there? choose another with --listen")
    })?;
    let address = listener.local_addr()?;
    let installation =
        Installation::open(&data, &images, config.network()?, config.models()?).await?;
    let app = App {
        store: installation.store.clone(),
        artifacts: installation.artifacts.clone(),
        live: Arc::new(LiveFiles(installation.live.clone())),
        offer: config.offer(installation.backend.level(), installation.models.offer()),
        images: installation.images.clone(),
        settings,
        other_metrics: crate::telemetry::count()?,
    };

    let shutdown = CancellationToken::new();
    let worker = tokio::spawn(installation.worker(slots, config.lease()).run(shutdown.clone()));
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    announce(address, &data, slots, format);

    bellglass_server::serve(listener, app, shutdown.clone().cancelled_owned())
        .await
        .context("the server failed")?;
    shutdown.cancel();
    worker.await.context("the worker panicked")?.context("the worker failed")?;
    installation.store.close().await;
    tracing::info!("stopped; jobs that were running go on when the server starts again");
    Ok(Exit::Success)
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
