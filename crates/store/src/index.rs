//! A job's row in the index: the little about it that queries need, kept as a function of its log.
//!
//! The rules here are those of `JobView` for the fields that both have; a test holds them
//! together. Knows no database: every store writes these rows in its own way.

use bellglass_protocol::chain::{LinkHash, SealedEvent, seal};
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::{JobSpec, Work};
use bellglass_protocol::view::JobStatus;
use jiff::Timestamp;

use crate::Change;
use crate::title::title_of;

/// One row of the `jobs` table.
#[derive(Clone, Debug)]
pub(crate) struct IndexRow {
    pub(crate) id: JobId,
    pub(crate) status: JobStatus,
    pub(crate) priority: i32,
    pub(crate) name: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) title: String,
    pub(crate) scheduled_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) generation: Generation,
    pub(crate) cancel_requested: bool,
    pub(crate) worker: Option<WorkerId>,
    /// The only thing that is not in the log: a lease is renewed too often to be history.
    pub(crate) lease_until: Option<Timestamp>,
    pub(crate) steps_done: u32,
    pub(crate) steps_total: Option<u32>,
    pub(crate) failed_steps: Vec<u32>,
    /// Number of the newest `result.stored`.
    pub(crate) result_seq: Option<u64>,
    /// The job that this one goes on from.
    pub(crate) forked_from: Option<JobId>,
    /// It is going to be forgotten, so nothing can go on from it. Set by the database alone.
    pub(crate) retired: bool,
    /// Only newer programs can carry it out. Set by the database alone.
    pub(crate) left_to_newer: bool,
    pub(crate) last_seq: u64,
    pub(crate) last_at: Timestamp,
    pub(crate) last_hash: LinkHash,
    /// Whether this is news about what the job may reach. Not kept: the log has it.
    pub(crate) network_changed: bool,
}

impl IndexRow {
    /// The row of a new job, and its first event.
    pub(crate) fn accept(spec: JobSpec, now: Timestamp) -> (Self, SealedEvent) {
        let id = JobId::generate();
        let mut row = Self {
            id,
            status: JobStatus::Scheduled,
            priority: spec.priority.0,
            name: spec.name.clone(),
            owner: spec.owner.clone(),
            title: title_of(&spec.work),
            scheduled_at: now,
            started_at: None,
            finished_at: None,
            generation: Generation::default(),
            cancel_requested: false,
            worker: None,
            lease_until: None,
            steps_done: 0,
            steps_total: steps_total(&spec.work),
            failed_steps: Vec::new(),
            result_seq: None,
            forked_from: spec.fork.map(|fork| fork.job),
            retired: false,
            left_to_newer: false,
            last_seq: 0,
            last_at: now,
            last_hash: LinkHash::root(id),
            network_changed: false,
        };
        let sealed = row.append(EventBody::Scheduled { spec: Box::new(spec) }, now);
        (row, sealed)
    }

    /// Puts an event behind the last one and takes it in.
    pub(crate) fn append(&mut self, body: EventBody, now: Timestamp) -> SealedEvent {
        // A clock that is set back must not make a history run backwards.
        let at = now.max(self.last_at);
        let event = Event { seq: self.last_seq + 1, at, job: self.id, body };
        let sealed = seal(event, self.last_hash);
        self.take_in(&sealed.event);
        self.last_hash = sealed.hash;
        sealed
    }

