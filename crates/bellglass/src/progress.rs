//! How far a job is, as one line at the end of what a terminal shows. It is drawn anew after each event and
//! leaves nothing behind.

use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::job::Work;

/// Takes the last line away.
pub(crate) const ERASE: &str = "\r\x1b[2K";

const WIDTH: usize = 24;

/// What is known about a job's steps.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    total: Option<usize>,
    done: usize,
    failed: usize,
    /// What the job does now, if there is anything to wait for.
    now: Option<&'static str>,
}

impl Progress {
    pub(crate) fn take_in(&mut self, event: &Event) {
        match &event.body {
            EventBody::Scheduled { spec } => {
                if let Work::Steps(steps) = &spec.work {
                    self.total = Some(steps.len());
                }
                self.now = Some("waits");
            }
            EventBody::Claimed { .. } | EventBody::SandboxLost { .. } => {
                if matches!(event.body, EventBody::SandboxLost { .. }) {
                    (self.done, self.failed) = (0, 0);
                }
                self.now = Some("prepares the sandbox");
            }
            EventBody::StepStarted { .. } => self.now = Some("works"),
            EventBody::StepFinished { outcome, .. } => {
                self.done += 1;
                self.failed += usize::from(outcome.status.is_failure());
            }
            EventBody::SandboxReady { .. } | EventBody::Resumed { .. } => self.now = Some("works"),
            EventBody::Paused { .. } => self.now = Some("is paused"),
            EventBody::QuestionAsked { .. } | EventBody::ApprovalRequested { .. } => {
                self.now = Some("waits for you");
            }
            EventBody::ApprovalDecided { .. } | EventBody::MessageReceived { .. } => {
                self.now = Some("works");
            }
            EventBody::ModelAnswered { .. } => self.now = Some("works"),
            EventBody::CancelRequested { .. } | EventBody::ResultStored { .. } => {
                self.now = Some("packs up");
            }
            EventBody::Finished { .. } => self.now = None,
            _ => {}
        }
    }

    /// The line, without an end; `None` when there is nothing to wait for any more.
    pub(crate) fn line(&self) -> Option<String> {
        let now = self.now?;
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        Some(match self.total {
            Some(total) => {
                let full = (self.done.min(total) * WIDTH).checked_div(total).unwrap_or(WIDTH);
                let (full, rest) = ("━".repeat(full), "╌".repeat(WIDTH - full));
                format!("{full}{rest} {} of {total} steps{failed}; the job {now}", self.done)
            }
            None => {
                let steps = if self.done == 1 { "step" } else { "steps" };
                format!("{} {steps}{failed}; the job {now}", self.done)
            }
        })
    }
}
