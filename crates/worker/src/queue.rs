//! Takes jobs from the queue while there are free slots, keeps their leases, and passes on news.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_agent::model::catalogue::Catalogue;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::view::JobStatus;
use bellglass_sandbox::Backends;
use bellglass_store::artifacts::Artifacts;
use bellglass_store::{ClaimedJob, Store, StoreError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::job::run_job;
use crate::mcp::OperatorServer;
use crate::memory::Embedder;
use crate::stop::{StopReason, StopSwitch};
use crate::{ImageSource, LiveSandboxes, NetworkSource, retention, sweep};

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// No two living worker processes share a name.
    pub name: WorkerId,
    /// Jobs at once.
    pub slots: usize,
    /// How long a job stays ours without a sign of life.
    pub lease: Duration,
    /// Folder for the output of running steps.
    pub spools: PathBuf,
    /// How long a sandbox waits for a worker to come back before it ends by itself.
    pub orphaned_after: Duration,
    /// How often sandboxes that no job needs are looked for.
    pub sweep_every: Duration,
    /// How long jobs are kept after their end; for ever if nothing is said.
    pub keep_jobs: Option<Duration>,
    /// How long jobs may go on after the worker was told to stop, before they are left to others.
    pub grace: Duration,
    /// The models that work on tasks.
    pub models: Arc<Catalogue>,
    /// The MCP servers that every task gets, by name.
    pub mcp: BTreeMap<String, OperatorServer>,
}

/// Claims jobs and drives them to their ends.
pub struct Worker {
    settings: WorkerSettings,
    shared: Arc<Shared>,
    held: Arc<Held>,
}

/// What all jobs of a worker use.
pub(crate) struct Shared {
    /// The name under which jobs are claimed here.
    pub(crate) worker: WorkerId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) backends: Arc<Backends>,
    pub(crate) images: Arc<dyn ImageSource>,
    pub(crate) network: Arc<dyn NetworkSource>,
    pub(crate) live: LiveSandboxes,
    pub(crate) spools: PathBuf,
    pub(crate) orphaned_after: Option<Duration>,
    pub(crate) models: Arc<Catalogue>,
    pub(crate) mcp: BTreeMap<String, OperatorServer>,
    pub(crate) embedder: Option<Embedder>,
    /// Told when sandboxes may be here whose jobs are another worker's.
    pub(crate) sweep_soon: Notify,
}

/// The jobs in this worker's hands.
#[derive(Default)]
struct Held(Mutex<HashMap<JobId, HeldJob>>);

#[derive(Clone)]
struct HeldJob {
    generation: Generation,
    stop: StopSwitch,
    /// Told when what the job may reach was changed.
    network_changed: Arc<Notify>,
    /// Cancelled once nothing is done for the job any more under this generation.
    over: CancellationToken,
}

/// The queue is looked at this often even when nothing is heard, for leases that have run out.
const LOOK_AROUND: Duration = Duration::from_secs(1);

impl Worker {
    pub fn new(
        settings: WorkerSettings,
        store: Arc<dyn Store>,
        artifacts: Arc<Artifacts>,
        backends: Arc<Backends>,
        images: Arc<dyn ImageSource>,
        network: Arc<dyn NetworkSource>,
        live: LiveSandboxes,
    ) -> Self {
        let spools = settings.spools.clone();
        let orphaned_after = Some(settings.orphaned_after);
        let (models, mcp) = (settings.models.clone(), settings.mcp.clone());
        let embedder = models.embedder();
        let worker = settings.name.clone();
        let shared = Shared {
            worker,
            store,
            artifacts,
            backends,
            images,
            network,
            live,
            spools,
            orphaned_after,
            models,
            mcp,
            embedder,
            sweep_soon: Notify::new(),
        };
        Self { settings, shared: Arc::new(shared), held: Arc::default() }
    }

    /// Works until `shutdown`. Running jobs then have the time of grace to come to their ends; after
    /// it they are left as they are, with their sandboxes, for the next process to take up.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), StoreError> {
        self.sweep().await?;
        let jobs = TaskTracker::new();
        let mut heartbeat = AbortOnDropHandle::new(tokio::spawn(self.heartbeat()));
        let news = pass_on_news(self.shared.store.clone(), self.held.clone());
        let mut watch = AbortOnDropHandle::new(tokio::spawn(news));
        let sweeping = sweep::keep_sweeping(self.shared.clone(), self.settings.sweep_every);
        let sweeping = AbortOnDropHandle::new(tokio::spawn(sweeping));
        let forgetting = self.settings.keep_jobs.map(|keep| {
            let forgetting = retention::keep_forgetting(self.shared.clone(), keep);
            AbortOnDropHandle::new(tokio::spawn(forgetting))
        });

