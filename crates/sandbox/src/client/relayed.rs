//! A program's connection to the proxy, as it comes through the wire. One that was broken off says so, and does not
//! look like one whose program has said all it had to say and waits for an answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bellglass_protocol::mux::MuxStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct Relayed {
    stream: MuxStream,
    /// A stream that both sides have closed looks like one that was broken off.
    is_closed_by_us: bool,
}

impl Relayed {
    pub(super) fn new(stream: MuxStream) -> Self {
        Self { stream, is_closed_by_us: false }
    }
}

impl AsyncRead for Relayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        if is_end && !self.is_closed_by_us && self.stream.get_ref().is_closed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Relayed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_closed_by_us = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use bellglass_protocol::mux::{End, multiplex};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

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
            let mut ours = Relayed::new(incoming.recv().await.unwrap());
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
