//! Serves the streams that a guest opens: each is a program's connection to the proxy.

use std::sync::Arc;

use bellglass_protocol::mux::{Incoming, MAX_STREAMS};
use bellglass_protocol::wire::{Frame, FrameCodec, Opening};
use futures::StreamExt as _;
use tokio::sync::{Semaphore, watch};
use tokio_util::codec::Framed;
use tokio_util::sync::CancellationToken;

use super::PATIENCE;
use super::relayed::Relayed;
use crate::egress::Egress;

/// Streams of a guest's that are served at once. A guest opens fewer, but one that its program broke off may be
/// held here a while longer, and too many would take the wire from the tools.
pub(super) const MOST_OPENINGS: usize = MAX_STREAMS / 2;

/// Where the streams lead that the guest opens. They wait while it is empty.
#[derive(Default)]
pub(super) struct OpenedWayOut(watch::Sender<Option<Arc<Egress>>>);

impl std::fmt::Debug for OpenedWayOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenedWayOut")
    }
}

impl OpenedWayOut {
    /// A worker that takes up a sandbox hears from it before it has found out what it may reach.
    async fn get(&self) -> Option<Arc<Egress>> {
        let mut changes = self.0.subscribe();
        let found = tokio::time::timeout(PATIENCE, changes.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    pub(super) fn set(&self, egress: Arc<Egress>) {
        self.0.send_replace(Some(egress));
    }
}

/// Serves the streams that a guest opens. They end with the wire.
pub(super) async fn take_openings(
    mut incoming: Incoming,
    way_out: Arc<OpenedWayOut>,
    places: Arc<Semaphore>,
    wire_end: CancellationToken,
) {
    while let Ok(place) = places.clone().acquire_owned().await
        && let Some(stream) = incoming.recv().await
    {
        let (way_out, gone) = (way_out.clone(), wire_end.child_token());
        tokio::spawn(async move {
            // A stream that is dropped is reset.
            let Some(egress) = way_out.get().await else { return };
            let mut frames = Framed::new(stream, FrameCodec::for_worker());
            let first = tokio::time::timeout(PATIENCE, frames.next()).await;
            if let Ok(Some(Ok(Frame::Message(text)))) = first
                && let Ok(Opening::Egress) = serde_json::from_slice(&text)
            {
                let parts = frames.into_parts();
                let relayed = Relayed::new(parts.io, place, gone.clone());
                tokio::spawn(relayed.watch(gone.clone()));
                egress.serve(parts.read_buf.freeze(), relayed, gone).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use bellglass_protocol::mux::{End, Mux, MuxStream, multiplex};
    use bellglass_protocol::network::{Connection, NetworkPolicy};
    use futures::SinkExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::egress::{ConnectionLog, EgressSettings};

    struct NoLog;

    impl ConnectionLog for NoLog {
        fn connection(&self, _: Connection) {}
    }

    /// A tunnel to a server on this machine, as a program in a sandbox asks for it.
    async fn tunnel(guest: &Mux, port: u16) -> MuxStream {
        let mut frames = Framed::new(guest.open().await.unwrap(), FrameCodec::for_guest());
        frames.send(Frame::message(&Opening::Egress)).await.unwrap();
        let mut stream = frames.into_inner();
        let ask = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    }

    /// One that has become a tunnel is not served by the task that took it any more.
    #[tokio::test]
    async fn a_tunnel_keeps_its_place_until_it_is_over() {
        let here = std::net::Ipv4Addr::LOCALHOST;
        let listener = TcpListener::bind((here, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let settings =
            EgressSettings { private_exceptions: vec![here.into()], ..EgressSettings::default() };
        let egress = Egress::new(NetworkPolicy::Open, Arc::new(settings), Arc::new(NoLog));
        let way_out = Arc::new(OpenedWayOut::default());
        way_out.set(Arc::new(egress));

        let (ours, theirs) = tokio::io::duplex(4096);
        let (_worker, incoming, driver) = multiplex(ours, End::Worker);
        let (guest, _none, guest_driver) = multiplex(theirs, End::Guest);
        let (places, wire_end) = (Arc::new(Semaphore::new(2)), CancellationToken::new());
        tokio::spawn(driver);
        tokio::spawn(guest_driver);
        tokio::spawn(take_openings(incoming, way_out, places.clone(), wire_end.clone()));

        let first = tunnel(&guest, port).await;
        let mut servers = vec![listener.accept().await.unwrap().0];
        let mut second = tunnel(&guest, port).await;
        servers.push(listener.accept().await.unwrap().0);
        second.write_all(b"x").await.unwrap();
        assert_eq!(servers[1].read_u8().await.unwrap(), b'x');
        let mut third = Box::pin(tunnel(&guest, port));
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(200), &mut third);
        assert!(waiting.await.is_err(), "there are two places");
        drop(first);
        let _third = third.await;

        // Nobody has left the others but the wire.
        wire_end.cancel();
        assert_eq!(servers[1].read(&mut [0]).await.unwrap(), 0);
        drop(places.acquire().await.unwrap());
    }
}
