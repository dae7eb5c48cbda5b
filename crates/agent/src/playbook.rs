//! A mind that is made up: a fixed list of steps.

use bellglass_protocol::event::{Event, EventBody, JobError};
use bellglass_protocol::job::OnError;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::tool::ToolCall;
use jiff::Timestamp;

use crate::context::Context;
use crate::mind::{Effect, Mind};

/// Runs its steps in order, and stops or goes on at a failure as the job says.
pub struct Playbook {
    steps: Vec<ToolCall>,
    on_error: OnError,
    /// How the steps ended that are done.
    done: Vec<StepStatus>,
    running: bool,
    paused: bool,
}

impl Playbook {
    pub fn new(steps: Vec<ToolCall>, on_error: OnError) -> Self {
        Self { steps, on_error, done: Vec::new(), running: false, paused: false }
    }
}

impl Mind for Playbook {
    fn take_in(&mut self, event: &Event) {
        match &event.body {
            EventBody::SandboxLost { kept, .. } => {
                self.done.truncate(kept.unwrap_or_default() as usize);
                self.running = false;
            }
            EventBody::StepStarted { .. } => self.running = true,
            EventBody::StepFinished { outcome, .. } => {
                self.done.push(outcome.status);
                self.running = false;
            }
            EventBody::Paused { .. } => self.paused = true,
            EventBody::Resumed { .. } => self.paused = false,
            _ => {}
        }
    }

    fn next(&self, _: Timestamp) -> Effect {
        if let Some(last) = self.done.last()
            && self.on_error == OnError::Stop
            && last.is_failure()
        {
            let n = self.done.len();
            return Effect::Finish(Err(JobError {
                code: "step_failed".into(),
                message: format!("step {n} failed, and the job stops at a failure"),
            }));
        }
        let n = self.done.len();
        match self.steps.get(n) {
            Some(_) if self.paused && !self.running => Effect::Wait,
            Some(call) => Effect::Perform { n: n as u32 + 1, call: call.clone() },
            None => Effect::Finish(Ok(())),
        }
    }

    fn snapshot(&self) -> Option<&Context> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::id::JobId;
    use bellglass_protocol::step::StepOutcome;
    use bellglass_protocol::step::StepStatus::{Failed, Interrupted, Succeeded};
    use bellglass_protocol::tool::Shell;

    fn shell(command: &str) -> ToolCall {
        let command = command.into();
        ToolCall::Shell(Shell { command, ..Default::default() })
    }

    fn event(body: EventBody) -> Event {
        Event { seq: 1, at: Timestamp::UNIX_EPOCH, job: JobId::generate(), body }
    }

    fn finished(n: u32, status: StepStatus) -> Event {
        let outcome = StepOutcome {
            status,
            exit_code: None,
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
            output: String::new(),
            output_bytes: 0,
            dropped_bytes: 0,
            unkept_bytes: 0,
            full_output: None,
            attachments: Vec::new(),
            error: None,
            duration_ms: 0,
        };
        event(EventBody::StepFinished { n, outcome: Box::new(outcome) })
    }

    /// What the playbook a, b, c does after steps that ended so.
    fn next(on_error: OnError, done: &[StepStatus], more: &[Event]) -> String {
        let mut mind = Playbook::new(["a", "b", "c"].map(shell).into(), on_error);
        done.iter()
            .enumerate()
            .for_each(|(at, status)| mind.take_in(&finished(at as u32 + 1, *status)));
        more.iter().for_each(|event| mind.take_in(event));
        match mind.next(Timestamp::UNIX_EPOCH) {
            Effect::Perform { n, call } => {
                format!("{n}{}", call.arguments()["command"].as_str().unwrap())
            }
            Effect::Finish(Err(error)) => error.code,
            Effect::Finish(Ok(())) => "done".into(),
            Effect::Wait => "wait".into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn goes_on_or_stops_at_a_failure() {
        assert_eq!(next(OnError::Continue, &[], &[]), "1a");
        assert_eq!(next(OnError::Continue, &[Succeeded, Failed], &[]), "3c");
        assert_eq!(next(OnError::Continue, &[Succeeded, Failed, Succeeded], &[]), "done");
        assert_eq!(next(OnError::Stop, &[Succeeded, Failed], &[]), "step_failed");
    }

    #[test]
    fn begins_again_in_a_new_sandbox_and_waits_while_paused() {
        let lost = event(EventBody::SandboxLost { reason: "x".into(), kept: None });
        assert_eq!(next(OnError::Stop, &[Succeeded, Failed], &[lost]), "1a");
        let lost = |kept| event(EventBody::SandboxLost { reason: "x".into(), kept: Some(kept) });
        let done = [Succeeded, Interrupted];
        assert_eq!(next(OnError::Continue, &done, &[lost(2)]), "3c");
        assert_eq!(next(OnError::Stop, &done, &[lost(2)]), "step_failed");
        assert_eq!(next(OnError::Stop, &done, &[lost(1)]), "2b");
        let paused = event(EventBody::Paused { by: "x".into() });
        let started = event(EventBody::StepStarted { n: 2, call: shell("b") });
        let resumed = event(EventBody::Resumed { by: "x".into() });
        assert_eq!(next(OnError::Stop, &[Succeeded], std::slice::from_ref(&paused)), "wait");
        assert_eq!(next(OnError::Stop, &[Succeeded], &[started, paused.clone()]), "2b");
        assert_eq!(next(OnError::Stop, &[Succeeded], &[paused, resumed]), "2b");
    }
}
