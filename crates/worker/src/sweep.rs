//! Removes, again and again, sandboxes whose jobs are over: those of workers that were killed, and
//! those that could not be removed when their job ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::view::JobStatus;
use bellglass_sandbox::{BackendError, SandboxName};
use bellglass_store::{JobFilter, Store, StoreError};

use crate::queue::Shared;

pub(crate) async fn keep_sweeping(shared: Arc<Shared>, every: Duration) {
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
        match unfinished_sandboxes(&*shared.store).await {
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

/// Sandboxes of jobs that are not over. They may be found again.
pub(crate) async fn unfinished_sandboxes(
    store: &dyn Store,
) -> Result<HashSet<SandboxName>, StoreError> {
    let mut keep = HashSet::new();
    for status in [JobStatus::Running, JobStatus::Paused] {
        let mut filter = JobFilter { status: Some(status), limit: 200, ..Default::default() };
        loop {
            let page = store.jobs(&filter).await?;
            keep.extend(page.jobs.iter().map(|job| SandboxName::of_job(job.id)));
            filter.before = page.jobs.last().map(|job| job.id);
            if !page.more {
                break;
            }
        }
    }
    Ok(keep)
}

pub(crate) fn tell(swept: Result<usize, BackendError>) {
    match swept {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "removed sandboxes that no job needs"),
        Err(error) => tracing::error!(%error, "cannot remove leftover sandboxes"),
    }
}
