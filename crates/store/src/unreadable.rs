//! What becomes of a job that was claimed and cannot be read: it is nobody's here, and must neither be claimed
//! again and again nor wait for ever.

use bellglass_protocol::chain::{LinkHash, is_as_written};
use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError};
use bellglass_protocol::id::{Generation, JobId};

use crate::line::hash_at_end;
use crate::{Store, StoreError};

/// Lines in one page.
const PAGE: u32 = 1000;

/// Who else may be able to read what this program cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Newer programs work on the same database.
    Newer,
    Nobody,
}

/// Lets go of the job, as the one who has just claimed it. Where all of its lines are as they were written, and
/// whoever wrote them may come, it is left to them; otherwise it ends.
pub(crate) async fn let_go(
    store: &dyn Store,
    (job, generation): (JobId, Generation),
    reason: &str,
    others: Others,
) -> Result<(), StoreError> {
    tracing::error!(%job, reason, "a job cannot be read");
    let last = if others == Others::Newer && is_whole(store, job).await? {
        // In this order, so that a process which ends in between has not left it to its own kind.
        store.leave_to_newer(job, generation).await?;
        EventBody::Released { generation }
    } else {
        let (code, message) =
            ("log_unreadable".into(), format!("the job cannot be read: {reason}"));
        let error = Some(JobError { code, message });
        let end = JobEnd { status: EndStatus::Failed, failed_steps: Vec::new(), error };
        EventBody::Finished { end }
    };
    store.append(job, generation, vec![last]).await.map(drop)
}

/// Whether every line of the log is as it was written and where it was written, whatever it says.
async fn is_whole(store: &dyn Store, job: JobId) -> Result<bool, StoreError> {
    let (mut seen, mut previous) = (0, LinkHash::root(job));
    loop {
        let page = store.lines_after(job, seen, PAGE).await?;
        if page.is_empty() {
            return Ok(seen > 0);
        }
        for line in &page {
            let Some(hash) = hash_behind(previous, line) else { return Ok(false) };
            previous = hash;
        }
        seen += page.len() as u64;
    }
}

/// The hash of a line that is as it was written and comes behind the one of this hash.
fn hash_behind(previous: LinkHash, line: &str) -> Option<LinkHash> {
    let fields: serde_json::Value = serde_json::from_str(line).ok()?;
    let follows = fields["prev"] == previous.hex() && is_as_written(line);
    hash_at_end(line).filter(|_| follows)
}
