//! Removes, again and again, sandboxes whose jobs are over: those of workers that were killed, and
//! those that could not be removed when their job ended; and the unrecorded output of jobs that others
//! have taken over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::id::{JobId, WorkerId};
use bellglass_sandbox::{BackendError, SandboxName};
use bellglass_store::{Store, StoreError};

use crate::ending::remove_spools;
use crate::queue::Shared;

pub(crate) async fn keep_sweeping(shared: Arc<Shared>, every: Duration) {
    loop {
        // Whoever lets go of a job that another holds does not leave its sandbox to the next round.
        let _ = tokio::time::timeout(every, shared.sweep_soon.notified()).await;
        // What is here is listed first: a job that starts in between is among our own then.
        let names = match shared.backends.names().await {
            Ok(names) => names,
            Err(error) => {
                tracing::error!(%error, "cannot list the sandboxes");
                continue;
            }
        };
        let spools = spools_here(&shared).await;
        if names.is_empty() && spools.is_empty() {
            continue;
        }
        match own_sandboxes(&*shared.store, &shared.worker).await {
            Ok(keep) => {
                let orphans = names.difference(&keep).cloned().collect();
                tell(shared.backends.remove_orphans(&orphans).await);
                for job in
                    spools.into_iter().filter(|job| !keep.contains(&SandboxName::of_job(*job)))
                {
                    remove_spools(&shared, job).await;
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot tell which sandboxes are in use; removing none");
            }
        }
    }
}

/// The jobs that have left output here which is not recorded.
async fn spools_here(shared: &Shared) -> Vec<JobId> {
    let mut jobs = Vec::new();
    // Without a folder there are none.
    let Ok(mut entries) = tokio::fs::read_dir(&shared.spools).await else { return jobs };
    while let Ok(Some(entry)) = entries.next_entry().await {
        jobs.extend(entry.file_name().to_str().and_then(|name| name.parse::<JobId>().ok()));
    }
    jobs
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
