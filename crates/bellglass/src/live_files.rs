//! Lets the HTTP side reach the workspaces of jobs that run in this process.
//!
//! A job must not suffer from those who look at its files: so many may do so at once, and who
//! stands still is let go.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::workspace_relative;
use bellglass_sandbox::client::ClientError;
use bellglass_server::{LiveContent, LiveError, LiveJobs};
use bellglass_worker::{LiveSandbox, LiveSandboxes};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

pub(crate) struct LiveFiles(pub(crate) LiveSandboxes);

/// How long a client may neither take nor give data before its transfer is ended.
const IDLE: Duration = Duration::from_secs(30);

impl LiveFiles {
    fn sandbox(&self, job: JobId) -> Result<LiveSandbox, LiveError> {
        self.0.get(job).ok_or(LiveError::NotRunning)
    }
}

#[async_trait]
impl LiveJobs for LiveFiles {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError> {
        let LiveSandbox { guest, reads, .. } = self.sandbox(job)?;
        let permit = permit(&reads)?;
        if workspace_relative(path).is_empty() {
            return Ok(LiveContent::Folder(guest.list_folder(path).await.map_err(live_error)?));
        }
        match guest.read_file(path).await {
            Ok((bytes, data)) => {
                Ok(LiveContent::File { bytes, data: let_go_of_idle_readers(data, IDLE, permit) })
            }
            Err(ClientError::Refused(error)) if error.code == "is_a_folder" => {
                Ok(LiveContent::Folder(guest.list_folder(path).await.map_err(live_error)?))
            }
            Err(error) => Err(live_error(error)),
        }
    }

    async fn write(
        &self,
        job: JobId,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError> {
        let LiveSandbox { guest, writes, .. } = self.sandbox(job)?;
        let _permit = permit(&writes)?;
        let data = end_when_idle(data, IDLE);
        guest.write_file(path, executable, data).await.map_err(live_error)
    }

    async fn delete(&self, job: JobId, path: &str) -> Result<(), LiveError> {
        let LiveSandbox { guest, writes, .. } = self.sandbox(job)?;
        let _permit = permit(&writes)?;
        guest.delete_file(path).await.map_err(live_error)
    }
}

fn permit(room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, LiveError> {
    room.clone().try_acquire_owned().map_err(|_| LiveError::Busy)
}

type Data = BoxStream<'static, io::Result<Bytes>>;

/// Passes data on until its reader has taken none for a while. The permit is given back with it.
///
/// Nobody polls a stream whose reader stands still, so a task of its own keeps the time.
fn let_go_of_idle_readers(mut data: Data, idle: Duration, permit: OwnedSemaphorePermit) -> Data {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        loop {
            let piece = tokio::select! {
                piece = data.next() => piece,
                () = sender.closed() => return,
            };
            let is_last = piece.is_none();
            // The end is sent too: a reader that lost its source must not take that for the end.
            if sender.send_timeout(piece, idle).await.is_err() || is_last {
                return;
            }
        }
    });
    futures::stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Some(Ok(piece))) => Some((Ok(piece), Some(receiver))),
            Some(Some(Err(error))) => Some((Err(error), None)),
            Some(None) => None,
            None => Some((Err(stood_still()), None)),
        }
    })
    .boxed()
}

/// Ends data with an error when its sender gives none for a while.
fn end_when_idle(data: Data, idle: Duration) -> Data {
    futures::stream::unfold(Some(data), move |data: Option<Data>| async move {
        let mut data = data?;
        match tokio::time::timeout(idle, data.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(data))),
            Err(_) => Some((Err(stood_still()), None)),
        }
    })
    .boxed()
}

fn stood_still() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client stood still for too long")
}

fn live_error(error: ClientError) -> LiveError {
    match error {
        ClientError::Refused(error) => LiveError::Tool(error),
        other => LiveError::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(count: usize) -> Data {
        futures::stream::iter((0..count).map(|_| Ok(Bytes::from_static(b"x")))).boxed()
    }

    async fn taken(data: Data) -> (usize, Option<io::ErrorKind>) {
        let all: Vec<_> = data.collect().await;
        let error = all.iter().find_map(|piece| piece.as_ref().err().map(io::Error::kind));
        (all.iter().filter(|piece| piece.is_ok()).count(), error)
    }

    /// So short that waiting for it costs nothing.
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_reader_that_stands_still_gives_its_place_back() {
        let room = Arc::new(Semaphore::new(1));
        let mut data = let_go_of_idle_readers(pieces(1000), SHORT, permit(&room).unwrap());
        assert!(matches!(permit(&room), Err(LiveError::Busy)));
        assert!(data.next().await.is_some());
        // There is room again without the reader having moved, which then sees that it lost.
        let _ = room.acquire().await.unwrap();
        let (count, error) = taken(data).await;
        assert!(count < 1000);
        assert_eq!(error, Some(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_reader_that_reads_gets_everything() {
        let room = Arc::new(Semaphore::new(1));
        let data = let_go_of_idle_readers(pieces(1000), IDLE, permit(&room).unwrap());
        assert_eq!(taken(data).await, (1000, None));
        let _ = room.acquire().await.unwrap();
        let data = let_go_of_idle_readers(pieces(1000), IDLE, permit(&room).unwrap());
        drop(data);
        let _ = room.acquire().await.unwrap();
    }

    #[tokio::test]
    async fn a_writer_that_stands_still_is_an_error() {
        let stuck = pieces(2).chain(futures::stream::pending()).boxed();
        let kind = Some(io::ErrorKind::TimedOut);
        assert_eq!(taken(end_when_idle(stuck, SHORT)).await, (2, kind));
        assert_eq!(taken(end_when_idle(pieces(3), IDLE)).await, (3, None));
    }
}
