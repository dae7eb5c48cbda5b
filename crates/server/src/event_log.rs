//! Reads a job's history in pages, and follows it while it grows: nothing missed, nothing twice.
//!
//! The reader listens for changes before it reads, and every wake-up only means "look at the log
//! again". So a change that is lost, doubled or late cannot lose an event.

use std::sync::Arc;

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::JobId;
use bellglass_store::{Change, Store, StoreError};
use futures::Stream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// What to do at the end of what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    Stop,
    /// Wait for more until the job has finished.
    Follow,
}

pub(crate) struct LogReader {
    store: Arc<dyn Store>,
    job: JobId,
    after: u64,
    at_end: AtEnd,
    changes: broadcast::Receiver<Change>,
    stopping: CancellationToken,
    finished: bool,
}

/// Events in one page: many enough that the store is asked seldom. Their bytes are bounded by it.
const PAGE: u32 = 200;

impl LogReader {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        job: JobId,
        after: u64,
        at_end: AtEnd,
        stopping: CancellationToken,
    ) -> Self {
        let changes = store.changes();
        Self { store, job, after, at_end, changes, stopping, finished: false }
    }

    /// The next events, never none of them; `None` when there will be no more.
    async fn next_page(&mut self) -> Result<Option<Vec<SealedEvent>>, StoreError> {
        loop {
            if self.finished || self.stopping.is_cancelled() {
                return Ok(None);
            }
            let page = self.store.events_after(self.job, self.after, PAGE).await?;
            if let Some(last) = page.last() {
                self.after = last.event.seq;
                self.finished = matches!(last.event.body, EventBody::Finished { .. });
                return Ok(Some(page));
            }
            if self.at_end == AtEnd::Stop || self.is_past_the_end().await? || !self.changed().await
            {
                return Ok(None);
            }
        }
    }

    /// Whether nothing is to come. A reader that asks for what lies beyond the last event never
    /// sees the event `finished`, so that alone does not tell.
    async fn is_past_the_end(&self) -> Result<bool, StoreError> {
        is_over(self.store.as_ref(), self.job, self.after).await
    }

    /// Waits until there may be more; `false` if there is nothing to wait for.
    async fn changed(&mut self) -> bool {
        loop {
            let change = tokio::select! {
                () = self.stopping.cancelled() => return false,
                change = self.changes.recv() => change,
            };
            match change {
                Ok(change) if change.job != self.job => {}
                Ok(change) if change.seq > self.after || change.status.is_terminal() => {
                    return true;
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return true,
                Err(RecvError::Closed) => return false,
            }
        }
    }

    /// The pages as a stream, which ends after its first error.
    pub(crate) fn pages(self) -> impl Stream<Item = Result<Vec<SealedEvent>, StoreError>> + Send {
        futures::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next_page().await {
                Ok(page) => page.map(|page| (Ok(page), Some(reader))),
                Err(error) => {
                    tracing::error!(
                        job = %reader.job,
                        error = &error as &dyn std::error::Error,
                        "a job's history could not be read on"
                    );
                    Some((Err(error), None))
                }
            }
        })
    }
}

/// Whether nothing comes after event number `after` any more.
pub(crate) async fn is_over(store: &dyn Store, job: JobId, after: u64) -> Result<bool, StoreError> {
    let outline = store.outline(job).await?;
    Ok(outline.status.is_terminal() && outline.last_seq <= after)
}
