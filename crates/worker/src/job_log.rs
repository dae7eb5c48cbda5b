//! One job's log as its holder writes it, and the job as far as the holder has come.

use std::sync::{Arc, Mutex};

use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::view::JobView;
use bellglass_store::{ClaimedJob, Store, StoreError, is_recording};

use crate::recording::Recording;

/// Appends to a job's log under one claim. Clones share what they know.
#[derive(Clone)]
pub(crate) struct JobLog {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
    known: Arc<Mutex<Known>>,
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
        Self { store, job, generation, known: Arc::new(Mutex::new(Known { view, recorded_bytes })) }
    }

    pub(crate) async fn append(&self, bodies: Vec<EventBody>) -> Result<(), StoreError> {
        let written = self.store.append(self.job, self.generation, bodies).await?;
        let mut known = self.lock();
        for sealed in &written {
            known.view.apply_briefly(&sealed.event);
            if is_recording(&sealed.event.body) {
                known.recorded_bytes += sealed.line.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes down that its holder lets go of the job.
    pub(crate) async fn release(&self) -> Result<(), StoreError> {
        self.append(vec![EventBody::Released { generation: self.generation }]).await
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
