//! `bellglass serve`: the API, and a worker in the same process unless others do the work.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bellglass_sandbox::image::ImageStore;
use bellglass_server::{App, Cluster, Listeners, OtherMetrics, ServerSettings};
use bellglass_worker::LiveSandboxes;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Format;
use super::process::{cancel_on_signal, reload_on_signal, run_together, start};
use crate::cli;
use crate::cluster_config::{self, ClusterSettings};
use crate::config::Config;
use crate::elsewhere::Elsewhere;
use crate::exit::Exit;
use crate::image_retention::keep_pruning;
use crate::installation::{Installation, Installed, SandboxSettings};
use crate::live_files::LiveFiles;
use crate::run_folder;
use crate::storage_config::{Sharing, Storage};

pub(super) async fn serve(
    config: &Config,
    flags: &cli::Serve,
    format: Format,
) -> anyhow::Result<Exit> {
    let listen = config.listen(flags.listen.as_deref())?;
    let slots = config.slots(flags.slots)?;
    let data = config.data(flags.storage.data.as_ref())?;
    let settings = config.server_settings(listen, &data)?;

    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| {
        format!("cannot listen on {listen}; is another server running there? choose another with --listen")
    })?;
    let address = listener.local_addr()?;
    let storage = config.storage()?.open(&data).await?;
    let cluster = config.shared_by()?;
    if flags.no_worker {
        return serve_only(config, listener, settings, storage, cluster, &data, format).await;
    }
    let sharing = storage.sharing;
    let sandboxes = SandboxSettings { warm: Some(config.warm(flags.warm)), ..config.sandboxes() };
    let installation = install(config, &flags.storage, storage, &data, &sandboxes).await?;
    // Before anything is counted.
    let other_metrics = crate::telemetry::count()?;
    let shutdown = CancellationToken::new();
    let mut listeners = Listeners { public: Some(listener), internal: None };
    if sharing == Sharing::Shared {
        listeners.internal = meet_the_others(&installation, cluster.as_ref()).await?;
    }
    let worker = installation.worker(config.pace(slots, config.grace(sharing)));
    let (worker, worked) = start(worker, &shutdown);
    let stopping = shutdown.clone();
    let working = worker.abort_handle();
    let app = App {
        worker_runs: Arc::new(move || !working.is_finished() && !stopping.is_cancelled()),
        ..app(config, &installation, settings, cluster.as_ref(), other_metrics)?
    };
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    tokio::spawn(reload_on_signal(config.named.clone(), installation.network.clone()));
    announce(address, &data, slots, format);

    let serving = bellglass_server::serve_on(listeners, app, worked.cancelled_owned());
    let ended = run_together(serving, worker, &shutdown).await;
    installation.end_warm_sandboxes().await;
    installation.store.close().await;
    ended?;
    tracing::info!("stopped; jobs that were running go on when the server starts again");
    Ok(Exit::Success)
}

/// Opens all that runs jobs on this machine.
pub(super) async fn install(
    config: &Config,
    flags: &cli::Storage,
    storage: Storage,
    data: &Path,
    sandboxes: &SandboxSettings,
) -> anyhow::Result<Installation> {
    let images = config.images(&flags.images)?;
    let (network, models) = (config.network()?, config.models(data)?);
    run_folder::sweep(sandboxes).await;
    if let Some(keep) = config.file.image.keep {
        tokio::spawn(keep_pruning(ImageStore::new(images.clone()), keep));
    }
    let installation = Installation::open(storage, data, &images, network, models, sandboxes)?;
    Ok(installation.with_mcp(config.mcp()?))
}

/// Listens for the other processes on the store, and tells them where.
pub(super) async fn meet_the_others(
    installation: &Installation,
    cluster: Option<&ClusterSettings>,
) -> anyhow::Result<Option<TcpListener>> {
    let name = installation.worker_name();
    let Some(cluster) = cluster else {
        tracing::warn!("other servers cannot reach the sandboxes here: {}", cluster_config::REMEDY);
        installation.store.announce_worker(name, None).await?;
        return Ok(None);
    };
    let (listener, address) = cluster.listen().await?;
    installation.store.announce_worker(name, Some(&address)).await?;
    tracing::info!(worker = %name, address, "other servers reach the sandboxes here");
    Ok(Some(listener))
}

/// The server's parts, over what is installed here.
pub(super) fn app(
    config: &Config,
    installation: &Installation,
    settings: ServerSettings,
    cluster: Option<&ClusterSettings>,
    other_metrics: OtherMetrics,
) -> anyhow::Result<App> {
    Ok(App {
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
        worker_runs: Arc::new(|| true),
        cluster: cluster.map(|cluster| of_cluster(cluster, &installation.live)),
    })
}

fn of_cluster(settings: &ClusterSettings, live: &LiveSandboxes) -> Cluster {
    let live = live.clone();
    let is_here = Arc::new(move |job| live.get(job).is_some());
    Cluster { secret: settings.secret.clone(), is_here }
}

/// Serves the API alone. What needs a sandbox is fetched from the worker that has it.
async fn serve_only(
    config: &Config,
    listener: TcpListener,
    settings: ServerSettings,
    storage: Storage,
    cluster: Option<ClusterSettings>,
    data: &Path,
    format: Format,
) -> anyhow::Result<Exit> {
    ensure!(
        storage.sharing == Sharing::Shared,
        "--no-worker needs a database that workers share: set `url` under [store] to a PostgreSQL"
    );
    let cluster = cluster.context(cluster_config::REMEDY)?;
    let address = listener.local_addr()?;
    let (live, models) = (LiveSandboxes::default(), Arc::new(config.models(data)?));
    let app = App {
        store: storage.store.clone(),
        artifacts: storage.artifacts,
        live: Arc::new(LiveFiles {
            live: live.clone(),
            store: storage.store.clone(),
            embedder: models.embedder(),
        }),
        offer: config.offer(models.offer())?,
        isolation: Arc::new(Elsewhere),
        images: Arc::new(Elsewhere),
        settings,
        other_metrics: crate::telemetry::count()?,
        worker_runs: Arc::new(|| true),
        cluster: Some(of_cluster(&cluster, &live)),
    };
    let shutdown = CancellationToken::new();
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    announce(address, data, 0, format);
    let served = bellglass_server::serve(listener, app, shutdown.cancelled_owned()).await;
    storage.store.close().await;
    served.context("the server failed")?;
    Ok(Exit::Success)
}

fn announce(address: SocketAddr, data: &Path, slots: usize, format: Format) {
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
