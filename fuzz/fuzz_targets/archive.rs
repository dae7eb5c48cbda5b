//! A workspace as a guest packs it, up to the ZIP that somebody will unpack.

#![no_main]
#![allow(dead_code, reason = "the files taken in have more than is used here")]

use std::io::{Cursor, Read as _};

use bellglass_protocol::wire::{FrameCodec, PackReply};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::Decoder as _;

#[path = "../../crates/worker/src/pack/allowance.rs"]
mod allowance;
#[path = "../../crates/worker/src/pack/archive.rs"]
mod archive;
#[path = "../../crates/worker/src/zip_names.rs"]
mod zip_names;

const LIMIT: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let mut arrived = BytesMut::from(input);
    let (mut codec, mut allowance) = (FrameCodec::for_worker(), allowance::Allowance::new(LIMIT));
    let mut zip = archive::Archive::new(Vec::new());
    while let Ok(Some(frame)) = codec.decode(&mut arrived) {
        let Ok(PackReply::Piece(piece)) = PackReply::read(frame) else { break };
        if allowance.take(&piece).is_err() {
            break;
        }
        zip.take(&piece).expect("whatever comes can be written or left out");
    }
    let added = zip.addition("agent.log").and_then(|()| zip.data(b"ours"));
    added.expect("what is ours can be written or left out");
    let finished = zip.finish(None).expect("the ZIP can be finished");
    assert!(finished.skipped.iter().all(|why| why.len() < 4096 && !why.contains('\x1b')));
    check(finished.writer);
});

/// What a program that unpacks the ZIP relies on.
fn check(bytes: Vec<u8>) {
    let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).expect("it is a ZIP");
    let mut links: Vec<String> = Vec::new();
    let mut names = Vec::new();
    let mut total = 0;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).expect("each entry can be read");
        let name = entry.name().expect("a name is text").trim_end_matches('/').to_owned();
        assert!(!name.is_empty() && !name.starts_with('/'), "{name:?}");
        assert!(name.split('/').all(|part| !["", ".", ".."].contains(&part)), "{name:?}");
        assert!(!name.contains(['\\', ':']) && !name.contains(char::is_control), "{name:?}");
        assert_eq!(entry.unix_mode().unwrap_or(0) & 0o7000, 0, "{name:?}");
        if entry.is_symlink() {
            links.push(name.to_lowercase() + "/");
        }
        total += entry.read_to_end(&mut Vec::new()).expect("its content is whole") as u64;
        names.push(name.to_lowercase() + "/");
    }
    // Nothing is unpacked through a symlink, in whatever order.
    for name in &names {
        assert!(links.iter().all(|link| link == name || !name.starts_with(link)), "{name:?}");
    }
    assert!(total <= LIMIT + 1024);
}
