//! The one writer: takes everything that is queued, commits it with a single sync, then answers.

use std::fs::File;

use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{broadcast, mpsc};

use super::batch::{self, Failure};
use crate::group::operation::Operation;
use crate::group::{LARGEST_BATCH, gather, publish};
use crate::{Change, StoreError};

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
            let error = StoreError::from(error);
            let (text, is_full) = (error.to_string(), error.is_full());
            for operation in operations {
                operation.fail(match is_full {
                    true => StoreError::Full,
                    false => {
                        let copy = sqlx::Error::Io(std::io::Error::other(text.clone()));
                        StoreError::Database(copy)
                    }
                });
            }
        }
    }
}
