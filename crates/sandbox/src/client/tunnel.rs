//! Byte streams and terminals into a sandbox, as the worker holds them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bellglass_protocol::cage::DESKTOP_SOCKET;
use bellglass_protocol::mux::MuxStream;
use bellglass_protocol::tunnel::{Inside, ListeningPort, Terminal, TerminalSize};
use bellglass_protocol::wire::{DATA_CHUNK, Frame, FrameCodec, Receipt, Reply, Request};
use bytes::{Buf as _, Bytes};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::codec::Framed;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{ClientError, GuestClient, out_of_turn, parse, unexpected};

impl GuestClient {
    /// Connects to something inside.
    pub async fn tunnel(&self, to: Inside) -> Result<Tunnel, ClientError> {
        // Pictures are many bytes.
        if let (Inside::Desktop { screen }, Some(door)) = (&to, &self.side_door) {
            self.start_desktop(*screen).await?;
            let connected = door.clone().connect(DESKTOP_SOCKET).await;
            if let Some(Ok(stream)) = connected.map(UnixStream::from_std) {
                let wire_end = Box::pin(self.wire_end.clone().cancelled_owned());
                return Ok(Tunnel(Way::Past { stream, wire_end }));
            }
        }
        let mut exchange = self.begin(&Request::Connect { to }).await?;
        exchange.ok().await?;
        let parts = exchange.frames.into_parts();
        Ok(Tunnel(Way::Through { head: parts.read_buf.freeze(), stream: parts.io }))
    }

    /// Opens a terminal for a person.
    pub async fn open_terminal(&self, terminal: Terminal) -> Result<OpenTerminal, ClientError> {
        let mut exchange = self.begin(&Request::OpenTerminal { terminal }).await?;
        let size = match exchange.reply().await? {
            Reply::Terminal { size } => size.bounded(),
            Reply::Error { error } => return Err(ClientError::Refused(error)),
            other => return Err(out_of_turn("a terminal", &other)),
        };
        let (input, output) = exchange.frames.split();
        Ok(OpenTerminal { size, input: TerminalInput(input), output: TerminalOutput(output) })
    }

    /// What listens inside.
    pub async fn list_ports(&self) -> Result<Vec<ListeningPort>, ClientError> {
        match self.begin(&Request::ListPorts).await?.reply().await? {
            Reply::Ports { ports } => Ok(ports),
            Reply::Error { error } => Err(ClientError::Refused(error)),
            other => Err(out_of_turn("a list of ports", &other)),
        }
    }
}

/// A connection to something inside. Dropping it ends it there too.
#[derive(Debug)]
pub struct Tunnel(Way);

#[derive(Debug)]
enum Way {
    /// The guest passes the bytes on.
    Through {
        /// What came together with the guest's last reply.
        head: Bytes,
        stream: MuxStream,
    },
    /// Past the guest, but no longer than the wire to it lasts: who has lost the job sees no more of it.
    Past { stream: UnixStream, wire_end: Pin<Box<WaitForCancellationFutureOwned>> },
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Way::Through { head, .. } if !head.is_empty() => {
                let count = head.len().min(buffer.remaining());
                buffer.put_slice(&head[..count]);
                head.advance(count);
                Poll::Ready(Ok(()))
            }
            Way::Through { stream, .. } => Pin::new(stream).poll_read(context, buffer),
            Way::Past { stream, wire_end } => match wire_end.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => Pin::new(stream).poll_read(context, buffer),
            },
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Way::Through { stream, .. } => Pin::new(stream).poll_write(context, bytes),
            Way::Past { stream, .. } => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Way::Through { stream, .. } => Pin::new(stream).poll_flush(context),
            Way::Past { stream, .. } => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Way::Through { stream, .. } => Pin::new(stream).poll_shutdown(context),
            Way::Past { stream, .. } => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A terminal in the sandbox. A shell of one's own ends when both ends are dropped.
pub struct OpenTerminal {
    pub size: TerminalSize,
    pub input: TerminalInput,
    pub output: TerminalOutput,
}

pub struct TerminalInput(SplitSink<Framed<MuxStream, FrameCodec>, Frame>);

pub struct TerminalOutput(SplitStream<Framed<MuxStream, FrameCodec>>);

impl TerminalInput {
    /// Types. Waits while the program inside does not read.
    pub async fn write(&mut self, mut typed: Bytes) -> Result<(), ClientError> {
        while !typed.is_empty() {
            let piece = typed.split_to(typed.len().min(DATA_CHUNK));
            self.0.send(Frame::Data(piece)).await?;
        }
        Ok(())
    }

    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), ClientError> {
        let resized = Receipt::Resized { size: size.bounded() };
        Ok(self.0.send(Frame::message(&resized)).await?)
    }
}

impl TerminalOutput {
    /// What is to be shown next; `None` when the terminal is gone.
    pub async fn read(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.0.next().await {
            None => Ok(None),
            Some(frame) => match frame? {
                Frame::Output(_, piece) => Ok(Some(piece)),
                Frame::Message(text) => match parse(&text)? {
                    Reply::End => Ok(None),
                    Reply::Error { error } => Err(ClientError::Refused(error)),
                    other => Err(out_of_turn("a terminal's output", &other)),
                },
                Frame::Data(_) => Err(unexpected("a terminal's output", "file data")),
            },
        }
    }
}