        let slots = Arc::new(Semaphore::new(self.settings.slots));
        self.take_up_own(&slots, &jobs).await?;
        let ended = tokio::select! {
            () = self.claim_jobs(&slots, &jobs, &shutdown) => Ok(()),
            // Without leases or cancellations no job can be driven well.
            ended = &mut heartbeat => ended,
            ended = &mut watch => ended,
        };
        tracing::info!(?ended, "no more jobs are claimed");

        jobs.close();
        if ended.is_ok() && !self.are_over_within_grace(&jobs).await {
            tracing::info!(jobs = jobs.len(), "jobs that are not at their end are left to others");
        }
        self.held.stop_all(StopReason::ShuttingDown);
        jobs.wait().await;
        drop((heartbeat, watch, sweeping, forgetting));
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            // A bug of ours: whoever waits for the worker is to hear of it.
            std::panic::resume_unwind(panic);
        }
        self.shared.store.release_leases(&self.settings.name).await
    }

    /// Whether all jobs come to their ends, or to where others go on, in the time that is left. For half of
    /// it they go on as ever; then none begins another step, so that those which run may end.
    async fn are_over_within_grace(&self, jobs: &TaskTracker) -> bool {
        let half = self.settings.grace / 2;
        if tokio::time::timeout(half, jobs.wait()).await.is_ok() {
            return true;
        }
        self.held.lock().values().for_each(|held| held.stop.wind_down());
        tokio::time::timeout(half, jobs.wait()).await.is_ok()
    }

    /// Goes on with what an earlier process of this name held, as far as there are slots: its sandboxes
    /// are here. The rest is for whoever has room.
    async fn take_up_own(
        &self,
        slots: &Arc<Semaphore>,
        jobs: &TaskTracker,
    ) -> Result<(), StoreError> {
        let (store, name) = (&self.shared.store, &self.settings.name);
        let mut kept = Vec::new();
        for job in store.held_by(name).await? {
            let Ok(slot) = slots.clone().try_acquire_owned() else { break };
            match store.claim_own(name, job, self.settings.lease).await {
                Ok(Some(claimed)) => {
                    kept.push(job);
                    self.take_on(claimed, slot, jobs);
                }
                // It is over, as a job that nobody can read just now, or another's; its sandbox is here.
                Ok(None) => self.shared.sweep_soon.notify_one(),
                Err(
                    error @ (StoreError::Unavailable | StoreError::Closed | StoreError::ReadOnly),
                ) => return Err(error),
                Err(error) => {
                    // Whatever is wrong with one job must not keep the others waiting. Its lease runs out
                    // unrenewed: given back now, it would be claimed again at once.
                    tracing::error!(%job, %error, "a job of ours cannot be taken up");
                    kept.push(job);
                }
            }
        }
        store.release_leases_but(name, &kept).await
    }

    /// Returns at the shutdown, but never in the middle of a claim: a job that is claimed is taken on,
    /// so that whoever holds it can say that it lets go of it.
    async fn claim_jobs(
        &self,
        slots: &Arc<Semaphore>,
        jobs: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        let mut changes = self.shared.store.changes();
        while !shutdown.is_cancelled() {
            let slot = shutdown.run_until_cancelled(slots.clone().acquire_owned()).await;
            let Some(slot) = slot else { return };
            let slot = slot.expect("the semaphore is never closed");
            let claimed =
                self.shared.store.claim_next_job(&self.settings.name, self.settings.lease).await;
            match claimed {
                Ok(Some(claimed)) => self.take_on(claimed, slot, jobs),
                Ok(None) => {
                    drop(slot);
                    shutdown.run_until_cancelled(wait_for_work(&mut changes)).await;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot claim jobs; trying again in a second");
                    drop(slot);
                    shutdown.run_until_cancelled(tokio::time::sleep(LOOK_AROUND)).await;
                }
            }
        }
    }

    fn take_on(&self, claimed: ClaimedJob, slot: OwnedSemaphorePermit, jobs: &TaskTracker) {
        let (job, generation) = (claimed.view.job_id, claimed.generation);
        let stop = StopSwitch::new();
        let over = CancellationToken::new();
        let network_changed = Arc::new(Notify::new());
        let entry = HeldJob {
            generation,
            stop: stop.clone(),
            network_changed: network_changed.clone(),
            over: over.clone(),
        };
        let before = self.held.lock().insert(job, entry);
        let (shared, held) = (self.shared.clone(), self.held.clone());
        jobs.spawn(async move {
            // Guards, so that a panic in a job frees its slot and its place too.
            let _slot = slot;
            let _place = Place { held, job, generation, over };
            if let Some(before) = before {
                // Our own lease ran out, because this process stood still for a while. Two must
                // not drive one sandbox, so the earlier drive ends first.
                before.stop.stop(StopReason::LeaseLost);
                before.over.cancelled().await;
            }
            let ran = run_job(shared.clone(), claimed, stop.clone(), network_changed).await;
            if let Err(error) = &ran {
                tracing::warn!(%job, %error, "the job went out of our hands");
            }
            if ran.is_err() || stop.reason() == Some(StopReason::LeaseLost) {
                // Whether the sandbox is still of use is for the sweep to tell: the job may be ours again.
                shared.sweep_soon.notify_one();
            }
        });
    }

    /// Removes sandboxes whose jobs are over, before any is started here.
    async fn sweep(&self) -> Result<(), StoreError> {
        let keep = sweep::own_sandboxes(&*self.shared.store, &self.settings.name).await?;
        sweep::tell(self.shared.backends.sweep(&keep).await);
        Ok(())
    }

    /// Renews the leases of all jobs in our hands, and lets go of those that are lost.
    fn heartbeat(&self) -> impl Future<Output = ()> + use<> {
        let (shared, held) = (self.shared.clone(), self.held.clone());
        let (name, lease) = (self.settings.name.clone(), self.settings.lease);
        async move {
            let mut beat = tokio::time::interval(lease / 3);
            loop {
                beat.tick().await;
                let jobs = held.generations();
                if jobs.is_empty() {
                    continue;
                }
                match shared.store.renew_leases(&name, &jobs, lease).await {
                    Ok(lost) => {
                        let is_lost = |(job, _): &&(JobId, Generation)| lost.contains(job);
                        jobs.iter().filter(is_lost).for_each(|(job, of)| held.lose(*job, *of));
                    }
                    Err(error) => tracing::error!(%error, "cannot renew leases"),
                }
            }
        }
    }
}

