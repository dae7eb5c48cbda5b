//! The worker's end of a wire whose other end sends anything at all.

#![no_main]

use bellglass_protocol::mux::{End, MAX_STREAMS, multiplex};
use bellglass_protocol::wire::FrameCodec;
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::codec::Decoder as _;

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut from_worker, mut to_worker) = tokio::io::split(theirs);
        let (mux, mut incoming, driver) = multiplex(ours, End::Worker);
        let worker = async {
            // One request of our own is open, as it is when a guest answers.
            let mut asked = mux.open().await.ok();
            if let Some(stream) = &mut asked {
                let _ = stream.write_all(b"request").await;
                read_frames(stream).await;
            }
            let mut taken = 0;
            while let Some(mut stream) = incoming.recv().await {
                taken += 1;
                assert!(taken <= MAX_STREAMS + input.len());
                read_frames(&mut stream).await;
            }
        };
        let guest = async {
            let mut nowhere = tokio::io::sink();
            let listening = tokio::io::copy(&mut from_worker, &mut nowhere);
            let sending = async {
                let _ = to_worker.write_all(input).await;
                let _ = to_worker.shutdown().await;
            };
            let _ = tokio::join!(listening, sending);
        };
        // The wire ends with the input, and with it everything else.
        let driving = async {
            let _ = driver.await;
        };
        tokio::select! {
            () = async { tokio::join!(worker, guest); } => {}
            () = driving => {}
        }
    });
});

async fn read_frames(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let (mut codec, mut arrived) = (FrameCodec::for_worker(), BytesMut::new());
    while matches!(stream.read_buf(&mut arrived).await, Ok(1..)) {
        loop {
            match codec.decode(&mut arrived) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
