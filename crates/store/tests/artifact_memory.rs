//! A large artifact is written in bounded memory. Alone in its process, so that nothing else counts.

use std::io::Write as _;

use bellglass_protocol::id::JobId;
use bellglass_store::artifacts::{ArtifactKey, Artifacts, run_apart};

const MEBIBYTE: usize = 1 << 20;

/// The most memory that this process has ever had, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn writing_takes_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let artifacts = Artifacts::local(dir.path()).unwrap();
    let key = ArtifactKey::result(JobId::generate());
    let mut writer = artifacts.writer(key);
    let piece = vec![7; MEBIBYTE];
    let before = peak_memory();
    let written = run_apart(move || {
        for _ in 0..128 {
            writer.write_all(&piece).unwrap();
        }
        writer.finish().unwrap()
    });
    assert_eq!(written.await.unwrap(), 128 * MEBIBYTE as u64);
    let grown = peak_memory() - before;
    assert!(grown < 40 * MEBIBYTE, "memory grew by {} MiB", grown / MEBIBYTE);
}
