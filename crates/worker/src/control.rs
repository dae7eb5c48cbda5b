//! Who works with a sandbox's desktop: the job, or a person who took over.
//!
//! A person has the desktop for as long as something of the person's is connected, so nobody who
//! leaves can keep a job waiting. Steps that are under way go on; the next ones wait.

use std::sync::Arc;

use bellglass_protocol::event::EventBody;
use bellglass_protocol::tool::ToolCall;
use bellglass_store::StoreError;
use tokio::sync::watch;

use crate::job_log::JobLog;
use crate::live::LiveError;

#[derive(Clone)]
pub(crate) struct DesktopControl {
    log: JobLog,
    holder: Arc<watch::Sender<Option<String>>>,
}

/// The desktop in a person's hands. Dropping it hands the desktop back.
pub struct Taken {
    control: DesktopControl,
    by: String,
}

impl DesktopControl {
    pub(crate) fn new(log: JobLog) -> Self {
        Self { log, holder: Arc::new(watch::Sender::new(None)) }
    }

    pub(crate) async fn take(&self, by: &str) -> Result<Taken, LiveError> {
        let mut other = None;
        self.holder.send_if_modified(|holder| match holder {
            Some(holder) => {
                other = Some(holder.clone());
                false
            }
            None => {
                *holder = Some(by.into());
                true
            }
        });
        if let Some(other) = other {
            return Err(LiveError::Taken(other));
        }
        let (control, by) = (self.clone(), by.to_owned());
        // Apart from whoever asked: if they are gone before it is written down, nobody takes what comes
        // of this, and the desktop goes back with it.
        let taking = tokio::spawn(async move {
            match control.log.append(vec![EventBody::DesktopTaken { by: by.clone() }]).await {
                Ok(()) => Ok(Taken { control, by }),
                Err(error) => {
                    // What is not written down has not happened.
                    control.holder.send_replace(None);
                    Err(error)
                }
            }
        });
        Ok(taking.await.expect("nobody ends this task, and nothing in it panics")?)
    }

    /// Ends what a person had begun under a worker that is gone: the connection went with it. Who has the
    /// desktop here keeps it.
    pub(crate) async fn take_back(&self) -> Result<(), StoreError> {
        if self.is_taken() {
            return Ok(());
        }
        match self.log.look(|view| view.desktop_taken_by.clone()) {
            Some(by) => self.log.append(vec![EventBody::DesktopReturned { by }]).await,
            None => Ok(()),
        }
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.holder.borrow().is_some()
    }

    /// Returns once the desktop is the job's.
    pub(crate) async fn returned(&self) {
        // It cannot be closed while this lives.
        let _ = self.holder.subscribe().wait_for(Option::is_none).await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (control, by) = (self.control.clone(), std::mem::take(&mut self.by));
        tokio::spawn(async move {
            // First the word, then the deed: the job's next step finds it in the log. A job that
            // ended meanwhile takes no more words, and waits for nothing.
            let _ = control.log.append(vec![EventBody::DesktopReturned { by }]).await;
            control.holder.send_replace(None);
        });
    }
}

/// Whether a call works with the mouse, the keyboard or the browser that the person has.
pub(crate) fn needs_desktop(call: &ToolCall) -> bool {
    use ToolCall::*;
    matches!(call, Screenshot(_) | Computer(_) | Xdot(_) | Browser(_))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellglass_protocol::id::WorkerId;
    use bellglass_protocol::job::{IsolationLevel, Limits};
    use bellglass_protocol::model_offer::ModelOffer;
    use bellglass_protocol::request::{JobRequest, Offer};
    use bellglass_store::{SqliteStore, Store};
    use futures::FutureExt as _;

    use super::*;

    /// The desktop of a job that was just claimed.
    async fn desktop(folder: &std::path::Path) -> DesktopControl {
        let store = Arc::new(SqliteStore::open(&folder.join("jobs.db")).await.unwrap());
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
        store.schedule(job.unwrap().into_spec(&offer).unwrap()).await.unwrap();
        let worker = WorkerId::new("worker");
        let claimed = store.claim_next_job(&worker, Duration::from_secs(60)).await.unwrap();
        let claimed = claimed.expect("a job waits");
        DesktopControl::new(JobLog::new(store, claimed))
    }

    async fn said(control: &DesktopControl) -> Vec<String> {
        let events = control.log.store.events_after(control.log.job, 0, 100).await.unwrap();
        let events = events.into_iter().filter_map(|sealed| match sealed.event.body {
            EventBody::DesktopTaken { by } => Some(format!("{by} took it")),
            EventBody::DesktopReturned { by } => Some(format!("{by} returned it")),
            _ => None,
        });
        events.collect()
    }

    /// Waits as the job's next step does; the time is only for when it would wait for ever.
    async fn is_the_jobs_again(control: &DesktopControl) {
        let returned = tokio::time::timeout(Duration::from_secs(30), control.returned()).await;
        returned.expect("nobody has the desktop, so the job has it");
    }

    #[tokio::test]
    async fn who_has_taken_a_desktop_has_it_until_they_let_go_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let control = desktop(folder.path()).await;
        let taken = control.take("ada").await.unwrap();
        assert!(control.is_taken());
        assert!(matches!(control.take("bob").await, Err(LiveError::Taken(by)) if by == "ada"));
        drop(taken);
        is_the_jobs_again(&control).await;
        assert_eq!(said(&control).await, ["ada took it", "ada returned it"]);
    }

    /// As it does when the database was away for so long that the job waited for it.
    #[tokio::test]
    async fn who_has_the_desktop_keeps_it_when_the_work_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let control = desktop(folder.path()).await;
        let taken = control.take("ada").await.unwrap();
        control.take_back().await.unwrap();
        assert!(control.is_taken());
        assert_eq!(said(&control).await, ["ada took it"]);
        drop(taken);
        is_the_jobs_again(&control).await;
        // Another worker finds it taken in the log, and nobody here who has it.
        control.log.append(vec![EventBody::DesktopTaken { by: "bob".into() }]).await.unwrap();
        control.take_back().await.unwrap();
        let all = ["ada took it", "ada returned it", "bob took it", "bob returned it"];
        assert_eq!(said(&control).await, all);
    }

    #[tokio::test]
    async fn who_leaves_while_the_taking_is_written_down_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let control = desktop(folder.path()).await;
        // Asked once, it has begun and waits for the store; then nobody asks any more.
        assert!(control.take("ada").now_or_never().is_none());
        assert!(control.is_taken());
        is_the_jobs_again(&control).await;
        assert_eq!(said(&control).await, ["ada took it", "ada returned it"]);
        assert!(control.take("bob").await.is_ok());
    }

    #[tokio::test]
    async fn what_cannot_be_written_down_has_not_happened() {
        let folder = tempfile::tempdir().unwrap();
        let control = desktop(folder.path()).await;
        // Another worker has the job now, so this one writes nothing any more.
        let store = &control.log.store;
        let other = WorkerId::new("other");
        store.release_leases(&WorkerId::new("worker")).await.unwrap();
        store.claim_next_job(&other, Duration::from_secs(60)).await.unwrap().unwrap();
        assert!(matches!(control.take("ada").await, Err(LiveError::Store(_))));
        assert!(!control.is_taken());
    }
}
