//! One job's log as its holder writes it, and the job as far as the holder has come.

use std::sync::{Arc, Mutex};

use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::view::{JobView, StepView};
use bellglass_store::{ClaimedJob, Store, StoreError};

/// Appends to a job's log under one claim. Clones share what they know.
#[derive(Clone)]
pub(crate) struct JobLog {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) job: JobId,
    generation: Generation,
    /// Folded from what was written under this claim, so that it need not be read again. What
    /// others write meanwhile, such as a wish to cancel, is not in it.
    view: Arc<Mutex<JobView>>,
}

impl JobLog {
    pub(crate) fn new(store: Arc<dyn Store>, claimed: ClaimedJob) -> Self {
        let ClaimedJob { generation, view } = claimed;
        Self { store, job: view.job_id, generation, view: Arc::new(Mutex::new(view)) }
    }

    pub(crate) async fn append(&self, bodies: Vec<EventBody>) -> Result<(), StoreError> {
        let written = self.store.append(self.job, self.generation, bodies).await?;
        let mut view = self.view.lock().expect("no code panics while it holds this lock");
        written.iter().for_each(|sealed| view.apply(&sealed.event));
        Ok(())
    }

    /// A step as far as it has come.
    pub(crate) fn step(&self, n: u32) -> Option<StepView> {
        let view = self.view.lock().expect("no code panics while it holds this lock");
        view.steps.iter().find(|step| step.n == n).cloned()
    }

    /// The job as it stands by what was written under this claim.
    pub(crate) fn view(&self) -> JobView {
        self.view.lock().expect("no code panics while it holds this lock").clone()
    }
}
