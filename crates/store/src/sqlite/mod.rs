//! The store on SQLite: one writer that commits for everybody at once, and a few readers.
//!
//! This file is the surface. What may happen to a job is decided in `rules`; this module and those
//! below it know only how to put it into a database file.

mod access;
mod audit;
mod batch;
mod memories;
mod open;
mod reads;
mod rows;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::{JobStatus, JobView};
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, oneshot};

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

/// A data directory's database.
#[derive(Debug)]
pub struct SqliteStore {
    readers: open::Readers,
    /// `None` when the database was opened for reading only.
    writer: Option<mpsc::Sender<Operation>>,
    changes: broadcast::Sender<Change>,
    /// Where workers are. In memory, because nobody but this process can work on the file.
    addresses: Mutex<HashMap<WorkerId, String>>,
}

impl SqliteStore {
    /// Opens the database file, making it and its folder where they are missing.
    ///
    /// The file belongs to this store until [`close`](Self::close) returns or the process ends; a
    /// second store on it is refused with [`StoreError::InUse`].
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let opened = open::for_writing(path).await?;
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let (writer, operations) = mpsc::channel(QUEUE);
        tokio::spawn(writer::serve(opened.connection, opened.lock, operations, changes.clone()));
        Ok(Self {
            readers: opened.readers,
            writer: Some(writer),
            changes,
            addresses: Mutex::default(),
        })
    }

    /// Opens an existing database beside whoever writes to it. Nothing can be changed through
    /// this store, and it hears of no changes.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let readers = open::for_reading(path).await?;
        let (changes, _) = broadcast::channel(1);
        Ok(Self { readers, writer: None, changes, addresses: Mutex::default() })
    }

    async fn ask<Q, A>(
        &self,
        operation: fn(Pending<Q, A>) -> Operation,
        request: Q,
    ) -> Result<A, StoreError> {
        let writer = self.writer.as_ref().ok_or(StoreError::ReadOnly)?;
        let (pending, answer) = Pending::new(request);
        writer.send(operation(pending)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Folds a job that was claimed, which can take long, so that the writer does not wait for it. One that
    /// cannot be read is let go of.
    async fn read_claimed(
        &self,
        (job, generation): (JobId, Generation),
    ) -> Result<Option<ClaimedJob>, StoreError> {
        match reads::brief(&self.readers.claims, job).await {
            Ok((view, recorded_bytes)) => Ok(Some(ClaimedJob { generation, view, recorded_bytes })),
            Err(StoreError::Corrupt(reason)) => {
                unreadable::let_go(self, (job, generation), &reason, Others::Nobody).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn schedule(&self, spec: JobSpec) -> Result<JobId, StoreError> {
        // Sealed here and not in the writer: hashing then happens on all cores, and the
        // transaction that everybody waits for only writes.
        let (row, scheduled) = IndexRow::accept(spec, now());
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
        reads::held_by(&self.readers.short, worker).await
    }

    async fn announce_worker(
        &self,
        worker: &WorkerId,
        address: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut addresses = self.addresses.lock().expect("no code panics while it holds this lock");
        match address {
            Some(address) => addresses.insert(worker.clone(), address.to_owned()),
            None => addresses.remove(worker),
        };
        Ok(())
    }

    async fn address_of_holder(&self, job: JobId) -> Result<Option<String>, StoreError> {
        let holder = reads::holder(&self.readers.short, job).await?;
        let addresses = self.addresses.lock().expect("no code panics while it holds this lock");
        Ok(holder.and_then(|worker| addresses.get(&worker).cloned()))
    }

    async fn append(
        &self,
        job: JobId,
        generation: Generation,
        bodies: Vec<EventBody>,
    ) -> Result<Vec<SealedEvent>, StoreError> {
        self.ask(Operation::Append, Append { job, generation, bodies }).await
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
        reads::events_after(&self.readers.short, job, after, limit).await
    }

    async fn outline(&self, job: JobId) -> Result<JobOutline, StoreError> {
        reads::outline(&self.readers.short, job).await
    }

    async fn lines_after(
        &self,
        job: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        reads::lines_after(&self.readers.short, job, after, limit).await
    }

    async fn end_of_log(&self, job: JobId) -> Result<LogEnd, StoreError> {
        reads::end_of_log(&self.readers.short, job).await
    }

    async fn job(&self, job: JobId) -> Result<JobView, StoreError> {
        reads::job(&self.readers.long, job).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, StoreError> {
        let readers = match filter.search {
            Some(_) => &self.readers.long,
            None => &self.readers.short,
        };
        reads::jobs(readers, filter).await
    }

    async fn ended_before(
        &self,
        moment: Timestamp,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<JobId>, StoreError> {
        reads::ended_before(&self.readers.short, moment, skip, limit).await
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
        memories::find(&self.readers.long, query).await
    }

    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, StoreError> {
        reads::count_by_status(&self.readers.short).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.writer.as_ref().is_some_and(mpsc::Sender::is_closed) {
            return Err(StoreError::Closed);
        }
        sqlx::query("SELECT 1").execute(&self.readers.ping).await?;
        Ok(())
    }

    async fn close(&self) {
        self.readers.close().await;
        if let Some(writer) = &self.writer {
            let (closed, wait) = oneshot::channel();
            if writer.send(Operation::Close(closed)).await.is_ok() {
                // Either way the writer is gone then, and with it the lock.
                let _ = wait.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::job::{DEFAULT_IMAGE, IsolationLevel, Limits, OnError, Priority, Work};
    use bellglass_protocol::network::NetworkPolicy;

    fn spec() -> JobSpec {
        JobSpec {
            name: None,
            work: Work::Task("do it".into()),
            on_error: OnError::Continue,
            priority: Priority(0),
            image: DEFAULT_IMAGE.into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            isolation: IsolationLevel::Namespace,
            nested_sandboxing: false,
            desktop: None,
            secrets: Default::default(),
            files: Vec::new(),
            model: None,
            budget: Default::default(),
            plan: Default::default(),
            mcp: Default::default(),
            approve: Vec::new(),
            project: None,
            fork: None,
            owner: None,
        }
    }

    /// Takes every connection there is for one kind of reader.
    async fn all_of(pool: &sqlx::SqlitePool) -> Vec<sqlx::pool::PoolConnection<sqlx::Sqlite>> {
        let mut taken = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            taken.push(pool.acquire().await.unwrap());
        }
        taken
    }

    #[tokio::test]
    async fn those_who_read_much_hold_up_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("db")).await.unwrap();
        let job = store.schedule(spec()).await.unwrap();
        let _long = all_of(&store.readers.long).await;
        assert_eq!(store.outline(job).await.unwrap().last_seq, 1);
        let _short = all_of(&store.readers.short).await;
        store.ping().await.unwrap();
        let lease = Duration::from_secs(60);
        let claimed = store.claim_next_job(&WorkerId::new("w"), lease).await.unwrap().unwrap();
        assert_eq!(claimed.view.job_id, job);
        let _claims = all_of(&store.readers.claims).await;
        store.ping().await.unwrap();
    }
}
