//! Where jobs are kept: the event log with its queue, and the artifacts. The only crate with SQL.
//!
//! The log is the truth. The `jobs` table is an index over it, written in the same transaction.

pub mod access;
pub mod artifacts;
mod audit;
pub mod checkpoints;
mod error;
mod group;
mod index;
mod line;
mod memory;
mod postgres;
mod private_dir;
mod reading;
mod rules;
mod sqlite;
mod title;
mod unreadable;

use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::approval::Decision;
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::{EventBody, JobError, ResultSummary};
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::{JobStatus, JobView};
use jiff::Timestamp;
use tokio::sync::broadcast;

pub use error::StoreError;
pub use memory::{Memory, MemoryQuery, NewMemory, Whose};
pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;

/// The database side of the store. Every implementation passes the same conformance suite.
#[async_trait]
pub trait Store: access::Access + Send + Sync + 'static {
    /// Accepts a job. When this returns, the job survives a power cut.
    async fn schedule(&self, spec: JobSpec) -> Result<JobId, StoreError>;

    /// Takes the best job that nobody holds: highest priority first, then the oldest. Also takes
    /// jobs whose lease has run out. Leaves jobs of newer programs that this one cannot carry out, and those that
    /// it finds it cannot read; what nobody can read ends. Appends `claimed` with the next generation.
    async fn claim_next_job(
        &self,
        worker: &WorkerId,
        lease: Duration,
    ) -> Result<Option<ClaimedJob>, StoreError>;

    /// Extends the leases of jobs. Returns those that this worker no longer holds.
    async fn renew_leases(
        &self,
        worker: &WorkerId,
        held: &[(JobId, Generation)],
        lease: Duration,
    ) -> Result<Vec<JobId>, StoreError>;

    /// Takes a job up again that this worker claimed last, whether its lease has run out or not. For a
    /// worker that starts again under its old name: what it held is here. `None` if it is over, cannot be read,
    /// or another has claimed it since.
    async fn claim_own(
        &self,
        worker: &WorkerId,
        job: JobId,
        lease: Duration,
    ) -> Result<Option<ClaimedJob>, StoreError>;

    /// Makes every lease of a worker run out now, so that its jobs can be claimed at once. For a
    /// worker that shuts down.
    async fn release_leases(&self, worker: &WorkerId) -> Result<(), StoreError> {
        self.release_leases_but(worker, &[]).await
    }

    /// The same for all jobs but these.
    async fn release_leases_but(&self, worker: &WorkerId, kept: &[JobId])
    -> Result<(), StoreError>;

    /// Jobs that are not over, that nobody but this worker has claimed since it did, and that this program can
    /// carry out.
    async fn held_by(&self, worker: &WorkerId) -> Result<Vec<JobId>, StoreError>;

    /// Leaves a job to newer programs, as its holder: no program that can do only what this one can claims it
    /// again. It stays the holder's until the holder says `released`; whoever has cancelled it by then, or does so
    /// while nobody holds it, has its end at once. Refused with [`StoreError::StaleGeneration`] if the job was
    /// claimed again since. Nothing happens where newer programs cannot work beside this one.
    async fn leave_to_newer(&self, _job: JobId, _generation: Generation) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes known at which address a worker can be asked for what runs with it, or that it cannot.
    async fn announce_worker(
        &self,
        worker: &WorkerId,
        address: Option<&str>,
    ) -> Result<(), StoreError>;

    /// The address of the worker that holds a job, as it was announced last; nothing if nobody holds
    /// the job or its holder cannot be asked.
    async fn address_of_holder(&self, job: JobId) -> Result<Option<String>, StoreError>;

    /// Appends events as the holder of a job. Refused with [`StoreError::StaleGeneration`] if
    /// the job was claimed again since, and with [`StoreError::JobEnded`] after its end. Durable
    /// when this returns. Waits for a database that is away for as long as the caller does.
    async fn append(
        &self,
        job: JobId,
        generation: Generation,
        bodies: Vec<EventBody>,
    ) -> Result<Vec<SealedEvent>, StoreError>;

    /// Records that somebody wants the job to end. A job that nobody works on yet ends at once, and one that was
    /// left to newer programs if none holds it; for a running one the holder sees the event. Returns the status
    /// after it.
    async fn request_cancel(&self, job: JobId, by: &str) -> Result<JobStatus, StoreError>;

    /// Records what somebody wants of a job that is not at its end; the holder sees the event.
    /// Refused with [`StoreError::JobEnded`] after the end, and with [`StoreError::NotStarted`] if
    /// a job is to pause that nobody works on yet. Returns the status after it.
    async fn steer(&self, job: JobId, wish: Steering, by: &str) -> Result<JobStatus, StoreError>;

    /// Records that a job may reach something else from now on; its holder sees the event. Refused
    /// with [`StoreError::JobEnded`] after its end. Returns the status after it.
    async fn change_network(
        &self,
        job: JobId,
        network: NetworkPolicy,
        by: &str,
    ) -> Result<JobStatus, StoreError>;

    /// Events of a job after number `after`, in order, with their exact lines: at most `limit`, and
    /// fewer where they would be longer than [`PAGE_BYTES`] together. None only at the end.
    /// [`StoreError::NotFound`] if there is no such job.
    async fn events_after(
        &self,
        job: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<SealedEvent>, StoreError>;

    /// Lines of a job's log after number `after`, as they lie in the database, whatever is in them.
    async fn lines_after(
        &self,
        job: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;

    /// Where a job's log ends according to the index, which is written together with it.
    async fn end_of_log(&self, job: JobId) -> Result<LogEnd, StoreError>;

    /// Where a job stands, without reading its log.
    async fn outline(&self, job: JobId) -> Result<JobOutline, StoreError>;

    /// The job as folded from all its events. Reads its whole log: where an outline does, ask for
    /// that.
    async fn job(&self, job: JobId) -> Result<JobView, StoreError>;

    /// Jobs, newest first.
    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, StoreError>;

    /// Jobs that ended before a moment and that no job which has not ended goes on from, the oldest
    /// first: at most `limit` after the first `skip`.
    async fn ended_before(
        &self,
        moment: Timestamp,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<JobId>, StoreError>;

    /// Has no other job go on from one that has ended, because it is about to be forgotten. `false` if
    /// there is none, it has not ended, or a job goes on from it that has not.
    async fn retire_job(&self, job: JobId) -> Result<bool, StoreError>;

    /// Forgets a job that has ended, its log included. `false` if there is none, or it has not ended.
    async fn forget_job(&self, job: JobId) -> Result<bool, StoreError>;

    /// Keeps a memory. `None` if the project has the same text already.
    async fn add_memory(&self, new: NewMemory) -> Result<Option<Memory>, StoreError>;

    /// Gives a memory another text. `None` if there is no such memory.
    async fn edit_memory(
        &self,
        id: i64,
        text: String,
        vector: Option<Vec<f32>>,
        by: &str,
    ) -> Result<Option<Memory>, StoreError>;

    /// Forgets a memory. `None` if there is none.
    async fn delete_memory(&self, id: i64, by: &str) -> Result<Option<Memory>, StoreError>;

    /// Memories, the best first.
    async fn memories(&self, query: &MemoryQuery) -> Result<Vec<Memory>, StoreError>;

    /// How many jobs stand where, for every status.
    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, StoreError>;

    /// What changes from now on. A slow listener gets `Lagged` and looks at the log again.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Whether the database answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Finishes what was asked for so far and lets go of the database.
    async fn close(&self);
}

/// What may be wanted of a job while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Do nothing more after what is under way. Wanting it twice is fine.
    Pause,
    /// Go on. Wanting it of a job that is not paused is fine.
    Resume,
    /// Say this to the model.
    Message(String),
    /// Make the workspace again what it was after this step, before anything else is done.
    Restore { step: u32 },
    /// Allow or refuse what waits for it.
    Decide { id: String, decision: Decision, words: Option<String> },
}

/// The most bytes that the lines of one page of a log have, unless it is a single line.
pub const PAGE_BYTES: usize = 1 << 20;

/// Something was appended to a job's log.
#[derive(Clone, Debug)]
pub struct Change {
    pub job: JobId,
    /// Number of the newest event.
    pub seq: u64,
    pub status: JobStatus,
    pub cancel_requested: bool,
    /// Whether what the job may reach is among the news.
    pub network_changed: bool,
}

/// A job in the hands of a worker.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    pub generation: Generation,
    /// The job as it stands, the claim included, without the texts of its steps.
    pub view: JobView,
    /// How long the lines are that say what the job wrote and whom it spoke to.
    pub recorded_bytes: u64,
}

