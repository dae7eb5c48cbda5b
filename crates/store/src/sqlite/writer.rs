//! The one writer: takes everything that is queued, commits it with a single sync, then answers.
//!
//! Group commit is what makes durable writes fast: a hundred callers share one wait for the disk.
//! While the disk works, the next group gathers by itself, so there is no delay to tune.

use std::fs::File;

use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{broadcast, mpsc};

use super::batch::{self, Failure};
use super::operation::Operation;
use crate::{Change, StoreError};

/// How many operations go into one transaction at the most. Bounds how long the first of them
/// waits for the others.
const LARGEST_BATCH: usize = 256;

/// Serves until the store is dropped or closed. Holds the lock on the file until the very end.
pub(super) async fn serve(
    mut connection: SqliteConnection,
    lock: File,
    mut operations: mpsc::Receiver<Operation>,
    changes: broadcast::Sender<Change>,
) {
    let mut batch = Vec::with_capacity(LARGEST_BATCH);
    let mut closing = Vec::new();
    while gather(&mut operations, &mut batch).await {
        commit(&mut connection, &mut batch, &changes).await;
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
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "failed to close the database; it is recovered at the next start");
    }
    drop(lock);
    for closed in closing {
        // A caller that went away does not want to know.
        let _ = closed.send(());
    }
}

/// Waits for operations and takes all that are queued; `false` when there will be none any more.
async fn gather(operations: &mut mpsc::Receiver<Operation>, batch: &mut Vec<Operation>) -> bool {
    if operations.recv_many(batch, LARGEST_BATCH).await == 0 {
        return false;
    }
    // Callers who were just answered often come right back. One turn for them makes the group
    // nearly twice as large, and where nobody waits it costs nothing.
    tokio::task::yield_now().await;
    while batch.len() < LARGEST_BATCH
        && let Ok(operation) = operations.try_recv()
    {
        batch.push(operation);
    }
    true
}

/// Commits a batch and publishes what it changed. Afterwards every operation has its answer.
async fn commit(
    connection: &mut SqliteConnection,
    operations: &mut [Operation],
    changes: &broadcast::Sender<Change>,
) {
    match batch::run(connection, operations).await {
        Ok(made) => publish(changes, made),
        Err(Failure::RolledBack(error)) if operations.len() > 1 => {
            // One operation that the database cannot take must not fail its neighbours.
            tracing::warn!(
                %error,
                operations = operations.len(),
                "a group of writes failed; each is tried alone"
            );
            for operation in operations {
                match batch::run(connection, std::slice::from_mut(operation)).await {
                    Ok(made) => publish(changes, made),
                    Err(failure) => operation.fail(failure.into()),
                }
            }
        }
        Err(Failure::RolledBack(error)) => {
            if let Some(operation) = operations.first_mut() {
                operation.fail(error);
            }
        }
        Err(Failure::AtCommit(error)) => {
            // Whether it is on the disk is not known, so it is not tried a second time.
            tracing::error!(%error, "a group of writes could not be committed");
            let text = error.to_string();
            for operation in operations {
                let copy = sqlx::Error::Io(std::io::Error::other(text.clone()));
                operation.fail(StoreError::Database(copy));
            }
        }
    }
}

fn publish(changes: &broadcast::Sender<Change>, made: Vec<Change>) {
    for change in made {
        // Nobody listening is no error.
        let _ = changes.send(change);
    }
}
