//! A program's connection to the proxy, as it comes through the wire. One that was broken off says so, and does not
//! look like one whose program has said all it had to say and waits for an answer.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bellglass_protocol::mux::MuxStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How often a connection is looked after that nobody may read from. Reading says at once that it is broken off, but
/// nobody reads while what was read last is not taken.
const LOOKING_AGAIN: Duration = Duration::from_secs(10);

pub(super) struct Relayed {
    inner: Arc<Mutex<Inner>>,
    /// It is held as long as the connection, whichever task that is passed on to.
    _place: OwnedSemaphorePermit,
    /// Says so when this is dropped.
    _gone: DropGuard,
}

struct Inner {
    stream: MuxStream,
    /// A stream that both sides have closed looks like one that was broken off.
    is_closed_by_us: bool,
}

impl Inner {
    fn is_broken_off(&self) -> bool {
        !self.is_closed_by_us && self.stream.get_ref().is_closed()
    }
}

impl Relayed {
    /// `gone` is cancelled when this is dropped.
    pub(super) fn new(
        stream: MuxStream,
        place: OwnedSemaphorePermit,
        gone: CancellationToken,
    ) -> Self {
        let inner = Arc::new(Mutex::new(Inner { stream, is_closed_by_us: false }));
        Self { inner, _place: place, _gone: gone.drop_guard() }
    }

    /// Cancels `gone` when the connection is broken off, also while nobody reads from it.
    pub(super) fn watch(&self, gone: CancellationToken) -> impl Future<Output = ()> + use<> {
        let inner = Arc::downgrade(&self.inner);
        async move {
            let is_open = || inner.upgrade().is_some_and(|inner| !lock(&inner).is_broken_off());
            let looking = async {
                while is_open() {
                    tokio::time::sleep(LOOKING_AGAIN).await;
                }
            };
            gone.run_until_cancelled(looking).await;
            gone.cancel();
        }
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().expect("no code panics while it holds this lock")
}

impl AsyncRead for Relayed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let mut inner = lock(&self.inner);
        ready!(Pin::new(&mut inner.stream).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        if is_end && inner.is_broken_off() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Relayed {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.inner).stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.inner).stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = lock(&self.inner);
        inner.is_closed_by_us = true;
        Pin::new(&mut inner.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use bellglass_protocol::mux::{End, multiplex};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Semaphore;

    use super::*;

    fn place() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()
    }

    /// Time passes by itself here as soon as nobody has anything else to do.
    #[tokio::test(start_paused = true)]
    async fn a_break_is_noticed_though_nobody_reads() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (_worker, mut incoming, driver) = multiplex(ours, End::Worker);
        let (guest, _none, guest_driver) = multiplex(theirs, End::Guest);
        tokio::spawn(driver);
        tokio::spawn(guest_driver);
        let mut watched = async || {
            let mut theirs = guest.open().await.unwrap();
            theirs.write_all(b"taken by nobody").await.unwrap();
            let gone = CancellationToken::new();
            let ours = Relayed::new(incoming.recv().await.unwrap(), place(), gone.clone());
            tokio::spawn(ours.watch(gone.clone()));
            (ours, theirs, gone)
        };
        let (_open, broken, gone) = watched().await;
        // One that has said all it had to say waits for an answer.
        let (waiting, mut done, waits_in_vain) = watched().await;
        done.shutdown().await.unwrap();
        tokio::time::sleep(LOOKING_AGAIN * 10).await;
        assert!(!gone.is_cancelled());
        drop(broken);
        gone.cancelled().await;
        tokio::time::sleep(LOOKING_AGAIN * 10).await;
        assert!(!waits_in_vain.is_cancelled());
        drop(waiting);
        assert!(waits_in_vain.is_cancelled());
    }

    #[tokio::test]
    async fn an_end_is_told_from_a_break() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (_worker, mut incoming, driver) = multiplex(ours, End::Worker);
        let (guest, _none, guest_driver) = multiplex(theirs, End::Guest);
        tokio::spawn(driver);
        let guest_driver = tokio::spawn(guest_driver);
        let mut relayed = async || {
            let mut theirs = guest.open().await.unwrap();
            theirs.write_all(b"x").await.unwrap();
            let mut ours =
                Relayed::new(incoming.recv().await.unwrap(), place(), CancellationToken::new());
            assert_eq!(ours.read_u8().await.unwrap(), b'x');
            (ours, theirs)
        };
        let mut rest = Vec::new();

        let (mut ours, mut theirs) = relayed().await;
        theirs.shutdown().await.unwrap();
        ours.read_to_end(&mut rest).await.unwrap();
        ours.write_all(b"answer").await.unwrap();
        ours.shutdown().await.unwrap();
        theirs.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"answer");

        let (mut ours, mut theirs) = relayed().await;
        ours.shutdown().await.unwrap();
        theirs.shutdown().await.unwrap();
        ours.read_to_end(&mut rest).await.unwrap();

        let (mut ours, theirs) = relayed().await;
        drop(theirs);
        let broken = ours.read_to_end(&mut rest).await.unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);

        let (mut ours, _theirs) = relayed().await;
        guest_driver.abort();
        let broken = ours.read_to_end(&mut rest).await.unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
    }
}
