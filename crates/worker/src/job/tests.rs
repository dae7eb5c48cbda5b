//! Jobs that end, or are left, before they have a sandbox.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bellglass_agent::model::catalogue::{Catalogue, CatalogueSettings};
use bellglass_protocol::id::WorkerId;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::model_offer::ModelOffer;
use bellglass_protocol::request::{JobRequest, Offer};
use bellglass_protocol::view::JobStatus;
use bellglass_sandbox::egress::{EgressSettings, Secret};
use bellglass_sandbox::{Backend, BackendError, Backends, RunningSandbox};
use bellglass_store::SqliteStore;
use bellglass_store::artifacts::Artifacts;
use tokio::sync::watch;

use super::*;
use crate::{ImageSource, NetworkSource};

/// A host that has nothing to run a sandbox with.
struct Nothing;

#[async_trait]
impl Backend for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn level(&self) -> IsolationLevel {
        IsolationLevel::Namespace
    }

    async fn start(&self, _: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
        Err(BackendError::Unsupported("it has nothing".into()))
    }

    async fn find(&self, _: &SandboxName) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        Ok(None)
    }

    async fn remove(&self, _: &SandboxName) -> Result<(), BackendError> {
        Ok(())
    }

    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        Ok(HashSet::new())
    }

    async fn remove_orphans(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        Ok(0)
    }

    async fn sweep(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        Ok(0)
    }
}

#[async_trait]
impl ImageSource for Nothing {
    async fn rootfs(&self, _: &str) -> Option<PathBuf> {
        None
    }
}

#[async_trait]
impl NetworkSource for Nothing {
    async fn settings(&self) -> Arc<EgressSettings> {
        Arc::default()
    }

    fn changes(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn secret(&self, _: &str) -> Option<Arc<Secret>> {
        None
    }
}

async fn worker_in(folder: &Path) -> Arc<Shared> {
    let nothing = Arc::new(Nothing);
    Arc::new(Shared {
        worker: WorkerId::new("worker"),
        store: Arc::new(SqliteStore::open(&folder.join("jobs.db")).await.unwrap()),
        artifacts: Arc::new(Artifacts::local(&folder.join("artifacts")).unwrap()),
        backends: Arc::new(Backends::new(nothing.clone(), "there is none")),
        images: nothing.clone(),
        network: nothing,
        live: Default::default(),
        spools: folder.join("spools"),
        orphaned_after: None,
        models: Arc::new(Catalogue::new(CatalogueSettings::default()).unwrap()),
        mcp: Default::default(),
        embedder: None,
        sweep_soon: Notify::new(),
    })
}

fn spec() -> JobSpec {
    let offer = Offer {
        defaults: Limits::default(),
        maxima: Limits::default(),
        default_image: "base".into(),
        isolation: IsolationLevel::Namespace,
        models: ModelOffer::default(),
        budget: Default::default(),
        secrets: Default::default(),
    };
    let job = JobRequest::from_json(br#"{"steps":[{"tool":"shell","command":"true"}]}"#);
    job.unwrap().into_spec(&offer).unwrap()
}

/// On a database that no newer program works on beside this one.
#[tokio::test]
async fn a_job_that_cannot_be_read_any_further_is_handed_back_until_it_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let shared = worker_in(folder.path()).await;
    let job = shared.store.schedule(spec()).await.unwrap();
    // The lease has run out at once, so the job can be taken up again.
    let take_up = async || {
        let claimed = shared.store.claim_next_job(&shared.worker, Duration::ZERO).await.unwrap();
        let mut claimed = claimed.expect("nobody holds the job");
        claimed.view.misread = true;
        run_job(shared.clone(), claimed, StopSwitch::new(), Arc::default()).await.unwrap();
        let last = shared.store.events_after(job, 0, 100).await.unwrap().pop().unwrap();
        (shared.store.outline(job).await.unwrap().status, last.event.body.kind().to_owned())
    };
    for _ in 0..2 {
        assert_eq!(take_up().await, (JobStatus::Running, "released".into()));
    }
    shared.store.request_cancel(job, "me").await.unwrap();
    assert_eq!(take_up().await, (JobStatus::Cancelled, "finished".into()));
}
