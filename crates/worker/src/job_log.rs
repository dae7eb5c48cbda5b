//! One job's log as its holder writes it, and the job as far as the holder has come.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_protocol::checkpoint::CheckpointNumber;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::view::JobView;
use bellglass_store::{ClaimedJob, Store, StoreError, is_recording};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::recording::Recording;
use crate::stop::StopSwitch;

/// How long a job that is to be left to others still waits for a database that is away.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long somebody waits for it who is not the job itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Appends to a job's log under one claim. Clones share what they know.
#[derive(Clone)]
pub(crate) struct JobLog {
    stop: StopSwitch,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
    known: Arc<Mutex<Known>>,
    /// Numbers that checkpoints were given under this claim.
    checkpoints: Arc<AtomicU32>,
    /// What others do in the sandbox and has to be written down before the job's end.
    others: TaskTracker,
}

struct Known {
    /// Folded from what was written under this claim, so that it need not be read again. Without
    /// the texts of steps, which can be long. What others write meanwhile, such as a wish to
    /// cancel, is not in it.
    view: JobView,
    recorded_bytes: u64,
}

impl JobLog {
    pub(crate) fn new(store: Arc<dyn Store>, claimed: ClaimedJob) -> Self {
        let ClaimedJob { generation, view, recorded_bytes } = claimed;
        let job = view.job_id;
        let known = Arc::new(Mutex::new(Known { view, recorded_bytes }));
        let others = TaskTracker::new();
        let (stop, checkpoints) = (StopSwitch::new(), Arc::default());
        Self { stop, store, job, generation, known, checkpoints, others }
    }

    /// With the switch by which the job is told to stop.
    pub(crate) fn heeding(self, stop: StopSwitch) -> Self {
        Self { stop, ..self }
    }

    /// Waits for a database that is away as long as the job is in our hands: its sandbox lives, and
    /// nobody else can write either.
    pub(crate) async fn append(&self, bodies: Vec<EventBody>) -> Result<(), StoreError> {
        let given_up = async {
            self.stop.told_to_let_go().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        let written = tokio::select! {
            written = self.store.append(self.job, self.generation, bodies) => written?,
            () = given_up => return Err(StoreError::Unavailable),
        };
        let mut known = self.lock();
        for sealed in &written {
            known.view.apply_briefly(&sealed.event);
            if is_recording(&sealed.event.body) {
                known.recorded_bytes += sealed.line.len() as u64;
            }
        }
        Ok(())
    }

    /// The same for somebody who waits for an answer meanwhile. It is written all the same when they
    /// have waited long enough, or are gone.
    pub(crate) async fn append_soon(&self, bodies: Vec<EventBody>) -> Result<(), StoreError> {
        let log = self.clone();
        let writing = self.apart(async move { log.append(bodies).await });
        match tokio::time::timeout(PATIENCE, writing).await {
            Ok(Ok(written)) => written,
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable),
        }
    }

    /// Does something apart from whoever asked for it, and before the job's end.
    pub(crate) fn apart<T: Send + 'static>(
        &self,
        deed: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.others.spawn(deed)
    }

    /// Waits for what others did in a sandbox that is gone to be written down.
    pub(crate) async fn hear_others_out(&self) {
        self.others.close();
        if tokio::time::timeout(PATIENCE, self.others.wait()).await.is_err() {
            tracing::warn!(job = %self.job, "what others did in the sandbox is not all written down");
        }
    }

    /// Writes down that its holder lets go of the job.
    pub(crate) async fn release(&self) -> Result<(), StoreError> {
        self.append(vec![EventBody::Released { generation: self.generation }]).await
    }

    /// Lets go of the job because only newer programs can go on with it.
    pub(crate) async fn leave_to_newer(&self) -> Result<(), StoreError> {
        // In this order, so that a process which ends in between has not left it to its own kind.
        self.store.leave_to_newer(self.job, self.generation).await?;
        self.release().await
    }

    /// Stops the job where it stands, to be left to newer programs.
    pub(crate) fn stop_as_misread(&self) {
        self.stop.leave_to_newer();
    }

    /// A number that no checkpoint of the job ever had, whoever took it and whatever became of it: what lies
    /// under a number may be what later ones build on, in this sandbox and in those after it.
    pub(crate) fn next_checkpoint(&self) -> CheckpointNumber {
        let given = self.checkpoints.fetch_add(1, Ordering::Relaxed) + 1;
        CheckpointNumber(u64::from(self.generation.0) << 32 | u64::from(given))
    }

    /// Looks at the job as it stands by what was written under this claim.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&JobView) -> T) -> T {
        at(&self.lock().view)
    }

    /// How well what comes next is to be recorded.
    pub(crate) fn recording(&self) -> Recording {
        let known = self.lock();
        Recording::after(&known.view.spec.work, known.recorded_bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while it holds this lock")
    }
}
