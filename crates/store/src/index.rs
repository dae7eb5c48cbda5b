//! A job's row in the index: the little about it that queries need, kept as a function of its log.
//!
//! The rules here are those of `JobView` for the fields that both have; a test holds them
//! together. Knows no database: every store writes these rows in its own way.

use bellglass_protocol::chain::{LinkHash, SealedEvent, seal};
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::JobSpec;
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
    pub(crate) title: String,
    pub(crate) scheduled_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) generation: Generation,
    pub(crate) cancel_requested: bool,
    pub(crate) worker: Option<WorkerId>,
    /// The only thing that is not in the log: a lease is renewed too often to be history.
    pub(crate) lease_until: Option<Timestamp>,
    pub(crate) last_seq: u64,
    pub(crate) last_at: Timestamp,
    pub(crate) last_hash: LinkHash,
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
            title: title_of(&spec.work),
            scheduled_at: now,
            started_at: None,
            finished_at: None,
            generation: Generation::default(),
            cancel_requested: false,
            worker: None,
            lease_until: None,
            last_seq: 0,
            last_at: now,
            last_hash: LinkHash::root(id),
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
            EventBody::Finished { end } => {
                self.status = end.status.into();
                self.finished_at = Some(event.at);
                self.worker = None;
                self.lease_until = None;
            }
            EventBody::Scheduled { .. }
            | EventBody::SandboxReady { .. }
            | EventBody::SandboxLost { .. }
            | EventBody::StepStarted { .. }
            | EventBody::StepOutput { .. }
            | EventBody::StepFinished { .. }
            | EventBody::NetworkConnection { .. }
            | EventBody::ModelAnswered { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::ToolAnswered { .. }
            | EventBody::PlanUpdated { .. }
            | EventBody::QuestionAsked { .. }
            | EventBody::MessageReceived { .. }
            | EventBody::Paused { .. }
            | EventBody::Resumed { .. }
            | EventBody::ModelNudged { .. }
            | EventBody::ContextCompacted { .. }
            | EventBody::TaskFinished { .. }
            | EventBody::Concluded { .. }
            | EventBody::ResultStored { .. } => {}
        }
    }

    /// What listeners are told about the job as it now stands.
    pub(crate) fn change(&self) -> Change {
        Change {
            job: self.id,
            seq: self.last_seq,
            status: self.status,
            cancel_requested: self.cancel_requested,
        }
    }
}

/// The present moment in whole microseconds, which is what the database keeps.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::event::{EndStatus, JobEnd, ResultSummary};
    use bellglass_protocol::job::{
        Budget, DEFAULT_IMAGE, IsolationLevel, Limits, OnError, Priority, Work,
    };
    use bellglass_protocol::network::NetworkPolicy;
    use bellglass_protocol::view::JobView;

    fn spec() -> JobSpec {
        JobSpec {
            name: Some("a name".into()),
            work: Work::Task("do it".into()),
            on_error: OnError::Continue,
            priority: Priority(7),
            image: DEFAULT_IMAGE.into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            isolation: IsolationLevel::Namespace,
            files: Vec::new(),
            model: Some("local/x".into()),
            budget: Budget::default(),
            plan: Default::default(),
        }
    }

    fn agrees(row: &IndexRow, view: &JobView) {
        assert_eq!(row.id, view.job_id);
        assert_eq!(row.status, view.status);
        assert_eq!(row.priority, view.spec.priority.0);
        assert_eq!(row.name, view.spec.name);
        assert_eq!(row.scheduled_at, view.scheduled_at);
        assert_eq!(row.started_at, view.started_at);
        assert_eq!(row.finished_at, view.finished_at);
        assert_eq!(row.generation, view.generation);
        assert_eq!(row.cancel_requested, view.cancel_requested);
        assert_eq!(row.last_seq, view.last_seq);
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
        let result = ResultSummary { bytes: 1, sha256: "x".into(), entries: 1, skipped: vec![] };
        let end = JobEnd { status: EndStatus::Failed, failed_steps: vec![2], error: None };
        for body in [
            EventBody::Resumed { by: "nobody".into() },
            claimed(1),
            EventBody::Paused { by: "somebody".into() },
            claimed(2),
            EventBody::Resumed { by: "somebody".into() },
            EventBody::SandboxLost { reason: "gone".into() },
            claimed(3),
            EventBody::Paused { by: "somebody".into() },
            EventBody::CancelRequested { by: "somebody".into() },
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
        let body = EventBody::SandboxLost { reason: "the clock was set back".into() };
        let second = row.append(body, Timestamp::UNIX_EPOCH);
        assert_eq!(second.event.at, first.event.at);
    }
}
