//! Forgets jobs that ended long ago, by the operator's policy: what they left, then their logs. A job that
//! has not ended is never touched, and neither is one that such a job goes on from.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::id::JobId;
use jiff::{SignedDuration, Timestamp};

use crate::queue::Shared;

/// How often old jobs are looked for.
const EVERY: Duration = Duration::from_secs(600);

/// How many are looked at together.
const PAGE: u32 = 100;

/// Forgets for ever. Several workers on one store may do so at once: what is gone is gone.
pub(crate) async fn keep_forgetting(shared: Arc<Shared>, keep: Duration) {
    loop {
        let forgotten = forget_old(&shared, keep).await;
        if forgotten > 0 {
            tracing::info!(forgotten, "forgot jobs that ended long ago");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Looks at every old job once. Those that cannot be forgotten do not keep others from it.
async fn forget_old(shared: &Shared, keep: Duration) -> u32 {
    let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::MAX);
    let Ok(moment) = Timestamp::now().checked_sub(keep) else { return 0 };
    let (mut forgotten, mut left) = (0, 0);
    loop {
        let old = match shared.store.ended_before(moment, left, PAGE).await {
            Ok(old) => old,
            Err(error) => {
                tracing::warn!(%error, "cannot look for old jobs");
                return forgotten;
            }
        };
        if old.is_empty() {
            return forgotten;
        }
        for job in old {
            match forget(shared, job).await {
                Ok(()) => forgotten += 1,
                Err(reason) => {
                    tracing::warn!(%job, reason, "an old job is not forgotten");
                    left += 1;
                }
            }
        }
    }
}

/// The artifacts before the log: as long as the job is known, whoever comes next tries again.
async fn forget(shared: &Shared, job: JobId) -> Result<(), String> {
    // From here on nothing goes on from it that would miss what is deleted.
    match shared.store.retire_job(job).await {
        Ok(true) => {}
        Ok(false) => return Err("another job goes on from it, or it is gone already".into()),
        Err(error) => return Err(error.to_string()),
    }
    shared.artifacts.delete_job(job).await.map_err(|error| error.to_string())?;
    shared.store.forget_job(job).await.map(drop).map_err(|error| error.to_string())
}
