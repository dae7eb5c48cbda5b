//! A mind that is made up: a fixed list of steps.

use async_trait::async_trait;
use bellglass_protocol::event::JobError;
use bellglass_protocol::job::OnError;
use bellglass_protocol::tool::ToolCall;

use crate::{Action, DoneStep, Mind};

/// Runs its steps in order, and stops or goes on at a failure as the job says.
pub struct Playbook {
    steps: Vec<ToolCall>,
    on_error: OnError,
}

impl Playbook {
    pub fn new(steps: Vec<ToolCall>, on_error: OnError) -> Self {
        Self { steps, on_error }
    }

    fn decide(&self, done: &[DoneStep]) -> Action {
        if let Some(last) = done.last()
            && self.on_error == OnError::Stop
            && last.status.is_failure()
        {
            return Action::Finish(Err(JobError {
                code: "step_failed".into(),
                message: format!("step {} failed, and the job stops at a failure", last.n),
            }));
        }
        match self.steps.get(done.len()) {
            Some(call) => Action::Call(call.clone()),
            None => Action::Finish(Ok(())),
        }
    }
}

#[async_trait]
impl Mind for Playbook {
    async fn next_action(&mut self, done: &[DoneStep]) -> Action {
        self.decide(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hands, drive};
    use bellglass_protocol::step::StepStatus::{self, Failed, Succeeded};

    struct Scripted {
        results: Vec<StepStatus>,
        performed: Vec<(u32, String)>,
    }

    #[async_trait]
    impl Hands for Scripted {
        type Stop = String;

        async fn perform(&mut self, n: u32, call: ToolCall) -> Result<StepStatus, String> {
            self.performed.push((n, call.arguments()["command"].as_str().unwrap().into()));
            Ok(self.results.remove(0))
        }
    }

    async fn run(
        on_error: OnError,
        results: &[StepStatus],
        done: Vec<DoneStep>,
    ) -> (Vec<(u32, String)>, Option<String>) {
        let steps = ["a", "b", "c"].map(shell);
        let mut mind = Playbook::new(steps.into(), on_error);
        let mut hands = Scripted { results: results.to_vec(), performed: vec![] };
        let end = drive(&mut mind, &mut hands, done).await.unwrap();
        (hands.performed, end.err().map(|error| error.code))
    }

    fn shell(command: &str) -> ToolCall {
        ToolCall::Shell(bellglass_protocol::tool::Shell {
            command: command.into(),
            ..Default::default()
        })
    }

    fn names(performed: &[(u32, String)]) -> String {
        performed.iter().map(|(n, name)| format!("{n}{name} ")).collect()
    }

    #[tokio::test]
    async fn goes_on_or_stops_at_a_failure() {
        let (performed, error) =
            run(OnError::Continue, &[Succeeded, Failed, Succeeded], vec![]).await;
        assert_eq!((names(&performed).as_str(), error), ("1a 2b 3c ", None));
        let (performed, error) = run(OnError::Stop, &[Succeeded, Failed], vec![]).await;
        assert_eq!((names(&performed).as_str(), error.as_deref()), ("1a 2b ", Some("step_failed")));
    }

    #[tokio::test]
    async fn goes_on_where_another_left_off() {
        let done = vec![DoneStep { n: 1, status: Succeeded }, DoneStep { n: 2, status: Failed }];
        let (performed, _) = run(OnError::Continue, &[Succeeded], done).await;
        assert_eq!(names(&performed), "3c ");
    }
}
