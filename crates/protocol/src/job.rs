//! A job as it is accepted: what to do, under which limits. Never changes once scheduled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointNumber;
use crate::id::JobId;
use crate::mcp::McpServer;
use crate::network::NetworkPolicy;
use crate::quantity::{ByteSize, Seconds};
use crate::stored::tolerant;
use crate::tool::{self, Encoding, ToolCall};

/// Everything that was decided about a job when it was accepted.
//
// It is read from the store alone, so fields that only a newer program knows are passed over. Whether that
// program's job can be carried out here is said beside it, in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(flatten)]
    pub work: Work,
    pub on_error: OnError,
    pub priority: Priority,
    pub image: String,
    #[serde(deserialize_with = "tolerant")]
    pub limits: Limits,
    pub network: NetworkPolicy,
    /// The least isolation that the job accepts.
    pub isolation: IsolationLevel,
    /// Whether tools may make user namespaces of their own, as a browser's own sandbox does.
    #[serde(default, skip_serializing_if = "is_off")]
    pub nested_sandboxing: bool,
    /// The screen of the desktop that runs from the beginning on, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "tolerant")]
    pub desktop: Option<Screen>,
    /// Secrets of this installation that the job may use, by the environment variable that stands
    /// for each inside. These are names; no value is ever part of a job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Files that lie in the workspace when the job starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "tolerant")]
    pub files: Vec<InitialFile>,
    /// The model that works on a task, such as `openai/gpt-5.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Budget::is_unlimited", deserialize_with = "tolerant")]
    pub budget: Budget,
    #[serde(default, skip_serializing_if = "PlanMode::is_straight")]
    pub plan: PlanMode,
    /// MCP servers whose tools the model may use, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "tolerant")]
    pub mcp: BTreeMap<String, McpServer>,
    /// Tools whose every call waits for the user's approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// The project whose memories the task reads and adds to; none if it does neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The user whose job it is; none where the server has no users, or its operator scheduled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The step of another job that this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
}

/// Where a fork leaves another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fork {
    pub job: JobId,
    /// The workspace is what it was after this step; 0 is before the first.
    pub step: u32,
    /// The checkpoint that holds it; without one it was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointNumber>,
    /// The model has heard the other job's log up to this event, and goes on from there. Without it
    /// the fork begins with the files alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<u64>,
}

/// A sandbox that is used from outside, over MCP. It has no wishes of its own so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Session {}

/// Whether the user wants to see a task's plan before anything is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanMode {
    /// The model plans and goes straight on.
    #[default]
    Straight,
    /// The job pauses when the plan is written. Resuming approves it; a message changes it.
    Review,
}

impl PlanMode {
    fn is_straight(&self) -> bool {
        *self == Self::Straight
    }
}

fn is_off(option: &bool) -> bool {
    !option
}

/// The size of a desktop, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Screen {
    pub width: u16,
    pub height: u16,
}

impl Screen {
    pub const SMALLEST: u16 = 320;
    pub const LARGEST: u16 = 4096;
}

impl Default for Screen {
    /// Large enough for today's pages, and what models look at best.
    fn default() -> Self {
        Self { width: 1280, height: 800 }
    }
}

/// What the job is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A task in natural language, for a model.
    Task(String),
    /// A fixed list of tool calls.
    #[serde(deserialize_with = "tool::stored_calls")]
    Steps(Vec<ToolCall>),
    /// Nothing by itself: the sandbox is there for whoever uses it at `/jobs/{id}/mcp`, until the job
    /// is cancelled or its time is up.
    #[serde(deserialize_with = "tolerant")]
    Session(Session),
}

/// What a failing step does to the rest of a steps job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The failure is recorded and the next step runs.
    #[default]
    Continue,
    /// The job ends as `failed`.
    Stop,
}

/// Jobs with a higher priority are claimed first; among equals, the older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Priority(pub i32);

impl Priority {
    pub const LOWEST: i32 = -100;
    pub const HIGHEST: i32 = 100;
}

/// How strongly a sandbox is separated from the host; each level includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum IsolationLevel {
    /// Linux namespaces, a system-call filter and resource limits.
    #[default]
    Namespace,
    /// A kernel of its own in user space.
    Gvisor,
    /// A virtual machine of its own.
    Microvm,
}

/// A file put into the workspace before the first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InitialFile {
    pub path: String,
    pub content: String,
    #[serde(default)]
    pub encoding: Encoding,
    #[serde(default)]
    pub executable: bool,
}

/// What a job may use up. Every limit always has a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory of all processes together, the files in the sandbox included.
    pub memory: ByteSize,
    /// What the sandbox may write to its root and its workspace. Up to half of `memory` it is held
    /// there; more is reserved on the host's disk.
    pub disk: ByteSize,
    /// Processes and threads at once.
    pub processes: u32,
    /// CPU time per second of wall-clock time; 1.5 is one and a half cores.
    pub cpus: f64,
    /// Open files of one process.
    pub open_files: u32,
    /// Wall-clock time of the whole job, from its first step on. Packing the result is not counted.
    pub time: Seconds,
    /// Wall-clock time of one step, unless the step names its own.
    pub step_time: Seconds,
    /// Output of one step that is kept in full; what comes after is counted and dropped.
    pub output: ByteSize,
    /// Output of all steps together that is kept in full, beside what their records hold.
    pub total_output: ByteSize,
    /// What the checkpoints of the workspace hold together; with 0 there are none.
    pub checkpoints: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize::gib(4),
            disk: ByteSize::gib(2),
            processes: 512,
            cpus: 2.0,
            open_files: 4096,
            time: Seconds::whole(3600),
            step_time: Seconds::whole(600),
            output: ByteSize::mib(64),
            total_output: ByteSize::gib(1),
            checkpoints: ByteSize::gib(1),
        }
    }
}

/// What a task may spend. Looked at before every call; never exceeded by more than the call under
/// way. What is not named is not bounded here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Tool calls in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Tokens that models read and write, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money for models, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Wall-clock time since the sandbox was ready, without pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Seconds>,
    /// Output of all steps together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<ByteSize>,
}

impl Budget {
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// This budget, with the other's bounds where it has none of its own.
    pub fn or(self, other: Self) -> Self {
        Self {
            steps: self.steps.or(other.steps),
            tokens: self.tokens.or(other.tokens),
            usd: self.usd.or(other.usd),
            time: self.time.or(other.time),
            output: self.output.or(other.output),
        }
    }
}

/// The name of the image that jobs start from unless they name another.
pub const DEFAULT_IMAGE: &str = "base";

/// The name of the image that jobs with a desktop start from unless they name another.
pub const DESKTOP_IMAGE: &str = "desktop";

/// The command that makes an image of this name.
pub fn image_build_command(name: &str) -> &'static str {
    match name {
        DEFAULT_IMAGE => "bellglass image build",
        DESKTOP_IMAGE => "bellglass image build desktop",
        _ => "bellglass image build --recipe FILE",
    }
}
