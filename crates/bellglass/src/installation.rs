//! The parts of Bellglass on this machine, opened and put together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::host_network::HostNetwork;
use crate::storage_config::{Sharing, Storage};
use crate::worker_name::WorkerName;
use anyhow::Context as _;
use async_trait::async_trait;
use bellglass_agent::model::catalogue::Catalogue;
use bellglass_protocol::id::WorkerId;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_sandbox::image::ImageStore;
use bellglass_sandbox::pool::PoolSize;
use bellglass_sandbox::{
    Backend, BackendError, Backends, GvisorBackend, NamespaceBackend, SandboxName, SandboxOrder,
    WarmPool,
};
use bellglass_server::{Images, Isolation};
use bellglass_store::Store;
use bellglass_store::artifacts::Artifacts;
use bellglass_worker::{ImageSource, LiveSandboxes, OperatorServer, Worker, WorkerSettings};

/// Everything that runs jobs, over one data folder.
pub(crate) struct Installation {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) backends: Arc<Backends>,
    pub(crate) images: Arc<BuiltImages>,
    pub(crate) live: LiveSandboxes,
    pub(crate) models: Arc<Catalogue>,
    /// The MCP servers that every task gets.
    mcp: BTreeMap<String, OperatorServer>,
    pub(crate) network: Arc<HostNetwork>,
    /// Keeps sandboxes ready, if any are to be.
    pool: Option<Arc<WarmPool>>,
    data: PathBuf,
    name: WorkerName,
    /// How long a sandbox waits for a worker to come back before it ends by itself.
    orphaned_after: Duration,
}

/// Long enough for a server to be repaired, short enough that nothing stays for ever.
const ORPHANED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Where another worker takes a job over from its last checkpoint, what was left of it is of no use for
/// long.
pub(crate) const ORPHANED_FROM_OTHERS_AFTER: Duration = Duration::from_secs(20);

impl Installation {
    pub(crate) fn open(
        storage: Storage,
        data: &Path,
        images: &Path,
        network: HostNetwork,
        models: Catalogue,
        sandboxes: &SandboxSettings,
    ) -> anyhow::Result<Self> {
        let Storage { store, artifacts, sharing } = storage;
        let name = WorkerName::take(data, sharing)?;
        let network = network.with_image(images.join("base/rootfs"));
        let images = Arc::new(BuiltImages::new(ImageStore::new(images.to_path_buf())));
        let (backends, pool) = backends(data, sandboxes, &images)
            .context("cannot prepare sandboxes; `bellglass doctor` says what is missing")?;
        Ok(Self {
            store,
            artifacts,
            name,
            backends: Arc::new(backends),
            images,
            live: LiveSandboxes::default(),
            models: Arc::new(models),
            mcp: BTreeMap::new(),
            pool,
            network: Arc::new(network),
            data: data.to_path_buf(),
            orphaned_after: match sharing {
                Sharing::Alone => ORPHANED_AFTER,
                Sharing::Shared => ORPHANED_FROM_OTHERS_AFTER,
            },
        })
    }

    /// With MCP servers for every task.
    pub(crate) fn with_mcp(self, mcp: BTreeMap<String, OperatorServer>) -> Self {
        Self { mcp, ..self }
    }

    /// For a process that nobody starts again: its sandboxes end soon after it.
    pub(crate) fn without_successor(self) -> Self {
        Self { orphaned_after: Duration::from_secs(30), ..self }
    }

    /// Ends the sandboxes that belong to no job.
    pub(crate) async fn end_warm_sandboxes(&self) {
        if let Some(pool) = &self.pool {
            pool.close().await;
        }
    }

    /// The name under which jobs are claimed here.
    pub(crate) fn worker_name(&self) -> &WorkerId {
        &self.name.name
    }

    pub(crate) fn worker(&self, pace: Pace) -> Worker {
        let Pace { slots, lease, sweep_every, grace, keep_jobs } = pace;
        let settings = WorkerSettings {
            name: self.name.name.clone(),
            slots,
            lease,
            spools: self.data.join("spools"),
            orphaned_after: self.orphaned_after,
            sweep_every,
            grace,
            keep_jobs,
            models: self.models.clone(),
            mcp: self.mcp.clone(),
        };
        Worker::new(
            settings,
            self.store.clone(),
            self.artifacts.clone(),
            self.backends.clone(),
            self.images.clone(),
            self.network.clone(),
            self.live.clone(),
        )
    }
}

/// How many jobs a worker takes, and how it keeps time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) slots: usize,
    pub(crate) lease: Duration,
    pub(crate) sweep_every: Duration,
    /// How long jobs may go on after the worker was told to stop.
    pub(crate) grace: Duration,
    /// How long jobs are kept after their end; for ever if nothing is said.
    pub(crate) keep_jobs: Option<Duration>,
}

/// How sandboxes are made, as far as the operator decides it.
#[derive(Clone, Debug)]
pub(crate) struct SandboxSettings {
    /// The least isolation of every job.
    pub(crate) isolation: IsolationLevel,
    /// gVisor's executable, wherever it may be.
    pub(crate) runsc: PathBuf,
    /// Which sandboxes are kept ready, if any.
    pub(crate) warm: Option<WarmSettings>,
}

