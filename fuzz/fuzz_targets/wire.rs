//! Frames and messages as the worker reads them from a guest, in whatever pieces they arrive.

#![no_main]

use bellglass_protocol::wire::{
    Frame, FrameCodec, MAX_ERROR_CODE, MAX_ERROR_MESSAGE, MAX_FRAME_FROM_GUEST, MAX_WELCOME,
    Opening, PackReply, Reply,
};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::{Decoder as _, Encoder as _};

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut codec = FrameCodec::for_worker();
    let mut arrived = BytesMut::new();
    for piece in rest.chunks(usize::from(*first).max(1)) {
        arrived.extend_from_slice(piece);
        loop {
            match codec.decode(&mut arrived) {
                Ok(Some(frame)) => look_at(frame),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // A promise alone costs next to nothing.
        assert!(arrived.capacity() <= 2 * (rest.len() + (64 << 10)));
    }
});

fn look_at(frame: Frame) {
    let mut codec = FrameCodec::for_worker();
    let mut written = BytesMut::new();
    codec.encode(frame.clone(), &mut written).expect("what was read can be written");
    let again = codec.decode(&mut written).expect("it is valid").expect("it is whole");
    assert_eq!(again, frame);
    if let Frame::Message(text) = &frame {
        assert!(text.len() <= MAX_FRAME_FROM_GUEST);
        let _ = serde_json::from_slice::<Opening>(text);
        if let Ok(reply) = Reply::parse(text) {
            check(&reply, text.len());
        }
    }
    let _ = PackReply::read(frame);
}

fn check(reply: &Reply, length: usize) {
    match reply {
        Reply::Welcome { .. } => assert!(length <= MAX_WELCOME),
        Reply::Error { error } => {
            assert!(error.code.len() <= MAX_ERROR_CODE);
            assert!(error.message.len() <= MAX_ERROR_MESSAGE);
        }
        Reply::Entry { entry } => assert!(entry.name_bytes() <= length),
        _ => {}
    }
    let text = serde_json::to_vec(reply).expect("it can be written");
    let again: Reply = serde_json::from_slice(&text).expect("it reads back");
    assert_eq!(&again, reply);
}