/// Whether a line counts as recorded: there are as many as the job likes, each as long as it likes.
pub fn is_recording(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::StepOutput { .. }
            | EventBody::StepFinished { .. }
            | EventBody::ToolUsed { .. }
            | EventBody::NetworkConnection { .. }
    )
}

/// Where a job stands.
#[derive(Clone, Debug)]
pub struct JobOutline {
    pub id: JobId,
    pub name: Option<String>,
    pub status: JobStatus,
    pub cancel_requested: bool,
    pub scheduled_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Steps that are over, however they ended.
    pub steps_done: u32,
    pub steps_total: Option<u32>,
    pub failed_steps: Vec<u32>,
    pub result: Option<ResultSummary>,
    pub error: Option<JobError>,
    /// Number of the newest event.
    pub last_seq: u64,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub status: Option<JobStatus>,
    /// Only jobs of this user.
    pub owner: Option<String>,
    /// Only jobs whose name or task contains this text.
    pub search: Option<String>,
    /// Only jobs older than this one: where the next page begins.
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: u32,
}

/// A page of the list of jobs.
#[derive(Clone, Debug)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    /// Whether older jobs match too.
    pub more: bool,
}

/// A job as one row of a list.
#[derive(Clone, Debug)]
pub struct JobSummary {
    pub id: JobId,
    pub name: Option<String>,
    /// The task, or the first step, shortened.
    pub title: String,
    pub status: JobStatus,
    pub priority: i32,
    pub scheduled_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Steps that are over, however they ended.
    pub steps_done: u32,
    /// How many steps a fixed list has; unknown for a task.
    pub steps_total: Option<u32>,
    /// Whose job it is, if it is anybody's.
    pub owner: Option<String>,
}

/// The end of a log: the number and the hash of its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub seq: u64,
    pub hash: String,
}
