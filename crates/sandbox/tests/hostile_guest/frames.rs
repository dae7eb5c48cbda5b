//! Frames of the wire that break its rules, beneath and within its streams.

use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::tool::{Shell, ToolCall};
use bellglass_protocol::wire::{MAX_FRAME_FROM_GUEST, WireError};
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::client::{ClientError, GuestClient, OutputSink};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::fake::{FakeBackend, Guest, behave, greeting, guest, own_memory, serve, start};

pub(crate) struct Forget;

#[async_trait::async_trait]
impl OutputSink for Forget {
    async fn output(
        &mut self,
        _: bellglass_protocol::step::OutputStream,
        _: bytes::Bytes,
    ) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) async fn sandbox_with(guest: Guest) -> Sandbox {
    let backend = FakeBackend::new(vec![guest]);
    start(&backend, None).await.expect("it greets as it should")
}

pub(crate) async fn call(guest: &GuestClient) -> Result<(), ClientError> {
    let shell = Shell { command: "true".into(), ..Default::default() };
    let time = Duration::from_secs(60);
    guest.call(&CallId::of_step(1), &ToolCall::Shell(shell), time, 0, &mut Forget).await.map(drop)
}

/// The guest has hurt nobody but itself: its wire works on, is closed for good, or is found silent.
pub(crate) async fn assert_no_hang(guest: &GuestClient) {
    let hurried = guest.clone().with_patience(Duration::from_millis(500));
    let answered = async {
        tokio::select! {
            () = guest.closed() => {}
            _ = hurried.delete_file("x") => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(20), answered).await.expect("an end of some kind");
}

/// A frame of the multiplexer's own: version, kind, flags, stream, length.
fn raw(kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    let mut frame = vec![0, kind];
    frame.extend(flags.to_be_bytes());
    frame.extend(stream.to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame
}

const DATA: u8 = 0;
const WINDOW: u8 = 1;
const PING: u8 = 2;
const GO_AWAY: u8 = 3;
const SYN: u16 = 1;
const RST: u16 = 8;

/// A well-behaved guest whose wire carries, once it has greeted, what comes through the channel.
fn injecting() -> (Guest, mpsc::Sender<Vec<u8>>) {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>(1);
    let receiver = std::sync::Arc::new(tokio::sync::Mutex::new(receiver));
    let guest = guest(move |wire| {
        let receiver = receiver.clone();
        async move {
            let (inner, outer) = tokio::io::duplex(64 << 10);
            tokio::spawn(serve(inner, behave, |_| {}));
            let (mut from_worker, mut to_worker) = tokio::io::split(wire);
            let (mut from_guest, mut to_guest) = tokio::io::split(outer);
            let mut receiver = receiver.lock().await;
            let inject = async {
                let mut buffer = vec![0; 64 << 10];
                loop {
                    let sent = tokio::select! {
                        read = from_guest.read(&mut buffer) => match read {
                            Ok(length @ 1..) => to_worker.write_all(&buffer[..length]).await,
                            _ => return,
                        },
                        Some(bytes) = receiver.recv() => to_worker.write_all(&bytes).await,
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            };
            // Whichever way ends first takes the wire with it.
            tokio::select! {
                _ = tokio::io::copy(&mut from_worker, &mut to_guest) => {}
                () = inject => {}
            }
        }
    });
    (guest, sender)
}

#[tokio::test]
async fn frames_of_the_multiplexer_that_break_its_rules() {
    for frame in [
        raw(9, 0, 1, 0),                        // no such kind
        [vec![7], raw(DATA, 0, 1, 0)].concat(), // no such version
        raw(DATA, SYN, 0, 0),                   // a stream that cannot be
        raw(DATA, SYN, 3, 0),                   // a number that is the worker's to give
        raw(DATA, SYN, 2, u32::MAX),            // more than anybody has
        raw(DATA, 0, 2, 64 << 20),              // data for nobody, and too much of it
        raw(GO_AWAY, 0, 0, 1),
        raw(WINDOW, SYN, 0, 5),
    ] {
        let (guest, inject) = injecting();
        let sandbox = sandbox_with(guest).await;
        assert!(call(sandbox.guest()).await.is_ok());
        inject.send(frame.clone()).await.unwrap();
        drop(inject);
        // The wire ends, or the frame is of no consequence. It never hangs.
        assert_no_hang(sandbox.guest()).await;
    }
}

#[tokio::test]
async fn floods_of_frames_about_nothing() {
    let resets: Vec<u8> = (0..50_000u32).flat_map(|n| raw(DATA, RST, n * 2, 0)).collect();
    let windows: Vec<u8> = (0..50_000u32).flat_map(|n| raw(WINDOW, 0, n * 2, u32::MAX)).collect();
    let pings: Vec<u8> = (0..50_000u32).flat_map(|n| raw(PING, SYN, 0, n)).collect();
    let before = own_memory();
    for flood in [resets, windows, pings] {
        let (guest, inject) = injecting();
        let sandbox = sandbox_with(guest).await;
        inject.send(flood).await.unwrap();
        drop(inject);
        assert_no_hang(sandbox.guest()).await;
    }
    assert!(own_memory() < before + (64 << 20));
}

/// Frames within a stream: a length that lies, a kind that is not known, a frame that never ends.
#[tokio::test]
async fn frames_that_lie_about_themselves() {
    for (bytes, expected) in [
        (&[0, 0xff, 0xff, 0xff, 0xff][..], "larger"),
        (&[1, 0, 0x10, 0, 1][..], "larger"),
        (&[4, 0, 0, 0, 0][..], "unknown kind"),
        (&[0xff; 64][..], "unknown kind"),
        (&[0, 0, 0, 0, 9, b'{'][..], "early"),
        (&[2][..], "early"),
        (&[][..], "early"),
    ] {
        let lying = greeting(move |_, exchange| async move {
            let mut stream = exchange.into_inner();
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
        });
        let sandbox = sandbox_with(lying).await;
        let error = call(sandbox.guest()).await.unwrap_err();
        let ClientError::Wire(error) = &error else { panic!("{error}") };
        // A frame that is cut off is an error of reading, which the decoder tells by itself.
        let cut = matches!(error, WireError::Io(_)) && expected == "early";
        assert!(cut || error.to_string().contains(expected), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn a_promise_of_a_large_frame() {
    let before = own_memory();
    let promising = greeting(|_, exchange| async move {
        let mut stream = exchange.into_inner();
        let length = u32::try_from(MAX_FRAME_FROM_GUEST).unwrap();
        let _ = stream.write_all(&[&[0], &length.to_be_bytes()[..]].concat()).await;
        std::future::pending().await
    });
    let sandbox = sandbox_with(promising).await;
    let calls = (0..100).map(|_| call(sandbox.guest()));
    let waiting = futures::future::join_all(calls);
    // All wait for what was promised, and it has cost next to nothing.
    let waited = tokio::time::timeout(Duration::from_millis(300), waiting).await;
    assert!(waited.is_err());
    assert!(own_memory() < before + (48 << 20), "{before} {}", own_memory());
}
