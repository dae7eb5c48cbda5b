//! Streams and terminals into running sandboxes, in the shapes that the HTTP side asks for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bellglass_server::{LiveTerminal, TerminalInput};
use bellglass_worker::LiveTunnel;
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A tunnel that gives its place back when it is dropped.
pub(crate) struct HeldTunnel(pub(crate) LiveTunnel);

impl AsyncRead for HeldTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for HeldTunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.0).poll_shutdown(context)
    }
}

/// A terminal as a sink of what is typed and a stream of what is shown.
pub(crate) fn terminal((open, place): bellglass_worker::LiveTerminal) -> LiveTerminal {
    let input = futures::sink::unfold(open.input, |mut input, event| async move {
        match event {
            TerminalInput::Typed(typed) => input.write(typed).await,
            TerminalInput::Resized(size) => input.resize(size).await,
        }
        .map_err(io::Error::other)?;
        Ok(input)
    });
    let output = futures::stream::try_unfold((open.output, place), |(mut output, place)| async {
        let piece = output.read().await.map_err(io::Error::other)?;
        Ok(piece.map(|piece| (piece, (output, place))))
    });
    LiveTerminal { size: open.size, input: Box::pin(input), output: output.boxed() }
}
