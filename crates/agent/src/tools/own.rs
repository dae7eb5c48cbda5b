//! Tools that the loop answers itself: the plan, the job's own history, the user, the end.

use bellglass_protocol::model::{PlanStep, TaskOutcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A call of one of these tools, as a model writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "tool", rename_all = "snake_case")]
pub enum OwnCall {
    Plan(Plan),
    Recall(Recall),
    ReadHistory(ReadHistory),
    ReadOutput(ReadOutput),
    AskUser(AskUser),
    Finish(Finish),
}

impl OwnCall {
    pub const NAMES: [&str; 6] =
        ["plan", "recall", "read_history", "read_output", "ask_user", "finish"];
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The whole checklist, in order. It replaces the one before.
    #[schema(min_items = 1)]
    pub steps: Vec<PlanStep>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recall {
    /// Words to look for. Entries that hold all of them come first.
    pub query: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadHistory {
    /// Number of the first entry to read, as notes about left-out text and `recall` name it.
    pub from: u64,
    /// Number of the last entry to read; only the first one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// First byte to read of the first entry, for one that is too long to be shown whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOutput {
    /// Number of the step whose output to read.
    pub step: u32,
    /// First line to read, counted from 1; the beginning by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How many lines to read; 200 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// First byte to read, instead of lines: for output with very long lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskUser {
    /// One clear question, with the choices you see and what you would do by default.
    pub question: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// `done` if the task is fulfilled and you have seen it work; `impossible` if it cannot be.
    pub outcome: TaskOutcome,
    /// For the user: what you made, where it is, how you checked it, what is left open.
    pub summary: String,
}
