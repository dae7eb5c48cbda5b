//! Many streams over one byte stream, the same on both sides of the glass.
//!
//! Generic over the byte stream and driven by a future that the caller spawns: nothing is opened
//! and no task is started here. How many streams the other side may open is bounded.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

/// One stream of the wire.
pub type MuxStream = Compat<yamux::Stream>;

/// Which end of the wire this is; the two ends must differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Worker,
    Guest,
}

/// Streams that one wire may carry at once.
pub const MAX_STREAMS: usize = 256;

/// A frame's head and body are written one after the other. What is smaller than this goes over the wire in
/// one piece, so that nobody is woken for a head whose body is yet to come. What is read is not gathered: a
/// flood of small frames would then be read on without a pause for others.
const PIECE: usize = 8 << 10;

/// Streams of the other side that wait to be taken. Past this, new ones are reset.
const INCOMING_BACKLOG: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum MuxError {
    #[error("the wire is closed")]
    Closed,
    #[error("the wire broke")]
    Connection(#[from] yamux::ConnectionError),
}

type Opening = oneshot::Sender<Result<MuxStream, MuxError>>;

/// Opens streams. The wire closes when the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Mux {
    openings: mpsc::Sender<Opening>,
}

impl Mux {
    pub async fn open(&self) -> Result<MuxStream, MuxError> {
        let (sender, receiver) = oneshot::channel();
        self.openings.send(sender).await.map_err(|_| MuxError::Closed)?;
        receiver.await.map_err(|_| MuxError::Closed)?
    }

    /// Whether the wire is known to be closed.
    pub fn is_closed(&self) -> bool {
        self.openings.is_closed()
    }

    /// Returns once the wire is closed.
    pub async fn closed(&self) {
        self.openings.closed().await;
    }
}

/// Streams that the other side opened.
pub type Incoming = mpsc::Receiver<MuxStream>;

/// Sets up one end of a wire. Nothing moves until the returned future is polled.
pub fn multiplex<T>(
    io: T,
    end: End,
) -> (Mux, Incoming, impl Future<Output = Result<(), MuxError>> + use<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut config = yamux::Config::default();
    // In this order: the setters check that the window has room for every stream.
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(MAX_STREAMS * yamux::DEFAULT_CREDIT as usize));
    config.set_split_send_size(crate::wire::DATA_CHUNK);
    let mode = match end {
        End::Worker => yamux::Mode::Client,
        End::Guest => yamux::Mode::Server,
    };
    let (openings, opening_queue) = mpsc::channel(MAX_STREAMS);
    let (arrivals, incoming) = mpsc::channel(INCOMING_BACKLOG);
    let mut driver = Driver {
        connection: yamux::Connection::new(
            BufWriter::with_capacity(PIECE, io).compat(),
            config,
            mode,
        ),
        openings: opening_queue,
        next: None,
        arrivals,
        closing: false,
    };
    (Mux { openings }, incoming, poll_fn(move |context| driver.poll(context)))
}

struct Driver<T> {
    connection: yamux::Connection<Compat<BufWriter<T>>>,
    openings: mpsc::Receiver<Opening>,
    /// The opening that waits for the connection to have room.
    next: Option<Opening>,
    arrivals: mpsc::Sender<MuxStream>,
    closing: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), MuxError>> {
        loop {
            if self.closing {
                return self.connection.poll_close(context).map_err(MuxError::from);
            }
            if self.next.is_none() {
                match self.openings.poll_recv(context) {
                    Poll::Ready(Some(opening)) => self.next = Some(opening),
                    Poll::Ready(None) => {
                        self.closing = true;
                        continue;
                    }
                    Poll::Pending => {}
                }
            }
            if let Some(opening) = self.next.take() {
                match self.connection.poll_new_outbound(context) {
                    Poll::Ready(result) => {
                        // The caller may have lost interest; then the stream is dropped and reset.
                        let _ = opening.send(result.map(|s| s.compat()).map_err(MuxError::from));
                        continue;
                    }
                    Poll::Pending => self.next = Some(opening),
                }
            }
            match self.connection.poll_next_inbound(context) {
                Poll::Ready(Some(Ok(stream))) => {
                    // A full backlog drops the stream: the other side asks for too much at once.
                    let _ = self.arrivals.try_send(stream.compat());
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn many_streams_carry_their_own_bytes() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mux, _, driver) = multiplex(ours, End::Worker);
        let (guest, mut incoming, guest_driver) = multiplex(theirs, End::Guest);
        tokio::spawn(driver);
        tokio::spawn(guest_driver);
        tokio::spawn(async move {
            let _guest = guest;
            while let Some(mut stream) = incoming.recv().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).await.unwrap();
                    stream.write_all(&vec![byte[0]; 100_000]).await.unwrap();
                    stream.shutdown().await.unwrap();
                });
            }
        });
        let mut streams = Vec::new();
        for n in 0..20u8 {
            let mut stream = mux.open().await.unwrap();
            stream.write_all(&[n]).await.unwrap();
            streams.push((n, stream));
        }
        for (n, mut stream) in streams.into_iter().rev() {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, vec![n; 100_000]);
        }
    }

    #[tokio::test]
    async fn a_closed_wire_says_so() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mux, _incoming, driver) = multiplex(ours, End::Worker);
        let driver = tokio::spawn(driver);
        drop(theirs);
        mux.closed().await;
        assert!(matches!(mux.open().await, Err(MuxError::Closed)));
        let _ = driver.await;
    }
}
