//! Connects the worker to something inside the sandbox, and passes bytes as they are.
//!
//! The guest reaches no more by this than the tools do: the sandbox's own loopback, and sockets that
//! the tools' user may open. The port that leads out of the sandbox cannot be named.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tunnel::{AppPort, Inside, MAX_TUNNELS};
use bellglass_protocol::wire::{DATA_CHUNK, Frame, Reply, WireError};
use futures::SinkExt as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Guest;
use super::exchange::{Wire, answer};
use super::failure::failure;
use super::{desktop, jupyter, ports};

/// How long a program may take to accept a connection.
const ACCEPTING: Duration = Duration::from_secs(5);

/// What is read at once from outside, most of it short, and from inside.
const INWARD: usize = 16 << 10;
const OUTWARD: usize = DATA_CHUNK;

/// The places for streams into the sandbox.
pub(super) struct Tunnels(Semaphore);

impl Default for Tunnels {
    fn default() -> Self {
        Self(Semaphore::new(MAX_TUNNELS))
    }
}

impl Tunnels {
    pub(super) fn enter(&self) -> Result<SemaphorePermit<'_>, ToolError> {
        self.0.try_acquire().map_err(|_| {
            let why = format!("{MAX_TUNNELS} connections lead into this sandbox; close one");
            failure("too_many_connections", why)
        })
    }
}

pub(super) async fn connect(guest: &Arc<Guest>, wire: Wire, to: Inside) -> Result<(), WireError> {
    let _place = match guest.tunnels.enter() {
        Ok(place) => place,
        Err(error) => return answer(wire, Reply::Error { error }).await,
    };
    match to {
        Inside::Port { port } => pass(wire, dial(port).await).await,
        Inside::Desktop { screen } => pass(wire, desktop::view(guest, screen).await).await,
        Inside::Jupyter => pass(wire, jupyter::visit(guest).await).await,
    }
}

async fn dial(port: AppPort) -> Result<TcpStream, ToolError> {
    let reached = timeout(2 * ACCEPTING, ports::reach(port.into(), ACCEPTING)).await;
    let stream = reached.ok().flatten().ok_or_else(|| {
        failure("nothing_listens", format!("nothing in the sandbox listens on port {port}"))
    })?;
    // Whoever waits for an answer over there must not wait for more of it.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Passes bytes both ways until both sides have closed, or one has broken.
async fn pass<S>(mut wire: Wire, opened: Result<S, ToolError>) -> Result<(), WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut inner = match opened {
        Ok(inner) => inner,
        Err(error) => return answer(wire, Reply::Error { error }).await,
    };
    wire.send(Frame::message(&Reply::Ok)).await?;
    let parts = wire.into_parts();
    inner.write_all(&parts.read_buf).await?;
    let mut outer = parts.io;
    tokio::io::copy_bidirectional_with_sizes(&mut inner, &mut outer, OUTWARD, INWARD).await?;
    Ok(())
}
