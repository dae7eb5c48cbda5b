//! The store on PostgreSQL, which any number of processes share.
//!
//! Each process has one writer that commits for all its callers at once, readers, and an ear for what
//! the others change. This file is the surface. What may happen to a job is decided in `rules`; this
//! module and those below it know only how to put it into the database, and how to outlast it when it
//! is away for a while.

mod access;
mod audit;
mod batch;
mod fault;
mod link;
mod memories;
mod news;
mod open;
mod reads;
mod rows;
mod workers;
mod writer;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::{JobStatus, JobView};
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::audit::Wanted;
use crate::group::operation::{
    Append, Cancel, ChangeNetwork, Claim, ClaimOwn, NewJob, Operation, Pending, Release, Renew,
    Steer,
};
use crate::group::{CHANGES_KEPT, QUEUE};
use crate::index::{IndexRow, now};
use crate::memory::{Memory, MemoryChange, MemoryQuery, NewMemory};
use crate::unreadable::{self, Others};
use crate::{
    Change, ClaimedJob, JobFilter, JobOutline, JobPage, LogEnd, Steering, Store, StoreError,
};
use fault::{Backoff, Fault};
use link::{DatabaseClock, Link};
use writer::Writer;

/// How long a caller waits for a database that is away.
const PATIENCE: Duration = Duration::from_secs(20);

/// A database that takes longer to say anything is as good as away.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// How long the end of a store waits for a database that is away.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);

/// One attempt to read takes no longer than this, or its connection is given up.
const LONGEST_READ: Duration = Duration::from_secs(120);

/// A database that many processes share.
#[derive(Debug)]
pub struct PostgresStore {
    readers: open::Pools,
    writer: mpsc::Sender<Operation>,
    changes: broadcast::Sender<Change>,
    clock: DatabaseClock,
    news: AbortHandle,
}

impl PostgresStore {
    /// Opens the database at `postgres://USER@HOST:PORT/DATABASE` and brings its schema up to date.
    /// The password may be in the address or given apart. A database that is away is waited for a
    /// while: after a power cut everything starts at once.
    pub async fn open(url: &str, password: Option<&str>) -> Result<Self, StoreError> {
        let options = open::options(url, password)?;
        let was_away = open::migrate_patiently(&options).await?;
        let connection = open::connect(&options).await?;
        let listener = news::listen(&options).await?;
        let readers = open::Pools::of(&options);
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let (writer, operations) = mpsc::channel(QUEUE);
        let (clock, teller) = (DatabaseClock::default(), JobId::generate().to_string());
        let news = news::pass_on(
            listener,
            options.clone(),
            readers.short.clone(),
            teller.clone(),
            changes.clone(),
        );
        let news = tokio::spawn(news).abort_handle();
        let link = Link::new(options, connection, was_away);
        let changed = changes.clone();
        let at_work = Writer { link, clock: clock.clone(), teller, batch: 0, changes: changed };
        tokio::spawn(at_work.serve(operations));
        Ok(Self { readers, writer, changes, clock, news })
    }

