//! A job as people see it, folded from its events. The only place where events become a status.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::{EndStatus, Event, EventBody, JobEnd, JobError, ResultSummary};
use crate::id::{Generation, JobId};
use crate::job::{JobSpec, Work};
use crate::model::{PlanStep, UsageTotal};
use crate::report::SandboxReport;
use crate::step::{StepOutcome, StepStatus, ToolError};

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
    /// Milliseconds of pauses that are over.
    #[serde(skip)]
    pub paused_ms: u64,
    #[serde(skip)]
    pub paused_since: Option<Timestamp>,
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
    /// The artifact that holds the output in full, where it did not fit.
    pub full_output: Option<String>,
    pub error: Option<ToolError>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub started_at: Timestamp,
    pub duration_ms: Option<u64>,
}

impl JobView {
    /// The view after the first event, which must be `scheduled`.
    pub fn begin(event: &Event) -> Option<Self> {
        let EventBody::Scheduled { spec } = &event.body else { return None };
        let steps_total = match &spec.work {
            Work::Steps(steps) => u32::try_from(steps.len()).ok(),
            Work::Task(_) => None,
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
            paused_ms: 0,
            paused_since: None,
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
        match &event.body {
            EventBody::Scheduled { .. } => {}
            EventBody::Claimed { generation, .. } => {
                self.generation = *generation;
                // A paused job stays paused in other hands too.
                if self.status != JobStatus::Paused {
                    self.status = JobStatus::Running;
                }
                self.started_at.get_or_insert(event.at);
            }
            EventBody::SandboxReady { report } => self.sandbox = Some((**report).clone()),
            EventBody::SandboxLost { .. } => {
                // The next sandbox starts empty, so what was done in the old one is void.
                self.steps.clear();
                self.failed_steps.clear();
                self.plan.clear();
                self.question = None;
                self.summary = None;
                self.sandbox = None;
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
                    full_output: None,
                    error: None,
                    started_at: event.at,
                    duration_ms: None,
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
            }
            EventBody::NetworkConnection { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::ToolAnswered { .. }
            | EventBody::ModelNudged { .. } => {}
            EventBody::ModelAnswered { answer } => {
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
                if let Some(since) = self.paused_since.take() {
                    let time = event.at.duration_since(since).as_millis();
                    self.paused_ms += u64::try_from(time).unwrap_or_default();
                }
            }
            EventBody::TaskFinished { summary, .. } => self.summary = Some(summary.clone()),
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
        self.full_output.clone_from(&outcome.full_output);
        self.error.clone_from(&outcome.error);
        self.duration_ms = Some(outcome.duration_ms);
    }
}
