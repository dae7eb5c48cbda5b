//! A job as people see it, folded from its events. The only place where events become a status.

mod kept;
#[cfg(test)]
mod tests;

pub use kept::{Kept, NotKept};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::approval::{Approval, Wish};
use crate::checkpoint::Changes;
use crate::event::{EndStatus, Event, EventBody, JobEnd, JobError, ResultSummary};
use crate::id::{Generation, JobId, WorkerId};
use crate::job::{JobSpec, Work};
use crate::model::{PlanStep, UsageTotal};
use crate::network::NetworkPolicy;
use crate::report::SandboxReport;
use crate::step::{Attachment, StepOutcome, StepStatus, ToolError};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    Scheduled,
    Running,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl JobStatus {
    pub const ALL: [Self; 6] = [
        Self::Scheduled,
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether nothing more can happen to the job.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl From<EndStatus> for JobStatus {
    fn from(end: EndStatus) -> Self {
        match end {
            EndStatus::Completed => Self::Completed,
            EndStatus::Failed => Self::Failed,
            EndStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// A job whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    pub job_id: JobId,
    pub status: JobStatus,
    pub spec: JobSpec,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub scheduled_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub started_at: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub finished_at: Option<Timestamp>,
    /// How often the job was claimed.
    pub generation: Generation,
    pub cancel_requested: bool,
    /// What the sandbox may reach now: as the job was scheduled, or as it was changed since.
    pub network: NetworkPolicy,
    pub steps: Vec<StepView>,
    /// How many steps a fixed list has; unknown for a task.
    pub steps_total: Option<u32>,
    pub failed_steps: Vec<u32>,
    pub sandbox: Option<SandboxReport>,
    /// What the model is going to do, and how far it is.
    #[serde(default)]
    pub plan: Vec<PlanStep>,
    /// What the model asked the user and got no answer to so far.
    pub question: Option<String>,
    /// What the model says that it did.
    pub summary: Option<String>,
    /// What the job's calls of models come to, for a task.
    pub usage: Option<UsageTotal>,
    pub result: Option<ResultSummary>,
    pub error: Option<JobError>,
    /// Number of the newest event.
    pub last_seq: u64,
    /// How the job will end, once its sandbox is gone.
    #[serde(skip)]
    pub conclusion: Option<JobEnd>,
    /// What waits for the user's word.
    #[serde(default)]
    pub approvals: Vec<Approval>,
    /// Who works with the desktop, if it is not the job itself.
    #[serde(default)]
    pub desktop_taken_by: Option<String>,
    /// Milliseconds of pauses that are over.
    #[serde(skip)]
    pub paused_ms: u64,
    #[serde(skip)]
    pub paused_since: Option<Timestamp>,
    /// How often the job was claimed since it last came further than ever before.
    #[serde(skip)]
    pub claims_without_progress: u32,
    /// Sandboxes lost since a step last came further than ever before, or somebody used one.
    #[serde(skip)]
    pub losses_without_progress: u32,
    /// The highest number of a step that was ever over, also in a sandbox that is gone.
    #[serde(skip)]
    furthest_step: u32,
    /// How many answers of models there are, in this sandbox and at the most in any.
    #[serde(skip)]
    answers: (u32, u32),
    /// The worker that claimed the job last.
    #[serde(skip)]
    pub holder: Option<WorkerId>,
    /// The worker that made the job's sandbox: another one has none of the job's, or one of before.
    #[serde(skip)]
    pub sandbox_is_with: Option<WorkerId>,
    /// The checkpoints of its workspace.
    #[serde(skip)]
    pub kept: Kept,
    /// Whether a newer program said something about where the job stands that cannot be read here, so that it
    /// may stand elsewhere than this says.
    #[serde(skip)]
    pub misread: bool,
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepView {
    /// Counts from 1.
    pub n: u32,
    pub tool: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub arguments: serde_json::Value,
    pub status: StepStatus,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// What a model would be shown, bounded.
    pub output: String,
    pub output_bytes: u64,
    pub dropped_bytes: u64,
    /// How many bytes nobody has any more: they came after as much as may be kept in full.
    pub unkept_bytes: u64,
    /// The artifact that holds the output in full, where it did not fit.
    pub full_output: Option<String>,
    /// Images and other things beside text that the step gave.
    pub attachments: Vec<Attachment>,
    pub error: Option<ToolError>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub started_at: Timestamp,
    pub duration_ms: Option<u64>,
    /// What the step did to the workspace, if it did anything and that was kept.
    pub changes: Option<Changes>,
}

impl JobView {
    /// The view after the first event, which must be `scheduled`.
    pub fn begin(event: &Event) -> Option<Self> {
        let EventBody::Scheduled { spec } = &event.body else { return None };
        let steps_total = match &spec.work {
            Work::Steps(steps) => u32::try_from(steps.len()).ok(),
            Work::Task(_) | Work::Session(_) => None,
        };
        Some(Self {
            job_id: event.job,
            status: JobStatus::Scheduled,
            spec: (**spec).clone(),
            scheduled_at: event.at,
            started_at: None,
            finished_at: None,
            generation: Generation::default(),
            cancel_requested: false,
            network: spec.network.clone(),
            steps: Vec::new(),
            steps_total,
            failed_steps: Vec::new(),
            sandbox: None,
            plan: Vec::new(),
            question: None,
            summary: None,
            usage: None,
            result: None,
            error: None,
            last_seq: event.seq,
            conclusion: None,
            approvals: Vec::new(),
            desktop_taken_by: None,
            paused_ms: 0,
            paused_since: None,
            claims_without_progress: 0,
            losses_without_progress: 0,
            furthest_step: 0,
            answers: (0, 0),
            holder: None,
            sandbox_is_with: None,
            kept: Kept::begin(spec),
            misread: false,
        })
    }

    /// Folds a whole log.
    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<Self> {
        let mut events = events.into_iter();
        let mut view = Self::begin(events.next()?)?;
        for event in events {
            view.apply(event);
        }
        Some(view)
    }

    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        self.last_seq = event.seq;
        self.kept.take_in(&event.body, self.steps.last().map_or(0, |step| step.n));
        match &event.body {
            EventBody::Scheduled { .. } => {}
            EventBody::Claimed { worker, generation } => {
                self.generation = *generation;
                self.holder = Some(worker.clone());
                // A job that waits for its user cannot come further, whoever holds it.
                if self.status != JobStatus::Paused && self.question.is_none() {
                    self.claims_without_progress += 1;
                }
                // A paused job stays paused in other hands too.
                if self.status != JobStatus::Paused {
                    self.status = JobStatus::Running;
                }
                self.started_at.get_or_insert(event.at);
            }
            // That a server was restarted says nothing about the job.
            EventBody::Released { .. } => {
                if self.status != JobStatus::Paused && self.question.is_none() {
                    self.claims_without_progress = self.claims_without_progress.saturating_sub(1);
                }
            }
            EventBody::SandboxReady { report } => {
                self.sandbox = Some((**report).clone());
                self.sandbox_is_with.clone_from(&self.holder);
            }
            EventBody::SandboxLost { kept: Some(kept), .. } => {
                self.losses_without_progress += 1;
                (self.sandbox, self.sandbox_is_with) = (None, None);
                self.steps.retain(|step| step.n <= *kept);
                self.failed_steps.retain(|step| step <= kept);
                // A connection that waited for the user is gone; a call still waits.
                self.approvals.retain(|approval| matches!(approval.wish, Wish::Tool { .. }));
            }
            EventBody::SandboxLost { kept: None, .. } => {
                self.losses_without_progress += 1;
                // The next sandbox starts empty, so what was done in the old one is void.
                self.steps.clear();
                self.failed_steps.clear();
                self.plan.clear();
                self.desktop_taken_by = None;
                self.question = None;
                self.approvals.clear();
                (self.summary, self.sandbox, self.sandbox_is_with) = (None, None, None);
                self.answers.0 = 0;
            }
            EventBody::CheckpointStored { step, changes, .. } => {
                if let Some(step) = self.step_mut(*step) {
                    step.changes = Some(*changes);
                }
            }
            EventBody::StepStarted { n, call } => {
                // The same step is started again by a worker that took the job over.
                self.steps.retain(|step| step.n != *n);
                self.steps.push(StepView {
                    n: *n,
                    tool: call.name().into(),
                    arguments: call.arguments(),
                    status: StepStatus::Running,
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
                    started_at: event.at,
                    duration_ms: None,
                    changes: None,
                });
            }
            EventBody::StepOutput { n, stream, text } => {
                if let Some(step) = self.step_mut(*n) {
                    step.output_bytes += text.len() as u64;
                    match stream {
                        crate::step::OutputStream::Stdout => step.stdout.push_str(text),
                        crate::step::OutputStream::Stderr => step.stderr.push_str(text),
                    }
                }
            }
            EventBody::StepFinished { n, outcome } => {
                if let Some(step) = self.step_mut(*n) {
                    step.finish(outcome);
                }
                if outcome.status.is_failure() {
                    self.failed_steps.push(*n);
                }
                if *n > self.furthest_step && outcome.status != StepStatus::Interrupted {
                    self.furthest_step = *n;
                    self.claims_without_progress = 0;
                    self.losses_without_progress = 0;
                }
            }
            EventBody::NetworkConnection { .. }
            | EventBody::ToolAnswered { .. }
            | EventBody::ToolStarted { .. }
            | EventBody::LiveOpened { .. }
            | EventBody::McpConnected { .. }
            | EventBody::ModelSaid { .. }
            | EventBody::MemoryRecalled { .. }
            | EventBody::ModelNudged { .. }
            | EventBody::CheckpointSkipped { .. }
            | EventBody::RestoreRequested { .. }
            | EventBody::RestoreFailed { .. }
            | EventBody::WorkspaceRestored { .. } => {}
            EventBody::Unknown(_) => self.misread |= event.body.is_misread(),
            EventBody::ToolUsed { .. }
            | EventBody::FileWritten { .. }
            | EventBody::FileDeleted { .. } => self.losses_without_progress = 0,
            EventBody::DesktopTaken { by } => self.desktop_taken_by = Some(by.clone()),
            EventBody::DesktopReturned { .. } => self.desktop_taken_by = None,
            EventBody::MemoryKept { usage, cost_usd, .. }
            | EventBody::ModelFailed { usage, cost_usd, .. } => {
                if let Some(usage) = usage {
                    self.usage.get_or_insert_default().add(usage, *cost_usd);
                }
            }
            EventBody::ApprovalRequested { approval } => self.approvals.push(approval.clone()),
            EventBody::ApprovalDecided { id, .. } => {
                self.approvals.retain(|approval| approval.id != *id);
            }
            EventBody::ModelAnswered { answer, .. } => {
                let (here, furthest) = &mut self.answers;
                *here += 1;
                if *here > *furthest {
                    *furthest = *here;
                    self.claims_without_progress = 0;
                }
                self.usage.get_or_insert_default().add(&answer.usage, answer.cost_usd);
            }
            EventBody::ContextCompacted { compaction } => {
                if let Some(summary) = &compaction.summary
                    && let Some(usage) = &summary.usage
                {
                    self.usage.get_or_insert_default().add(usage, summary.cost_usd);
                }
            }
            EventBody::PlanUpdated { steps } => self.plan.clone_from(steps),
            EventBody::QuestionAsked { question, .. } => self.question = Some(question.clone()),
            EventBody::MessageReceived { .. } => self.question = None,
            EventBody::Paused { .. } => {
                if self.status == JobStatus::Running {
                    self.status = JobStatus::Paused;
                    self.paused_since = Some(event.at);
                }
            }
            EventBody::Resumed { .. } => {
                if self.status == JobStatus::Paused {
                    self.status = JobStatus::Running;
                }
                // Who lets it go on without a word has given one: no answer, and no call.
                self.question = None;
                self.approvals.retain(|approval| !matches!(approval.wish, Wish::Tool { .. }));
                if let Some(since) = self.paused_since.take() {
                    let time = event.at.duration_since(since).as_millis();
                    self.paused_ms += u64::try_from(time).unwrap_or_default();
                }
            }
            EventBody::TaskFinished { summary, .. } => self.summary = Some(summary.clone()),
            EventBody::NetworkChanged { network, .. } => self.network.clone_from(network),
            EventBody::CancelRequested { .. } => self.cancel_requested = true,
            EventBody::ResultStored { result } => self.result = Some(result.clone()),
            EventBody::Concluded { end } => self.conclusion = Some(end.clone()),
            EventBody::Finished { end } => {
                self.status = end.status.into();
                self.finished_at = Some(event.at);
                self.failed_steps.clone_from(&end.failed_steps);
                self.error.clone_from(&end.error);
            }
        }
    }

    /// Takes in the next event, but keeps none of the texts of steps: what is left says where the
    /// job stands and takes little memory, however long the log is.
    pub fn apply_briefly(&mut self, event: &Event) {
        self.apply(event);
        let (EventBody::StepStarted { n, .. }
        | EventBody::StepOutput { n, .. }
        | EventBody::StepFinished { n, .. }) = &event.body
        else {
            return;
        };
        if let Some(step) = self.step_mut(*n) {
            step.arguments = serde_json::Value::Null;
            step.stdout = String::new();
            step.stderr = String::new();
            step.output = String::new();
            step.error = None;
        }
    }

    fn step_mut(&mut self, n: u32) -> Option<&mut StepView> {
        self.steps.iter_mut().rev().find(|step| step.n == n)
    }
}

impl StepView {
    fn finish(&mut self, outcome: &StepOutcome) {
        self.status = outcome.status;
        self.exit_code = outcome.exit_code;
        self.signal = outcome.signal;
        self.stdout.clone_from(&outcome.stdout);
        self.stderr.clone_from(&outcome.stderr);
        self.output.clone_from(&outcome.output);
        self.output_bytes = outcome.output_bytes;
        self.dropped_bytes = outcome.dropped_bytes;
        self.unkept_bytes = outcome.unkept_bytes;
        self.full_output.clone_from(&outcome.full_output);
        self.attachments.clone_from(&outcome.attachments);
        self.error.clone_from(&outcome.error);
        self.duration_ms = Some(outcome.duration_ms);
    }
}
