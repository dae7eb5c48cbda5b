//! The loop: ask a mind for the next action, let the hands do it, until the mind is done.
//!
//! Knows no database, no HTTP server and no sandbox: hands are a trait.

mod playbook;

use async_trait::async_trait;
use bellglass_protocol::event::JobError;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::tool::ToolCall;

pub use playbook::Playbook;

/// Decides what to do next. A fixed list is a mind that is made up; a model is one that is not.
#[async_trait]
pub trait Mind: Send {
    async fn next_action(&mut self, done: &[DoneStep]) -> Action;
}

/// Does what the mind decides.
#[async_trait]
pub trait Hands: Send {
    /// Why the hands cannot go on at all. That a tool failed is not such a reason.
    type Stop: Send;

    /// Runs the step with this number to its end.
    async fn perform(&mut self, n: u32, call: ToolCall) -> Result<StepStatus, Self::Stop>;
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Call(ToolCall),
    /// Nothing more: the job is done, or cannot be done.
    Finish(Result<(), JobError>),
}

/// A step that lies behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoneStep {
    pub n: u32,
    pub status: StepStatus,
}

/// Drives a job to its end. `done` holds the steps that were done before, by an earlier worker.
pub async fn drive<H: Hands>(
    mind: &mut dyn Mind,
    hands: &mut H,
    mut done: Vec<DoneStep>,
) -> Result<Result<(), JobError>, H::Stop> {
    loop {
        match mind.next_action(&done).await {
            Action::Finish(conclusion) => return Ok(conclusion),
            Action::Call(call) => {
                let n = done.last().map_or(1, |step| step.n + 1);
                let status = hands.perform(n, call).await?;
                done.push(DoneStep { n, status });
            }
        }
    }
}