/// Sandboxes that are made ahead of their jobs. They get these limits at first.
#[derive(Clone, Debug)]
pub(crate) struct WarmSettings {
    pub(crate) size: PoolSize,
    pub(crate) image: String,
    pub(crate) limits: Limits,
}

/// What to do where gVisor does not work.
pub(crate) const GVISOR_REMEDY: &str = "install the Debian package runsc (on Debian 12 from \
    bookworm-backports), or say where it is with `runsc` under [sandbox]; `bellglass doctor` tries it";

fn backends(
    data: &Path,
    settings: &SandboxSettings,
    images: &Arc<BuiltImages>,
) -> Result<(Backends, Option<Arc<WarmPool>>), BackendError> {
    let namespace: Arc<dyn Backend> = Arc::new(NamespaceBackend::new(data.join("sandboxes"))?);
    for folder in ["sandboxes", "gvisor-sandboxes"] {
        if let Err(error) = images.store.make_known(&data.join(folder)) {
            // Whoever may write there, as we may not, does not learn that old builds are in use here.
            tracing::debug!(%error, "the images' folder does not know of the sandboxes here");
        }
    }
    // Where every job is to have more than this level, nobody would take them.
    let warm = settings.warm.as_ref();
    let warm = warm.filter(|warm| warm.size.max > 0 && settings.isolation == namespace.level());
    let pool = warm.map(|warm| Arc::new(keep_ready(namespace.clone(), warm, images)));
    let namespace = pool.clone().map_or(namespace, |pool| pool);
    Ok((with_gvisor(namespace, data, settings)?, pool))
}

/// Removes the sandboxes of another data folder that are not in `keep`.
pub(crate) async fn sweep_all(
    data: &Path,
    settings: &SandboxSettings,
    keep: &HashSet<SandboxName>,
) -> Result<usize, BackendError> {
    plain_backends(data, settings)?.sweep(keep).await
}

fn plain_backends(data: &Path, settings: &SandboxSettings) -> Result<Backends, BackendError> {
    let namespace = NamespaceBackend::new(data.join("sandboxes"))?;
    with_gvisor(Arc::new(namespace), data, settings)
}

/// The backends of an installation whose weakest is this one.
fn with_gvisor(
    weakest: Arc<dyn Backend>,
    data: &Path,
    settings: &SandboxSettings,
) -> Result<Backends, BackendError> {
    let gvisor = GvisorBackend::new(data.join("gvisor-sandboxes"), &settings.runsc)?;
    Ok(Backends::new(weakest, "`bellglass doctor` says what is missing")
        .with(Arc::new(gvisor), GVISOR_REMEDY)
        .preferring(settings.isolation))
}

fn keep_ready(
    backend: Arc<dyn Backend>,
    settings: &WarmSettings,
    images: &Arc<BuiltImages>,
) -> WarmPool {
    let (images, image, limits) = (images.clone(), settings.image.clone(), settings.limits);
    let template = move || {
        Some(SandboxOrder {
            name: SandboxName::throwaway(),
            rootfs: images.store.rootfs(&image)?,
            limits,
            nested_sandboxing: false,
            orphaned_after: None,
        })
    };
    WarmPool::open(backend, settings.size, Box::new(template))
}

#[async_trait]
impl Isolation for Installed {
    async fn lacks(&self, level: IsolationLevel) -> Option<String> {
        self.0.choose(level).await.err().map(|lacking| lacking.why)
    }
}

/// The backends, as the HTTP side asks about them.
pub(crate) struct Installed(pub(crate) Arc<Backends>);

/// The images on this machine.
pub(crate) struct BuiltImages {
    store: ImageStore,
    /// When each image that is asked for was last seen.
    seen: Mutex<HashMap<String, Instant>>,
}

impl BuiltImages {
    /// An image that was there a moment ago is believed to be there: thousands may ask each second.
    const BELIEVED: Duration = Duration::from_millis(500);

    fn new(store: ImageStore) -> Self {
        Self { store, seen: Mutex::default() }
    }

    fn is_believed(&self, name: &str) -> bool {
        let seen = self.seen.lock().expect("no code panics while it holds this lock");
        seen.get(name).is_some_and(|at| at.elapsed() < Self::BELIEVED)
    }
}

#[async_trait]
impl ImageSource for BuiltImages {
    async fn rootfs(&self, image: &str) -> Option<PathBuf> {
        self.store.rootfs(image)
    }
}

#[async_trait]
impl Images for BuiltImages {
    async fn exists(&self, name: &str) -> bool {
        if self.is_believed(name) {
            return true;
        }
        // Only what exists is remembered, so nobody can fill this up.
        let exists = self.store.rootfs(name).is_some();
        let mut seen = self.seen.lock().expect("no code panics while it holds this lock");
        match exists {
            true => drop(seen.insert(name.to_owned(), Instant::now())),
            false => drop(seen.remove(name)),
        }
        exists
    }

    async fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.store.list().into_iter().map(|image| image.name).collect();
        names.sort();
        names.dedup();
        names
    }
}
