//! How far a job is, as one line at the end of what a terminal shows. It is drawn anew after each event and
//! leaves nothing behind.

use std::collections::BTreeMap;

use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::job::Work;

/// Takes the last line away.
pub(crate) const ERASE: &str = "\r\x1b[2K";

const WIDTH: usize = 24;

/// What is known about a job's steps.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    total: Option<usize>,
    /// The steps that are over and count, each with whether it failed.
    over: BTreeMap<u32, bool>,
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
            EventBody::Claimed { .. } => self.now = Some("prepares the sandbox"),
            EventBody::SandboxLost { kept, .. } => {
                self.over.retain(|n, _| kept.is_some_and(|kept| *n <= kept));
                self.now = Some("prepares the sandbox");
            }
            EventBody::StepStarted { .. } => self.now = Some("works"),
            EventBody::StepFinished { n, outcome, .. } => {
                self.over.insert(*n, outcome.status.is_failure());
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
        let done = self.over.len();
        let failed = match self.over.values().filter(|failed| **failed).count() {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        Some(match self.total {
            Some(total) => {
                let full = (done.min(total) * WIDTH).checked_div(total).unwrap_or(WIDTH);
                let (full, rest) = ("━".repeat(full), "╌".repeat(WIDTH - full));
                format!("{full}{rest} {done} of {total} steps{failed}; the job {now}")
            }
            None => {
                let steps = if done == 1 { "step" } else { "steps" };
                format!("{done} {steps}{failed}; the job {now}")
            }
        })
    }
}

/// As much of a line as fits into one row of a terminal, where it is known how wide that is.
pub(crate) fn cut(line: String, columns: Option<u16>) -> String {
    match columns {
        Some(columns) => line.chars().take(columns.into()).collect(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn after(events: &[Value]) -> String {
        let mut progress = Progress::default();
        for (at, body) in events.iter().enumerate() {
            let mut event = json!({
                "seq": at + 1, "at": "2026-01-01T00:00:00Z",
                "job": "01890a5d-ac96-774b-bcce-b302099a8057",
            });
            event.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            progress.take_in(&serde_json::from_value(event).unwrap());
        }
        progress.line().unwrap()
    }

    fn finished(n: u32, status: &str) -> Value {
        let outcome = json!({
            "status": status, "exit_code": 0, "signal": null, "stdout": "", "stderr": "",
            "output": "", "output_bytes": 0, "dropped_bytes": 0, "full_output": null,
            "attachments": [], "error": null, "duration_ms": 7,
        });
        json!({ "type": "step.finished", "n": n, "outcome": outcome })
    }

    #[test]
    fn a_line_is_no_wider_than_the_terminal() {
        assert_eq!(cut("━━━ 3".into(), Some(4)), "━━━ ");
        assert_eq!(cut("━━━ 3".into(), Some(5)), "━━━ 3");
        assert_eq!(cut("━━━ 3".into(), None), "━━━ 3");
    }

    #[test]
    fn what_a_lost_sandbox_leaves_still_counts() {
        let lost = |kept: Option<u32>| {
            let mut lost = json!({ "type": "sandbox.lost", "reason": "gone" });
            if let Some(kept) = kept {
                lost["kept"] = kept.into();
            }
            lost
        };
        let mut events = vec![
            json!({ "type": "claimed", "worker": "w", "generation": 1 }),
            finished(1, "failed"),
            finished(2, "succeeded"),
            finished(3, "failed"),
        ];
        assert_eq!(after(&events), "3 steps, 2 failed; the job prepares the sandbox");
        events.push(lost(Some(2)));
        assert_eq!(after(&events), "2 steps, 1 failed; the job prepares the sandbox");
        // The third is done again.
        events.push(finished(3, "succeeded"));
        assert_eq!(after(&events), "3 steps, 1 failed; the job prepares the sandbox");
        events.push(lost(None));
        assert_eq!(after(&events), "0 steps; the job prepares the sandbox");
    }
}
