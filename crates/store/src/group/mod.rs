//! Group commit: callers' wishes are gathered, decided in memory, and committed together.
//!
//! What both databases share of it. Many callers share one wait for the disk, and while the disk works
//! the next group gathers by itself, so there is no delay to tune.

pub(crate) mod draft;
pub(crate) mod operation;

use tokio::sync::{broadcast, mpsc};

use crate::Change;
use operation::Operation;

/// How many changes a listener may lie behind before it has to look at the log again.
pub(crate) const CHANGES_KEPT: usize = 4096;

/// How many callers may stand in line for the writer before further ones wait to stand in line.
pub(crate) const QUEUE: usize = 1024;

/// How many operations go into one transaction at the most. Bounds how long the first of them
/// waits for the others.
pub(crate) const LARGEST_BATCH: usize = 256;

/// Waits for operations and takes all that are queued; `false` when there will be none any more.
pub(crate) async fn gather(
    operations: &mut mpsc::Receiver<Operation>,
    batch: &mut Vec<Operation>,
) -> bool {
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

/// Tells listeners what a committed group changed.
pub(crate) fn publish(changes: &broadcast::Sender<Change>, made: Vec<Change>) {
    for change in made {
        // Nobody listening is no error.
        let _ = changes.send(change);
    }
}
