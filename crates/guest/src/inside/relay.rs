//! The sandbox's end of its one way out: a port on loopback whose bytes go through the wire.
//!
//! It understands nothing of what passes. The proxy that reads requests and decides is outside.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bellglass_protocol::mux::Mux;
use bellglass_protocol::wire::{EGRESS_PORT, Frame, FrameCodec, Opening};
use futures::SinkExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::codec::Framed;

/// The wire of the worker that connected last, if there is one.
pub(super) type LatestWire = watch::Receiver<Option<Mux>>;

/// Connections at once. More wait their turn: the wire has room for a bounded number of streams,
/// and programs that connect without end must not take it from the tools.
const MOST_AT_ONCE: usize = 48;

/// Takes connections for as long as the guest lives.
pub(super) async fn start(wire: LatestWire) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, EGRESS_PORT)).await?;
    let places = Arc::new(Semaphore::new(MOST_AT_ONCE));
    tokio::spawn(async move {
        while let Ok(place) = places.clone().acquire_owned().await {
            match listener.accept().await {
                Ok((client, _)) => {
                    let wire = wire.clone();
                    tokio::spawn(async move {
                        let _place = place;
                        // A connection that breaks concerns nobody but the program that made it.
                        let _ = relay(client, wire).await;
                    });
                }
                // Out of descriptors, most likely. Others will end and give theirs back.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    });
    Ok(())
}

async fn relay(mut client: TcpStream, wire: LatestWire) -> io::Result<()> {
    // Without a worker there is no way out: closing the connection says so.
    let Some(mux) = wire.borrow().clone() else { return Ok(()) };
    let stream = mux.open().await.map_err(io::Error::other)?;
    let mut framed = Framed::new(stream, FrameCodec::for_guest());
    framed.send(Frame::message(&Opening::Egress)).await.map_err(io::Error::other)?;
    let mut stream = framed.into_inner();
    client.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut stream).await.map(drop)
}