    async fn ask<Q, A>(
        &self,
        operation: fn(Pending<Q, A>) -> Operation,
        request: Q,
    ) -> Result<A, StoreError> {
        let asked = self.ask_until_answered(operation, request);
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| StoreError::Unavailable)?
    }

    /// Waits for as long as the caller does. Whoever gives up is not waited for: what was asked is then
    /// not done, unless it is done already.
    async fn ask_until_answered<Q, A>(
        &self,
        operation: fn(Pending<Q, A>) -> Operation,
        request: Q,
    ) -> Result<A, StoreError> {
        let (pending, answer) = Pending::new(request);
        self.writer.send(operation(pending)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Folds a job that was claimed, which can take long, so that the writer does not wait for it. One that
    /// cannot be read is let go of.
    async fn read_claimed(
        &self,
        (job, generation): (JobId, Generation),
    ) -> Result<Option<ClaimedJob>, StoreError> {
        match patiently(|| reads::brief(&self.readers.claims, job)).await {
            Ok((view, recorded_bytes)) => Ok(Some(ClaimedJob { generation, view, recorded_bytes })),
            Err(StoreError::Corrupt(reason)) => {
                unreadable::let_go(self, (job, generation), &reason, Others::Newer).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.news.abort();
    }
}

/// Reads, again and again while the database is away, as long as a caller is expected to wait.
async fn patiently<T, R>(read: impl Fn() -> R) -> Result<T, StoreError>
where
    R: Future<Output = Result<T, StoreError>>,
{
    let begun = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        let error = match tokio::time::timeout(LONGEST_READ, read()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => error,
            Err(_) => return Err(StoreError::Unavailable),
        };
        match Fault::of(&error) {
            Fault::Statement => return Err(error),
            Fault::Connection | Fault::Conflict if begun.elapsed() > PATIENCE => {
                tracing::warn!(%error, "the database does not answer");
                return Err(StoreError::Unavailable);
            }
            Fault::Connection | Fault::Conflict => backoff.wait().await,
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn schedule(&self, spec: JobSpec) -> Result<JobId, StoreError> {
        // Sealed here and not in the writer: hashing then happens on all cores, and the
        // transaction that everybody waits for only writes.
        let (row, scheduled) = IndexRow::accept(spec, self.clock.now());
        let id = row.id;
        let new = Box::new(NewJob { row, line: scheduled.line });
        self.ask(Operation::Schedule, new).await?;
        Ok(id)
    }

    async fn claim_next_job(
        &self,
        worker: &WorkerId,
        lease: Duration,
    ) -> Result<Option<ClaimedJob>, StoreError> {
        loop {
            let claim = Claim { worker: worker.clone(), lease };
            let Some(taken) = self.ask(Operation::Claim, claim).await? else { return Ok(None) };
            if let Some(claimed) = self.read_claimed(taken).await? {
                return Ok(Some(claimed));
            }
        }
    }

    async fn renew_leases(
        &self,
        worker: &WorkerId,
        held: &[(JobId, Generation)],
        lease: Duration,
    ) -> Result<Vec<JobId>, StoreError> {
        let renew = Renew { worker: worker.clone(), held: held.to_vec(), lease };
        self.ask(Operation::Renew, renew).await
    }

    async fn claim_own(
        &self,
        worker: &WorkerId,
        job: JobId,
        lease: Duration,
    ) -> Result<Option<ClaimedJob>, StoreError> {
        let claim = ClaimOwn { worker: worker.clone(), job, lease };
        let Some(generation) = self.ask(Operation::ClaimOwn, claim).await? else { return Ok(None) };
        self.read_claimed((job, generation)).await
    }

    async fn release_leases_but(
        &self,
        worker: &WorkerId,
        kept: &[JobId],
    ) -> Result<(), StoreError> {
        let release = Release { worker: worker.clone(), kept: kept.to_vec() };
        self.ask(Operation::Release, release).await
    }

    async fn held_by(&self, worker: &WorkerId) -> Result<Vec<JobId>, StoreError> {
        patiently(|| workers::held_by(&self.readers.short, worker)).await
    }

    async fn leave_to_newer(&self, job: JobId, generation: Generation) -> Result<(), StoreError> {
        patiently(|| workers::leave_to_newer(&self.readers.asides, job, generation)).await
    }

    async fn announce_worker(
        &self,
        worker: &WorkerId,
        address: Option<&str>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        patiently(|| workers::announce(&self.readers.asides, worker, address, now)).await
    }

    async fn address_of_holder(&self, job: JobId) -> Result<Option<String>, StoreError> {
        patiently(|| workers::address_of_holder(&self.readers.short, job)).await
    }

    async fn append(
        &self,
        job: JobId,
        generation: Generation,
        bodies: Vec<EventBody>,
    ) -> Result<Vec<SealedEvent>, StoreError> {
        // The writer alone knows whether a line was written when a connection broke, so that the one who
        // holds the job need not write it again.
        self.ask_until_answered(Operation::Append, Append { job, generation, bodies }).await
    }

    async fn request_cancel(&self, job: JobId, by: &str) -> Result<JobStatus, StoreError> {
        self.ask(Operation::Cancel, Cancel { job, by: by.into() }).await
    }

    async fn steer(&self, job: JobId, wish: Steering, by: &str) -> Result<JobStatus, StoreError> {
        self.ask(Operation::Steer, Steer { job, wish, by: by.into() }).await
    }

    async fn change_network(
        &self,
        job: JobId,
        network: NetworkPolicy,
        by: &str,
    ) -> Result<JobStatus, StoreError> {
        self.ask(Operation::ChangeNetwork, ChangeNetwork { job, network, by: by.into() }).await
    }

    async fn events_after(
        &self,
        job: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<SealedEvent>, StoreError> {
        patiently(|| reads::events_after(&self.readers.short, job, after, limit)).await
    }

    async fn outline(&self, job: JobId) -> Result<JobOutline, StoreError> {
        patiently(|| reads::outline(&self.readers.short, job)).await
    }

    async fn lines_after(
        &self,
        job: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        patiently(|| reads::lines_after(&self.readers.short, job, after, limit)).await
    }

    async fn end_of_log(&self, job: JobId) -> Result<LogEnd, StoreError> {
        patiently(|| reads::end_of_log(&self.readers.short, job)).await
    }

    async fn job(&self, job: JobId) -> Result<JobView, StoreError> {
        patiently(|| reads::job(&self.readers.long, job)).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, StoreError> {
        let readers = match filter.search {
            Some(_) => &self.readers.long,
            None => &self.readers.short,
        };
        patiently(|| reads::jobs(readers, filter)).await
    }

    async fn ended_before(
        &self,
        moment: Timestamp,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<JobId>, StoreError> {
        patiently(|| reads::ended_before(&self.readers.short, moment, skip, limit)).await
    }

    async fn retire_job(&self, job: JobId) -> Result<bool, StoreError> {
        self.ask(Operation::Retire, job).await
    }

    async fn forget_job(&self, job: JobId) -> Result<bool, StoreError> {
        self.ask(Operation::Forget, job).await
    }

    async fn add_memory(&self, new: NewMemory) -> Result<Option<Memory>, StoreError> {
        let by = new.owner.clone().unwrap_or_else(|| "user".into());
        self.ask(Operation::Memory, Wanted { by, change: MemoryChange::Add(new) }).await
    }

    async fn edit_memory(
        &self,
        id: i64,
        text: String,
        vector: Option<Vec<f32>>,
        by: &str,
    ) -> Result<Option<Memory>, StoreError> {
        let wanted = Wanted::by(by, MemoryChange::Edit { id, text, vector });
        self.ask(Operation::Memory, wanted).await
    }

    async fn delete_memory(&self, id: i64, by: &str) -> Result<Option<Memory>, StoreError> {
        self.ask(Operation::Memory, Wanted::by(by, MemoryChange::Delete { id })).await
    }

    async fn memories(&self, query: &MemoryQuery) -> Result<Vec<Memory>, StoreError> {
        patiently(|| memories::find(&self.readers.long, query)).await
    }

    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, StoreError> {
        patiently(|| reads::count_by_status(&self.readers.short)).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.writer.is_closed() {
            return Err(StoreError::Closed);
        }
        let asked = sqlx::query("SELECT 1").execute(&self.readers.ping);
        match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(answered) => answered.map(drop).map_err(Into::into),
            Err(_) => Err(StoreError::Unavailable),
        }
    }

    async fn close(&self) {
        let (closed, wait) = oneshot::channel();
        if self.writer.send(Operation::Close(closed)).await.is_ok() {
            // A database that is away holds up nobody's end.
            let _ = tokio::time::timeout(CLOSES_WITHIN, wait).await;
        }
        self.news.abort();
        self.readers.close().await;
    }
}
