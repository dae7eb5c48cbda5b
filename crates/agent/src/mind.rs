//! What a mind is: something that hears of everything that happened and says what to do next.

use bellglass_protocol::event::{Event, EventBody, JobError};
use bellglass_protocol::tool::ToolCall;
use jiff::Timestamp;

use crate::context::Context;
use crate::context::compaction::Draft;
use crate::model::Request;
use crate::tools::own::{ReadHistory, ReadOutput, Recall};

/// Decides what to do next. A fixed list is a mind that is made up; a model is one that is not.
///
/// Pure: a state that is folded from the job's events, and what follows from it.
pub trait Mind: Send {
    /// Hears of the next event of the job's log.
    fn take_in(&mut self, event: &Event);

    /// What to do, having heard of everything so far.
    fn next(&self, now: Timestamp) -> Effect;

    /// The conversation with a model, for a mind that has one.
    fn snapshot(&self) -> Option<&Context>;
}

/// What to do next. Whatever comes of it is an event that the mind will hear of.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Run a tool in the sandbox as the step with this number.
    Perform { n: u32, call: ToolCall },
    /// Write down what is decided.
    Record(Vec<EventBody>),
    /// Look something up in the job's own history, for a call of the model's.
    Look { call_id: String, tool: String, lookup: Lookup },
    /// Have a tool that is not ours do something, for a call of the model's.
    CallOther { call_id: String, tool: String, arguments: serde_json::Value },
    /// Look for what earlier tasks of a project left, and write it down.
    Remember { project: String, about: String },
    /// Ask the model what is worth keeping for later tasks of a project, and write it down.
    Extract { project: String, request: Request },
    /// Ask the model.
    Ask(Request),
    /// Make the conversation smaller, with a summary if there is a request for one.
    Compact { draft: Box<Draft>, request: Option<Request> },
    /// Nothing, until somebody writes to the log. The job's time stands still.
    Wait,
    /// Nothing, until somebody writes to the log, while the job's time goes on.
    Idle,
    /// Nothing more: the job is done, or cannot be done.
    Finish(Result<(), JobError>),
}

/// What to look up.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    Recall(Recall),
    History(ReadHistory),
    Output(ReadOutput),
}
