//! Forgets jobs that ended long ago, by the operator's policy: what they left, then their logs. A job that
//! has not ended is never touched.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::queue::Shared;

/// How often old jobs are looked for.
const EVERY: Duration = Duration::from_secs(600);

/// How many are forgotten before others have a turn.
const AT_ONCE: u32 = 100;

/// Forgets for ever. Several workers on one store may do so at once: what is gone is gone.
pub(crate) async fn keep_forgetting(shared: Arc<Shared>, keep: Duration) {
    loop {
        let forgotten = forget_old(&shared, keep).await;
        if forgotten > 0 {
            tracing::info!(forgotten, "forgot jobs that ended long ago");
        }
        if forgotten < AT_ONCE {
            tokio::time::sleep(EVERY).await;
        }
    }
}

async fn forget_old(shared: &Shared, keep: Duration) -> u32 {
    let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::MAX);
    let Ok(moment) = Timestamp::now().checked_sub(keep) else { return 0 };
    let old = match shared.store.ended_before(moment, AT_ONCE).await {
        Ok(old) => old,
        Err(error) => {
            tracing::warn!(%error, "cannot look for old jobs");
            return 0;
        }
    };
    let mut forgotten = 0;
    for job in old {
        // The artifacts first: as long as the job is known, whoever comes next tries again.
        if let Err(error) = shared.artifacts.delete_job(job).await {
            tracing::warn!(%job, %error, "cannot delete what an old job left");
            continue;
        }
        match shared.store.forget_job(job).await {
            Ok(_) => forgotten += 1,
            Err(error) => tracing::warn!(%job, %error, "cannot forget an old job"),
        }
    }
    forgotten
}