    fn take_in(&mut self, event: &Event) {
        self.last_seq = event.seq;
        self.last_at = event.at;
        match &event.body {
            EventBody::Claimed { worker, generation } => {
                if self.status != JobStatus::Paused {
                    self.status = JobStatus::Running;
                }
                self.generation = *generation;
                self.worker = Some(worker.clone());
                self.started_at.get_or_insert(event.at);
            }
            EventBody::CancelRequested { .. } => self.cancel_requested = true,
            EventBody::Paused { .. } if self.status == JobStatus::Running => {
                self.status = JobStatus::Paused;
            }
            EventBody::Resumed { .. } if self.status == JobStatus::Paused => {
                self.status = JobStatus::Running;
            }
            EventBody::NetworkChanged { .. } => self.network_changed = true,
            EventBody::Finished { end } => {
                self.status = end.status.into();
                self.finished_at = Some(event.at);
                self.failed_steps.clone_from(&end.failed_steps);
                self.worker = None;
                self.lease_until = None;
            }
            EventBody::SandboxLost { kept: None, .. } => {
                self.steps_done = 0;
                self.failed_steps.clear();
            }
            EventBody::SandboxLost { kept: Some(kept), .. } => {
                // A fork of a task counts on from its parent's steps, so it has fewer than numbers.
                self.steps_done = self.steps_done.min(*kept);
                self.failed_steps.retain(|step| step <= kept);
            }
            EventBody::StepFinished { n, outcome } => {
                self.steps_done = self.steps_done.saturating_add(1);
                if outcome.status.is_failure() {
                    self.failed_steps.push(*n);
                }
            }
            EventBody::ResultStored { .. } => self.result_seq = Some(event.seq),
            EventBody::Scheduled { .. }
            | EventBody::Released { .. }
            | EventBody::SandboxReady { .. }
            | EventBody::CheckpointStored { .. }
            | EventBody::CheckpointSkipped { .. }
            | EventBody::RestoreRequested { .. }
            | EventBody::RestoreFailed { .. }
            | EventBody::WorkspaceRestored { .. }
            | EventBody::StepStarted { .. }
            | EventBody::StepOutput { .. }
            | EventBody::NetworkConnection { .. }
            | EventBody::ModelAnswered { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::ToolAnswered { .. }
            | EventBody::ToolStarted { .. }
            | EventBody::ToolUsed { .. }
            | EventBody::FileWritten { .. }
            | EventBody::FileDeleted { .. }
            | EventBody::LiveOpened { .. }
            | EventBody::DesktopTaken { .. }
            | EventBody::DesktopReturned { .. }
            | EventBody::McpConnected { .. }
            | EventBody::ApprovalRequested { .. }
            | EventBody::ApprovalDecided { .. }
            | EventBody::ModelSaid { .. }
            | EventBody::MemoryKept { .. }
            | EventBody::MemoryRecalled { .. }
            | EventBody::PlanUpdated { .. }
            | EventBody::QuestionAsked { .. }
            | EventBody::MessageReceived { .. }
            | EventBody::Paused { .. }
            | EventBody::Resumed { .. }
            | EventBody::ModelNudged { .. }
            | EventBody::ContextCompacted { .. }
            | EventBody::TaskFinished { .. }
            | EventBody::Concluded { .. }
            | EventBody::Unknown(_) => {}
        }
    }

    /// What listeners are told about the job as it now stands.
    pub(crate) fn change(&self) -> Change {
        Change {
            job: self.id,
            seq: self.last_seq,
            status: self.status,
            cancel_requested: self.cancel_requested,
            network_changed: self.network_changed,
        }
    }
}

fn steps_total(work: &Work) -> Option<u32> {
    match work {
        Work::Steps(steps) => u32::try_from(steps.len()).ok(),
        Work::Task(_) | Work::Session(_) => None,
    }
}

/// The present moment in whole microseconds, which is what the database keeps.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bellglass_protocol::event::{EndStatus, JobEnd, ResultSummary};
    use bellglass_protocol::job::{
        Budget, DEFAULT_IMAGE, IsolationLevel, Limits, OnError, Priority,
    };
    use bellglass_protocol::network::NetworkPolicy;
    use bellglass_protocol::step::{StepOutcome, StepStatus};
    use bellglass_protocol::tool::{Shell, ToolCall};
    use bellglass_protocol::view::JobView;

