//! The one writer of a process: takes everything that is queued, commits it at once, then answers.
//!
//! While the database is away, operations wait here for as long as somebody waits for them. What was
//! answered with success is committed; what was being committed when the connection broke is asked
//! about, so nothing is written twice.

use std::time::Duration;

use tokio::sync::{broadcast, mpsc};

use super::batch::{self, Progress, Ready, Surroundings};
use super::fault::{Backoff, Fault};
use super::link::{DatabaseClock, Link, Outcome};
use crate::group::draft::longest_claimed_lease;
use crate::group::operation::Operation;
use crate::group::{LARGEST_BATCH, gather, publish};
use crate::{Change, StoreError};

/// A transaction that takes longer than this has lost its connection without noticing.
const LONGEST_TRANSACTION: Duration = Duration::from_secs(10);

/// The writer's part of a store.
pub(super) struct Writer {
    pub(super) link: Link,
    pub(super) clock: DatabaseClock,
    /// Under which name this store tells others of changes.
    pub(super) teller: String,
    /// How many groups were tried to be written. Each try has a number of its own.
    pub(super) batch: i64,
    pub(super) changes: broadcast::Sender<Change>,
}

impl Writer {
    /// Serves until the store is dropped or closed.
    pub(super) async fn serve(mut self, mut operations: mpsc::Receiver<Operation>) {
        let mut batch = Vec::with_capacity(LARGEST_BATCH);
        let mut closing = Vec::new();
        while gather(&mut operations, &mut batch).await {
            self.commit(&mut batch).await;
            for operation in batch.drain(..) {
                if let Operation::Close(closed) = operation {
                    // What was queued before this is still done; what comes later is refused.
                    operations.close();
                    closing.push(closed);
                } else {
                    operation.deliver();
                }
            }
        }
        if let Err(error) = self.link.close().await {
            tracing::debug!(%error, "the connection to the database was gone before its end");
        }
        for closed in closing {
            // A caller that went away does not want to know.
            let _ = closed.send(());
        }
    }

    /// Commits a batch, however often that has to be tried. Afterwards every operation has its
    /// answer, unless its caller has gone away.
    async fn commit(&mut self, batch: &mut Vec<Operation>) {
        let mut backoff = Backoff::default();
        loop {
            // Also what waited in the queue: whoever gave up was told that nothing was done.
            batch.retain(|operation| !operation.is_abandoned());
            if batch.iter().all(|operation| matches!(operation, Operation::Close(_))) {
                return;
            }
            let Some(error) = self.attempt(batch).await else { return };
            match Fault::of(&error) {
                Fault::Connection | Fault::Conflict => {
                    tracing::warn!(%error, operations = batch.len(), "a group of writes waits");
                }
                Fault::Statement => return self.commit_one_by_one(batch, error).await,
            }
            backoff.wait().await;
        }
    }

    /// One operation that the database cannot take must not fail its neighbours.
    async fn commit_one_by_one(&mut self, batch: &mut Vec<Operation>, error: StoreError) {
        if let [operation] = batch.as_mut_slice() {
            return operation.fail(error);
        }
        tracing::warn!(%error, operations = batch.len(), "a group of writes failed; each is tried alone");
        let mut done = Vec::with_capacity(batch.len());
        for operation in batch.drain(..) {
            let mut alone = vec![operation];
            Box::pin(self.commit(&mut alone)).await;
            done.append(&mut alone);
        }
        *batch = done;
    }

    /// Tries once. An error says that nothing was written.
    async fn attempt(&mut self, batch: &mut [Operation]) -> Option<StoreError> {
        if let Err(error) = self.link.get().await {
            return Some(error.into());
        }
        let forbearing =
            longest_claimed_lease(batch).is_some_and(|lease| self.link.was_away_within(lease));
        self.batch += 1;
        let (clock, teller, number) = (&self.clock, self.teller.as_str(), self.batch);
        let surroundings = Surroundings { clock, teller, number, forbearing };
        let connection = match self.link.get().await {
            Ok(connection) => connection,
            Err(error) => return Some(error.into()),
        };
        let mut progress = Progress::default();
        let running = batch::run(connection, batch, &surroundings, &mut progress);
        let error = match tokio::time::timeout(LONGEST_TRANSACTION, running).await {
            Ok(Ok(())) => {
                publish(
                    &self.changes,
                    progress.ready.map(|ready| ready.changes).unwrap_or_default(),
                );
                return None;
            }
            Ok(Err(error)) => error,
            Err(_) => StoreError::Database(sqlx::Error::PoolTimedOut),
        };
        match Fault::of(&error) {
            Fault::Connection => self.link.cut(),
            Fault::Conflict | Fault::Statement => self.link.roll_back().await,
        }
        match progress.ready {
            Some(ready) if self.was_committed(&ready).await => {
                publish(&self.changes, ready.changes);
                None
            }
            _ => Some(error),
        }
    }

    /// Whether a transaction was committed of which we only know that it was about to be.
    async fn was_committed(&mut self, ready: &Ready) -> bool {
        let mut backoff = Backoff::default();
        loop {
            match self.link.outcome_of(&self.teller, ready).await {
                Ok(Outcome::Committed) => return true,
                Ok(Outcome::RolledBack) => return false,
                Ok(Outcome::Open) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot ask yet whether a group of writes was committed");
                    self.link.cut();
                }
            }
            backoff.wait().await;
        }
    }
}
