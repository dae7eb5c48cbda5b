//! Events: the one history of a job, from which everything else about it is read.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::approval::{Approval, Decision};
use crate::checkpoint::{Changes, CheckpointNumber};
use crate::id::{Generation, JobId, WorkerId};
use crate::job::JobSpec;
use crate::model::{Compaction, ModelAnswer, PlanStep, TaskOutcome, Usage};
use crate::network::{Connection, NetworkPolicy};
use crate::report::SandboxReport;
use crate::step::{OutputStream, StepOutcome};
use crate::tool::{self, ToolCall};
use crate::tunnel::LivePlace;
use crate::unknown::UnknownRecord;

/// One line of a job's history. A newer program may have written kinds that are not listed here; they come as
/// they stand in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Counts from 1 without gaps.
    pub seq: u64,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    pub job: JobId,
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened. Fields may be added to a kind; none ever changes its meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type")]
pub enum EventBody {
    /// The job was accepted. Always the first event.
    #[serde(rename = "scheduled")]
    Scheduled { spec: Box<JobSpec> },
    /// A worker took the job.
    #[serde(rename = "claimed")]
    Claimed { worker: WorkerId, generation: Generation },
    /// The worker that held the job let go of it, because it was told to end. The job goes on in
    /// other hands.
    #[serde(rename = "released")]
    Released { generation: Generation },
    /// The sandbox runs; says what is enforced in it.
    #[serde(rename = "sandbox.ready")]
    SandboxReady { report: Box<SandboxReport> },
    /// The sandbox is gone though the job was not at its end. The job goes on in a new one.
    #[serde(rename = "sandbox.lost")]
    SandboxLost {
        reason: String,
        /// The last step that still counts, because its files are kept. All after it is void;
        /// without a number everything is, and the job starts again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<u32>,
    },
    /// The workspace as it is after a step is safe, so it can be had again.
    #[serde(rename = "checkpoint.stored")]
    CheckpointStored {
        step: u32,
        checkpoint: CheckpointNumber,
        #[serde(flatten)]
        changes: Changes,
        /// Bytes that were not in an earlier checkpoint.
        bytes: u64,
        /// How long it took, in microseconds, the flush to the disk included.
        took_us: u64,
        /// Files that could not be kept, with the reason; at most the first ten.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
    },
    /// What a step did to the workspace could not be kept, nor is what comes after it until the next
    /// checkpoint.
    #[serde(rename = "checkpoint.skipped")]
    CheckpointSkipped { step: u32, reason: String },
    /// Somebody wants the workspace to be again what it was after a step.
    #[serde(rename = "restore.requested")]
    RestoreRequested { step: u32, by: String },
    /// The workspace holds what it held after a step: in a new sandbox, or because somebody wanted it.
    #[serde(rename = "workspace.restored")]
    WorkspaceRestored {
        /// The job whose step it is, if it is another one's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<JobId>,
        step: u32,
        why: RestoreCause,
        /// What the workspace is known as from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint: Option<CheckpointNumber>,
        /// Files, folders and symlinks that it has.
        entries: u64,
    },
    /// The workspace could not be restored as somebody wanted.
    #[serde(rename = "restore.failed")]
    RestoreFailed { step: u32, reason: String },
    #[serde(rename = "step.started")]
    StepStarted {
        n: u32,
        #[serde(deserialize_with = "tool::stored_call")]
        call: ToolCall,
    },
    /// A piece of a step's output, while it runs. Only the head of long output comes this way.
    #[serde(rename = "step.output")]
    StepOutput { n: u32, stream: OutputStream, text: String },
    #[serde(rename = "step.finished")]
    StepFinished { n: u32, outcome: Box<StepOutcome> },
    /// The sandbox connected to the world, or was refused. `count` times within a moment.
    #[serde(rename = "network.connection")]
    NetworkConnection {
        #[serde(flatten)]
        connection: Connection,
        count: u64,
    },
    /// A model was asked and gave a whole answer.
    #[serde(rename = "model.answered")]
    ModelAnswered {
        answer: Box<ModelAnswer>,
        /// The last event that the model knew of when it was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heard: Option<u64>,
    },
    /// A model was asked and gave no whole answer. Without `retry_in_ms` it is not asked again.
    #[serde(rename = "model.failed")]
    ModelFailed {
        model: String,
        error: JobError,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_ms: Option<u64>,
        /// What it had used by then, as far as it said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// A model's tool call was answered without a step in the sandbox.
    #[serde(rename = "tool.answered")]
    ToolAnswered { call_id: String, tool: String, output: String, failed: bool },
    /// The tools of an MCP server can be used.
    #[serde(rename = "mcp.connected")]
    McpConnected { server: String, tools: Vec<String> },
    /// A model's call of a tool that is not the sandbox's begins.
    #[serde(rename = "tool.started")]
    ToolStarted { call_id: String, tool: String, arguments: String },
    /// Somebody else than the job's mind used a tool of the sandbox.
    #[serde(rename = "tool.used")]
    ToolUsed {
        by: String,
        #[serde(deserialize_with = "tool::stored_call")]
        call: ToolCall,
        outcome: Box<StepOutcome>,
    },
    /// Somebody else than the job's mind put a file into the workspace, or replaced one.
    #[serde(rename = "file.written")]
    FileWritten { by: String, path: String, bytes: u64, sha256: String },
    /// Somebody else than the job's mind deleted a file or a folder of the workspace.
    #[serde(rename = "file.deleted")]
    FileDeleted { by: String, path: String },
    /// A person looked at something inside the sandbox, or worked on it.
    #[serde(rename = "live.opened")]
    LiveOpened { by: String, place: LivePlace },
    /// A person works with the desktop. Calls of the job that would do so wait.
    #[serde(rename = "desktop.taken")]
    DesktopTaken { by: String },
    /// The desktop is the job's again.
    #[serde(rename = "desktop.returned")]
    DesktopReturned { by: String },
    /// A call, or a connection, waits until the user allows it.
    #[serde(rename = "approval.requested")]
    ApprovalRequested { approval: Approval },
    /// The user decided about what waits.
    #[serde(rename = "approval.decided")]
    ApprovalDecided {
        id: String,
        decision: Decision,
        by: String,
        /// What the user says to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words: Option<String>,
    },
    /// What a model has said, since the last time, of an answer that is not whole yet.
    #[serde(rename = "model.said")]
    ModelSaid { text: String },
    /// Something worth knowing in later tasks of the project was kept.
    #[serde(rename = "memory.kept")]
    MemoryKept {
        project: String,
        texts: Vec<String>,
        /// What the model used that was asked for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// What earlier tasks of the project left, as far as it may matter now.
    #[serde(rename = "memory.recalled")]
    MemoryRecalled { project: String, texts: Vec<String> },
    /// The model wrote down what it is going to do, and how far it is.
    #[serde(rename = "plan.updated")]
    PlanUpdated {
        #[serde(deserialize_with = "crate::stored::tolerant")]
        steps: Vec<PlanStep>,
    },
    /// The model asks the user something, and waits for the next message.
    #[serde(rename = "question.asked")]
    QuestionAsked { call_id: String, question: String },
    /// The user said something to the model.
    #[serde(rename = "message.received")]
    MessageReceived { by: String, text: String },
    /// The job does nothing more until it is resumed. What is under way is finished first.
    #[serde(rename = "paused")]
    Paused { by: String },
    #[serde(rename = "resumed")]
    Resumed { by: String },
    /// The model was told that it goes round in circles, with the facts.
    #[serde(rename = "model.nudged")]
    ModelNudged { text: String },
    /// What the model is shown was made smaller.
    #[serde(rename = "context.compacted")]
    ContextCompacted { compaction: Box<Compaction> },
    /// The model says that it is done with its task.
    #[serde(rename = "task.finished")]
    TaskFinished { outcome: TaskOutcome, summary: String },
    /// The job may reach something else from now on.
    #[serde(rename = "network.changed")]
    NetworkChanged { network: NetworkPolicy, by: String },
    #[serde(rename = "cancel.requested")]
    CancelRequested { by: String },
    /// The workspace was packed and the ZIP is durable.
    #[serde(rename = "result.stored")]
    ResultStored { result: ResultSummary },
    /// How the job ends is decided and its result is safe. What is left is to end its sandbox; a
    /// worker that takes the job over from here does that and nothing else.
    #[serde(rename = "concluded")]
    Concluded { end: JobEnd },
    /// The job is at its end and nothing of its sandbox runs. Always the last event.
    #[serde(rename = "finished")]
    Finished { end: JobEnd },
    /// Something that this program cannot read: of a kind that is new, or with contents that are. It is kept
    /// and passed on as it stands, and changes nothing that is folded from the log.
    #[serde(untagged)]
    Unknown(UnknownRecord),
}

impl EventBody {
    /// The word that stands under `type`.
    pub fn kind(&self) -> &str {
        match self {
            Self::Scheduled { .. } => "scheduled",
            Self::Claimed { .. } => "claimed",
            Self::Released { .. } => "released",
            Self::SandboxReady { .. } => "sandbox.ready",
            Self::SandboxLost { .. } => "sandbox.lost",
            Self::CheckpointStored { .. } => "checkpoint.stored",
            Self::CheckpointSkipped { .. } => "checkpoint.skipped",
            Self::RestoreRequested { .. } => "restore.requested",
            Self::WorkspaceRestored { .. } => "workspace.restored",
            Self::RestoreFailed { .. } => "restore.failed",
            Self::StepStarted { .. } => "step.started",
            Self::StepOutput { .. } => "step.output",
            Self::StepFinished { .. } => "step.finished",
            Self::NetworkConnection { .. } => "network.connection",
            Self::ModelAnswered { .. } => "model.answered",
            Self::ModelFailed { .. } => "model.failed",
            Self::ToolAnswered { .. } => "tool.answered",
            Self::McpConnected { .. } => "mcp.connected",
            Self::ToolStarted { .. } => "tool.started",
            Self::ToolUsed { .. } => "tool.used",
            Self::FileWritten { .. } => "file.written",
            Self::FileDeleted { .. } => "file.deleted",
            Self::LiveOpened { .. } => "live.opened",
            Self::DesktopTaken { .. } => "desktop.taken",
            Self::DesktopReturned { .. } => "desktop.returned",
            Self::ApprovalRequested { .. } => "approval.requested",
            Self::ApprovalDecided { .. } => "approval.decided",
            Self::ModelSaid { .. } => "model.said",
            Self::MemoryKept { .. } => "memory.kept",
            Self::MemoryRecalled { .. } => "memory.recalled",
            Self::PlanUpdated { .. } => "plan.updated",
            Self::QuestionAsked { .. } => "question.asked",
            Self::MessageReceived { .. } => "message.received",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::ModelNudged { .. } => "model.nudged",
            Self::ContextCompacted { .. } => "context.compacted",
            Self::TaskFinished { .. } => "task.finished",
            Self::NetworkChanged { .. } => "network.changed",
            Self::CancelRequested { .. } => "cancel.requested",
            Self::ResultStored { .. } => "result.stored",
            Self::Concluded { .. } => "concluded",
            Self::Finished { .. } => "finished",
            Self::Unknown(record) => record.kind(),
        }
    }

    /// Whether a newer program said something here about where the job stands, in a way that cannot be read.
    /// Nobody who meets this may go on with the job.
    pub fn is_misread(&self) -> bool {
        matches!(self, Self::Unknown(record) if is_decisive(record))
    }
}

/// Every kind that this program knows. A kind that is new is not decisive: a job about which something decisive is
/// to be said in a new word needs newer workers, and the store knows that.
const KNOWN: [&str; 43] = [
    "scheduled",
    "claimed",
    "released",
    "sandbox.ready",
    "sandbox.lost",
    "checkpoint.stored",
    "checkpoint.skipped",
    "restore.requested",
    "workspace.restored",
    "restore.failed",
    "step.started",
    "step.output",
    "step.finished",
    "network.connection",
    "model.answered",
    "model.failed",
    "tool.answered",
    "mcp.connected",
    "tool.started",
    "tool.used",
    "file.written",
    "file.deleted",
    "live.opened",
    "desktop.taken",
    "desktop.returned",
    "approval.requested",
    "approval.decided",
    "model.said",
    "memory.kept",
    "memory.recalled",
    "plan.updated",
    "question.asked",
    "message.received",
    "paused",
    "resumed",
    "model.nudged",
    "context.compacted",
    "task.finished",
    "network.changed",
    "cancel.requested",
    "result.stored",
    "concluded",
    "finished",
];

/// The kinds that only tell somebody who looks on: no worker does anything else because of one.
const HARMLESS: [&str; 6] = [
    "step.output",
    "network.connection",
    "mcp.connected",
    "live.opened",
    "model.said",
    "plan.updated",
];

/// Whether nobody who cannot read the record may go on with the job.
fn is_decisive(record: &UnknownRecord) -> bool {
    KNOWN.contains(&record.kind()) && !HARMLESS.contains(&record.kind())
}

/// Why a workspace was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestoreCause {
    /// The sandbox that had it was lost.
    SandboxLost,
    /// The job is a fork and begins with it.
    Fork,
    /// Somebody asked for it.
    Request,
}

/// The ZIP of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResultSummary {
    pub bytes: u64,
    pub sha256: String,
    /// Files, folders and symlinks of the workspace in it.
    pub entries: u64,
    /// What could not be packed, with the reason; at most the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Under which name it is kept. Older logs do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub artifact: Option<String>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobEnd {
    pub status: EndStatus,
    /// Numbers of the steps that failed, timed out or were cancelled.
    pub failed_steps: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndStatus {
    Completed,
    Failed,
    Cancelled,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobError {
    /// A stable word such as `time_limit`.
    pub code: String,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that serde knows, as they stand in this very file.
    fn names() -> Vec<&'static str> {
        let source = include_str!("event.rs");
        let (_, kinds) = source.split_once("pub enum EventBody {").unwrap();
        let (kinds, _) = kinds.split_once("impl EventBody {").unwrap();
        let lines = kinds.lines().map(str::trim);
        lines
            .filter_map(|line| line.strip_prefix("#[serde(rename = \"")?.strip_suffix("\")]"))
            .collect()
    }

    #[test]
    fn every_kind_is_known_and_decisive_unless_it_is_said_to_be_harmless() {
        assert_eq!(KNOWN.as_slice(), names());
        for kind in HARMLESS {
            assert!(KNOWN.contains(&kind), "{kind}");
        }
        let unknown = |kind: &str| {
            let fields = serde_json::json!({ "type": kind, "moon": "full" });
            let record = UnknownRecord::new(fields.as_object().unwrap().clone());
            EventBody::Unknown(record.unwrap())
        };
        for kind in KNOWN {
            assert_eq!(unknown(kind).is_misread(), !HARMLESS.contains(&kind), "{kind}");
        }
        assert!(!unknown("weather.changed").is_misread());
        assert!(!EventBody::Paused { by: "ada".into() }.is_misread());
    }
}