    pub(crate) fn spec() -> JobSpec {
        JobSpec {
            name: Some("a name".into()),
            work: Work::Steps(vec![call(), call(), call()]),
            on_error: OnError::Continue,
            priority: Priority(7),
            image: DEFAULT_IMAGE.into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            isolation: IsolationLevel::Namespace,
            nested_sandboxing: false,
            desktop: None,
            secrets: Default::default(),
            files: Vec::new(),
            model: Some("local/x".into()),
            budget: Budget::default(),
            plan: Default::default(),
            mcp: Default::default(),
            approve: Vec::new(),
            project: None,
            fork: None,
            owner: Some("somebody".into()),
        }
    }

    fn agrees(row: &IndexRow, view: &JobView) {
        assert_eq!(row.id, view.job_id);
        assert_eq!(row.status, view.status);
        assert_eq!(row.priority, view.spec.priority.0);
        assert_eq!(row.name, view.spec.name);
        assert_eq!(row.owner, view.spec.owner);
        assert_eq!(row.scheduled_at, view.scheduled_at);
        assert_eq!(row.started_at, view.started_at);
        assert_eq!(row.finished_at, view.finished_at);
        assert_eq!(row.generation, view.generation);
        assert_eq!(row.cancel_requested, view.cancel_requested);
        assert_eq!(row.last_seq, view.last_seq);
        let over = view.steps.iter().filter(|step| step.status != StepStatus::Running).count();
        assert_eq!(row.steps_done as usize, over);
        assert_eq!(row.steps_total, view.steps_total);
        assert_eq!(row.failed_steps, view.failed_steps);
        assert_eq!(row.result_seq.is_some(), view.result.is_some());
    }

    fn call() -> ToolCall {
        let command = "true".into();
        ToolCall::Shell(Shell { command, ..Default::default() })
    }

    pub(crate) fn step_finished(n: u32, status: StepStatus) -> EventBody {
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
            duration_ms: 1,
        };
        EventBody::StepFinished { n, outcome: Box::new(outcome) }
    }

    #[test]
    fn the_index_agrees_with_the_folded_log_after_every_event() {
        let (mut row, first) = IndexRow::accept(spec(), now());
        let mut view = JobView::begin(&first.event).unwrap();
        agrees(&row, &view);
        let claimed = |n| EventBody::Claimed {
            worker: WorkerId::new(format!("w{n}")),
            generation: Generation(n),
        };
        let result = ResultSummary {
            bytes: 1,
            sha256: "x".into(),
            entries: 1,
            skipped: vec![],
            artifact: None,
        };
        let end = JobEnd { status: EndStatus::Failed, failed_steps: vec![2], error: None };
        for body in [
            EventBody::Resumed { by: "nobody".into() },
            claimed(1),
            EventBody::Paused { by: "somebody".into() },
            EventBody::StepStarted { n: 1, call: call() },
            step_finished(1, StepStatus::Failed),
            claimed(2),
            EventBody::Resumed { by: "somebody".into() },
            EventBody::SandboxLost { reason: "gone".into(), kept: None },
            claimed(3),
            EventBody::Paused { by: "somebody".into() },
            EventBody::StepStarted { n: 1, call: call() },
            step_finished(1, StepStatus::Succeeded),
            EventBody::StepStarted { n: 2, call: call() },
            step_finished(2, StepStatus::TimedOut),
            EventBody::StepStarted { n: 3, call: call() },
            EventBody::CancelRequested { by: "somebody".into() },
            EventBody::NetworkChanged { network: NetworkPolicy::Open, by: "somebody".into() },
            EventBody::ResultStored { result },
            EventBody::Finished { end },
        ] {
            view.apply(&row.append(body, now()).event);
            agrees(&row, &view);
        }
        assert_eq!(row.worker, None);
    }

    #[test]
    fn time_never_runs_backwards_within_a_job() {
        let (mut row, first) = IndexRow::accept(spec(), now());
        let body = EventBody::SandboxLost { reason: "the clock was set back".into(), kept: None };
        let second = row.append(body, Timestamp::UNIX_EPOCH);
        assert_eq!(second.event.at, first.event.at);
    }
}
