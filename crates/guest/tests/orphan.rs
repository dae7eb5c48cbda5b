//! A guest that no worker comes back to.

mod support;

use bellglass_guest::inside::Placer;
use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::wire::{PROTOCOL_VERSION, Reply, Request};
use tokio::net::UnixListener;

#[tokio::test]
async fn a_guest_without_a_worker_ends_itself() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("wire");
    let listener = UnixListener::bind(&socket).unwrap();
    let text = folder.path().to_str().unwrap();
    let config = GuestConfig {
        workspace: text.into(),
        tool_uid: rustix::process::geteuid().as_raw(),
        tool_gid: rustix::process::getegid().as_raw(),
        home: text.into(),
        open_files: 512,
        processes: None,
        nested_sandboxing: false,
        memory: None,
        processors: None,
        orphaned_after_seconds: Some(1),
    };
    let guest =
        tokio::spawn(bellglass_guest::inside::serve(listener, config, Placer::start().unwrap()));
    let worker = support::connect(&socket).await;
    // A shell that lasts longer than the time: while a worker is there, the guest stays.
    assert_eq!(worker.shell(1, "sleep 1.5; echo here").await.stdout(), "here\n");
    let hello = Request::Hello { protocol: PROTOCOL_VERSION };
    assert!(matches!(worker.reply(&hello).await, Reply::Welcome { .. }));
    assert!(!guest.is_finished());
    worker.die();
    let ended = tokio::time::timeout(support::PATIENCE, guest).await.unwrap().unwrap();
    assert!(ended.unwrap_err().to_string().contains("no worker"));
}
