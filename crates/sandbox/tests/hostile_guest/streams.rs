//! Streams that a guest opens itself: thousands of them, with and without a way out.

use std::sync::Arc;

use bellglass_protocol::mux::{MAX_STREAMS, Mux};
use bellglass_protocol::network::{Connection, NetworkPolicy};
use bellglass_protocol::wire::{Frame, FrameCodec, Opening};
use bellglass_sandbox::egress::{ConnectionLog, Egress, EgressSettings};
use bytes::Bytes;
use futures::SinkExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio_util::codec::Framed;

use crate::fake::{FakeBackend, Guest, behave, guest, own_memory, serve, start};
use crate::frames::assert_no_hang;

struct Nobody;

impl ConnectionLog for Nobody {
    fn connection(&self, _: Connection) {}
}

fn way_out() -> Arc<Egress> {
    let settings = Arc::new(EgressSettings::default());
    Arc::new(Egress::new(NetworkPolicy::Open, settings, Arc::new(Nobody)))
}

/// A guest that behaves, and beside that does `more` with the means to open streams.
fn opening<F>(
    more: impl Fn(Mux) -> F + Send + Sync + Clone + 'static,
) -> (Guest, oneshot::Receiver<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (done, is_done) = oneshot::channel();
    let done = Arc::new(std::sync::Mutex::new(Some(done)));
    let guest = guest(move |wire| {
        let (more, done) = (more.clone(), done.clone());
        serve(wire, behave, move |mux| {
            tokio::spawn(async move {
                more(mux).await;
                let done = done.lock().unwrap().take();
                done.map(|done| done.send(()));
            });
        })
    });
    (guest, is_done)
}

/// Lets such a guest in, waits until it is done, and returns what is left of it.
async fn survived(guest: Guest, done: oneshot::Receiver<()>, egress: Option<Arc<Egress>>) {
    let before = own_memory();
    let backend = FakeBackend::new(vec![guest]);
    let sandbox = start(&backend, egress).await.unwrap();
    let _ = done.await;
    assert!(own_memory() < before + (96 << 20), "{} {before}", own_memory());
    assert_no_hang(sandbox.guest()).await;
}

#[tokio::test]
async fn thousands_of_streams() {
    for egress in [None, Some(way_out())] {
        let (guest, done) = opening(|mux| async move {
            let mut kept = Vec::new();
            for _ in 0..5000 {
                let Ok(mut stream) = mux.open().await else { return };
                if stream.write_all(b"\0\0\0").await.is_err() || kept.len() > MAX_STREAMS {
                    continue;
                }
                kept.push(stream);
            }
        });
        survived(guest, done, egress).await;
    }
}

#[tokio::test]
async fn streams_that_say_nothing_true() {
    let (guest, done) = opening(|mux| async move {
        for first in [
            Frame::message(&Opening::Egress),
            Frame::Message(Bytes::from_static(b"{\"open\":\"everything\"}")),
            Frame::Message(Bytes::from(vec![b'['; 1 << 19])),
            Frame::Data(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")),
        ] {
            for _ in 0..100 {
                let Ok(stream) = mux.open().await else { return };
                let mut frames = Framed::new(stream, FrameCodec::for_worker());
                let _ = frames.send(first.clone()).await;
            }
        }
    });
    survived(guest, done, Some(way_out())).await;
}

/// Heads of requests that never end. The proxy must not keep all of it.
#[tokio::test]
async fn requests_without_end() {
    let (guest, done) = opening(|mux| async move {
        let flood = |start: &'static [u8]| {
            let mux = mux.clone();
            async move {
                let Ok(stream) = mux.open().await else { return };
                let mut frames = Framed::new(stream, FrameCodec::for_worker());
                let _ = frames.send(Frame::message(&Opening::Egress)).await;
                let (mut answer, mut request) = tokio::io::split(frames.into_inner());
                let _ = request.write_all(start).await;
                let flood = async {
                    for _ in 0..64 {
                        if request.write_all(&[b'x'; 64 << 10]).await.is_err() {
                            return;
                        }
                    }
                };
                // Refused at some point, which ends the answer.
                let mut nowhere = tokio::io::sink();
                tokio::select! {
                    () = flood => {}
                    _ = tokio::io::copy(&mut answer, &mut nowhere) => {}
                }
            }
        };
        let starts: [&[u8]; 3] = [b"GET http://a/", b"GET http://a/ HTTP/1.1\r\nX: ", b"\x05\xff"];
        let floods = (0..30).map(|n| flood(starts[n % starts.len()]));
        futures::future::join_all(floods).await;
    });
    survived(guest, done, Some(way_out())).await;
}
