//! Lets go of clients that stand still, so that what they hold is free for others.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::mpsc;

/// How long a client may neither take nor give data of a file before its transfer is ended.
pub const IDLE: Duration = Duration::from_secs(30);

/// A file on its way.
pub type FileData = BoxStream<'static, io::Result<Bytes>>;

/// Passes data on until its reader has taken none for a while. What the reader holds meanwhile,
/// such as a place among so many, is given back with it.
///
/// Nobody polls a stream whose reader stands still, so a task of its own keeps the time.
pub fn let_go_of_idle_readers(
    mut data: FileData,
    idle: Duration,
    held: impl Send + 'static,
) -> FileData {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _held = held;
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
pub fn end_when_idle(data: FileData, idle: Duration) -> FileData {
    futures::stream::unfold(Some(data), move |data: Option<FileData>| async move {
        let mut data = data?;
        match tokio::time::timeout(idle, data.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(data))),
            Err(_) => Some((Err(stood_still()), None)),
        }
    })
    .boxed()
}

/// The error of a transfer whose client stood still.
fn stood_still() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client stood still for too long")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn pieces(count: usize) -> FileData {
        futures::stream::iter((0..count).map(|_| Ok(Bytes::from_static(b"x")))).boxed()
    }

    async fn taken(data: FileData) -> (usize, Option<io::ErrorKind>) {
        let all: Vec<_> = data.collect().await;
        let error = all.iter().find_map(|piece| piece.as_ref().err().map(io::Error::kind));
        (all.iter().filter(|piece| piece.is_ok()).count(), error)
    }

    /// So short that waiting for it costs nothing.
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_reader_that_stands_still_gives_its_place_back() {
        let room = Arc::new(Semaphore::new(1));
        let place = room.clone().try_acquire_owned().unwrap();
        let mut data = let_go_of_idle_readers(pieces(1000), SHORT, place);
        assert!(room.clone().try_acquire_owned().is_err());
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
        let place = async || room.clone().acquire_owned().await.unwrap();
        let data = let_go_of_idle_readers(pieces(1000), IDLE, place().await);
        assert_eq!(taken(data).await, (1000, None));
        drop(let_go_of_idle_readers(pieces(1000), IDLE, place().await));
        drop(place().await);
    }

    #[tokio::test]
    async fn a_writer_that_stands_still_is_an_error() {
        let stuck = pieces(2).chain(futures::stream::pending()).boxed();
        let kind = Some(io::ErrorKind::TimedOut);
        assert_eq!(taken(end_when_idle(stuck, SHORT)).await, (2, kind));
        assert_eq!(taken(end_when_idle(pieces(3), IDLE)).await, (3, None));
    }
}
