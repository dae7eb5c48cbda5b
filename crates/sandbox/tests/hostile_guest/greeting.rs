//! Guests that are not let in.

use std::sync::atomic::Ordering;

use bellglass_protocol::report::Probe;
use bellglass_protocol::wire::{Frame, FrameCodec, PROTOCOL_VERSION, Reply};
use bellglass_sandbox::SandboxError;
use bellglass_sandbox::client::ClientError;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio_util::codec::Framed;

use crate::fake::{FakeBackend, Guest, guest, start};

/// Starts a sandbox with such a guest, which must fail, and leave nothing.
async fn refused(guest: Guest) -> SandboxError {
    let backend = FakeBackend::new(vec![guest]);
    let started = start(&backend, None).await;
    let error = started.err().expect("such a guest is not let in");
    assert_eq!(backend.stopped.load(Ordering::Relaxed), 1, "the sandbox was ended");
    error
}

/// A guest that answers the greeting with these frames.
fn answering(frames: Vec<Frame>) -> Guest {
    guest(move |wire| {
        let frames = frames.clone();
        async move {
            use bellglass_protocol::mux::{End, multiplex};
            let (_mux, mut incoming, driver) = multiplex(wire, End::Guest);
            tokio::spawn(driver);
            let stream = incoming.recv().await.unwrap();
            let mut exchange = Framed::new(stream, FrameCodec::for_guest());
            exchange.next().await.unwrap().unwrap();
            for frame in frames {
                if exchange.send(frame).await.is_err() {
                    return;
                }
            }
            std::future::pending().await
        }
    })
}

#[tokio::test]
async fn garbage_instead_of_a_greeting() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 4096], b"\x00\x09"] {
        let error = refused(guest(move |mut wire| async move {
            let _ = wire.write_all(garbage).await;
        }))
        .await;
        assert!(matches!(error, SandboxError::Guest(_)), "{error}");
    }
}

#[tokio::test]
async fn a_greeting_that_is_none() {
    let version = Reply::Welcome {
        protocol: PROTOCOL_VERSION + 1,
        version: "fake".into(),
        probe: Box::default(),
    };
    let error = refused(answering(vec![Frame::message(&version)])).await;
    assert!(matches!(error, SandboxError::Guest(ClientError::Version(_))), "{error}");
    for frame in [
        Frame::message(&Reply::Ok),
        Frame::message(&Reply::End),
        Frame::Message(Bytes::from_static(b"{")),
        Frame::Message(Bytes::from_static(b"\xff\xfe")),
        Frame::Message(Bytes::from("[".repeat(100_000))),
        Frame::Data(Bytes::from_static(b"x")),
        Frame::message(&serde_json::json!({ "reply": "welcome", "protocol": -1 })),
    ] {
        let error = refused(answering(vec![frame])).await;
        assert!(matches!(error, SandboxError::Guest(ClientError::Wire(_))), "{error}");
    }
}

/// What a guest says about itself stands in the job's log for ever, so it must not be long.
#[tokio::test]
async fn a_boundless_probe() {
    let probe = Probe { interfaces: vec!["x".repeat(1000); 500], ..Probe::default() };
    let probe = Box::new(probe);
    let welcome = Reply::Welcome { protocol: PROTOCOL_VERSION, version: "fake".into(), probe };
    let error = refused(answering(vec![Frame::message(&welcome)])).await;
    assert!(error.to_string().contains("could not be reached"), "{error}");
    assert!(matches!(error, SandboxError::Guest(ClientError::Wire(_))), "{error}");
}