/// Returns when there may be something to claim.
async fn wait_for_work(changes: &mut broadcast::Receiver<bellglass_store::Change>) {
    let news = async {
        loop {
            match changes.recv().await {
                Ok(change) if change.status == JobStatus::Scheduled => return,
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    let _ = tokio::time::timeout(LOOK_AROUND, news).await;
}

/// Hears of cancellations and of new policies and tells the jobs.
async fn pass_on_news(store: Arc<dyn Store>, held: Arc<Held>) {
    let mut changes = store.changes();
    loop {
        match changes.recv().await {
            Ok(change) => {
                if change.cancel_requested {
                    held.stop(change.job, StopReason::Cancelled);
                }
                if change.network_changed {
                    held.tell_of_network(change.job);
                }
            }
            // Something was missed; ask about every job in our hands.
            Err(broadcast::error::RecvError::Lagged(_)) => {
                for (job, _) in held.generations() {
                    held.tell_of_network(job);
                    if store.outline(job).await.is_ok_and(|outline| outline.cancel_requested) {
                        held.stop(job, StopReason::Cancelled);
                    }
                }
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

impl Held {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, HeldJob>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }

    fn generations(&self) -> Vec<(JobId, Generation)> {
        self.lock().iter().map(|(job, held)| (*job, held.generation)).collect()
    }

    fn stop(&self, job: JobId, reason: StopReason) {
        if let Some(held) = self.lock().get(&job) {
            held.stop.stop(reason);
        }
    }

    /// Stops whoever holds the job under this generation, and not who may have taken it up again since.
    fn lose(&self, job: JobId, generation: Generation) {
        if let Some(held) = self.lock().get(&job).filter(|held| held.generation == generation) {
            held.stop.stop(StopReason::LeaseLost);
        }
    }

    fn tell_of_network(&self, job: JobId) {
        if let Some(held) = self.lock().get(&job) {
            held.network_changed.notify_one();
        }
    }

    fn stop_all(&self, reason: StopReason) {
        self.lock().values().for_each(|held| held.stop.stop(reason));
    }
}

/// A job's place among those held; freed when dropped.
struct Place {
    held: Arc<Held>,
    job: JobId,
    generation: Generation,
    over: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut held) = self.held.0.lock()
            && held.get(&self.job).is_some_and(|entry| entry.generation == self.generation)
        {
            held.remove(&self.job);
        }
        self.over.cancel();
    }
}
