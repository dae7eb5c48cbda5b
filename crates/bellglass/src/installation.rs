//! The parts of Bellglass on this machine, opened and put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::host_network::HostNetwork;
use anyhow::Context as _;
use async_trait::async_trait;
use bellglass_agent::model::catalogue::Catalogue;
use bellglass_protocol::id::WorkerId;
use bellglass_sandbox::image::ImageStore;
use bellglass_sandbox::{Backend, NamespaceBackend};
use bellglass_server::Images;
use bellglass_store::artifacts::Artifacts;
use bellglass_store::{SqliteStore, Store};
use bellglass_worker::{ImageSource, LiveSandboxes, Worker, WorkerSettings};

/// Everything that runs jobs, over one data folder.
pub(crate) struct Installation {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) images: Arc<BuiltImages>,
    pub(crate) live: LiveSandboxes,
    pub(crate) models: Arc<Catalogue>,
    network: Arc<HostNetwork>,
    data: PathBuf,
    /// How long a sandbox waits for a worker to come back before it ends by itself.
    orphaned_after: Duration,
}

/// Long enough for a server to be repaired, short enough that nothing stays for ever.
const ORPHANED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The file that holds the database in a data folder.
pub(crate) fn database(data: &Path) -> PathBuf {
    data.join("bellglass.db")
}

impl Installation {
    pub(crate) async fn open(
        data: &Path,
        images: &Path,
        network: HostNetwork,
        models: Catalogue,
    ) -> anyhow::Result<Self> {
        let database = database(data);
        let store = SqliteStore::open(&database).await;
        let store = store.with_context(|| format!("cannot open {}", database.display()))?;
        let artifacts =
            Artifacts::local(&data.join("artifacts")).context("cannot open artifacts")?;
        let backend = NamespaceBackend::new(data.join("sandboxes"))
            .context("cannot prepare sandboxes; `bellglass doctor` says what is missing")?;
        Ok(Self {
            store: Arc::new(store),
            artifacts: Arc::new(artifacts),
            backend: Arc::new(backend),
            images: Arc::new(BuiltImages(ImageStore::new(images.to_path_buf()))),
            live: LiveSandboxes::default(),
            models: Arc::new(models),
            network: Arc::new(network),
            data: data.to_path_buf(),
            orphaned_after: ORPHANED_AFTER,
        })
    }

    /// For a process that nobody starts again: its sandboxes end soon after it.
    pub(crate) fn without_successor(self) -> Self {
        Self { orphaned_after: Duration::from_secs(30), ..self }
    }

    pub(crate) fn worker(&self, slots: usize, lease: Duration) -> Worker {
        let settings = WorkerSettings {
            // One process at a time holds the data folder, so one name is enough, and a process
            // that starts again knows which jobs were its own.
            name: WorkerId::new("local"),
            slots,
            lease,
            spools: self.data.join("spools"),
            orphaned_after: self.orphaned_after,
            models: self.models.clone(),
        };
        Worker::new(
            settings,
            self.store.clone(),
            self.artifacts.clone(),
            self.backend.clone(),
            self.images.clone(),
            self.network.clone(),
            self.live.clone(),
        )
    }
}

/// The images on this machine.
pub(crate) struct BuiltImages(ImageStore);

#[async_trait]
impl ImageSource for BuiltImages {
    async fn rootfs(&self, image: &str) -> Option<PathBuf> {
        self.0.rootfs(image)
    }
}

#[async_trait]
impl Images for BuiltImages {
    async fn exists(&self, name: &str) -> bool {
        self.0.rootfs(name).is_some()
    }
}
