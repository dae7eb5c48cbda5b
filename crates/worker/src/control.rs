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
        self.log.append(vec![EventBody::DesktopTaken { by: by.into() }]).await.inspect_err(
            // What is not written down has not happened.
            |_| drop(self.holder.send_replace(None)),
        )?;
        Ok(Taken { control: self.clone(), by: by.into() })
    }

    /// Ends what a person had begun under a worker that is gone: the connection went with it.
    pub(crate) async fn take_back(&self) -> Result<(), StoreError> {
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
    matches!(call, ToolCall::Computer(_) | ToolCall::Xdot(_) | ToolCall::Browser(_))
}
