//! Removes, again and again, sandboxes whose jobs are over: those of workers that were killed, and
//! those that could not be removed when their job ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::id::WorkerId;
use bellglass_sandbox::{BackendError, SandboxName};
use bellglass_store::{Store, StoreError};

use crate::queue::Shared;

pub(crate) async fn keep_sweeping(shared: Arc<Shared>, worker: WorkerId, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        // The names come first: a job that starts in between is among the unfinished ones then.
        let names = match shared.backends.names().await {
            Ok(names) => names,
            Err(error) => {
                tracing::error!(%error, "cannot list the sandboxes");
                continue;
            }
        };
        if names.is_empty() {
            continue;
        }
        match own_sandboxes(&*shared.store, &worker).await {
            Ok(keep) => {
                let orphans = names.difference(&keep).cloned().collect();
                tell(shared.backends.remove_orphans(&orphans).await);
            }
            Err(error) => {
                tracing::error!(%error, "cannot tell which sandboxes are in use; removing none");
            }
        }
    }
}

/// Sandboxes of jobs that are not over and that this worker held last. They may be found again. One
/// whose job another worker has taken over is of no use to anybody.
pub(crate) async fn own_sandboxes(
    store: &dyn Store,
    worker: &WorkerId,
) -> Result<HashSet<SandboxName>, StoreError> {
    let held = store.held_by(worker).await?;
    Ok(held.into_iter().map(SandboxName::of_job).collect())
}

pub(crate) fn tell(swept: Result<usize, BackendError>) {
    match swept {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "removed sandboxes that no job needs"),
        Err(error) => tracing::error!(%error, "cannot remove leftover sandboxes"),
    }
}
