//! Files to and from the worker, and the whole workspace as a stream.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use bellglass_protocol::wire::{Entry, EntryKind, Frame, Receipt, Reply, Request};
use support::{Client, TestGuest, assert_root};

fn error_code(reply: Reply) -> String {
    match reply {
        Reply::Error { error } => error.code,
        other => panic!("no error but {other:?}"),
    }
}

async fn read(worker: &Client, path: &str) -> Result<Vec<u8>, String> {
    let mut exchange = worker.ask(&Request::ReadFile { path: path.into() }).await;
    let bytes = match exchange.reply().await {
        Reply::File { bytes } => bytes,
        other => return Err(error_code(other)),
    };
    let mut content = Vec::new();
    loop {
        match exchange.frame().await.unwrap() {
            Frame::Data(piece) => content.extend_from_slice(&piece),
            Frame::Message(text) => {
                assert_eq!(serde_json::from_slice::<Reply>(&text).unwrap(), Reply::End);
                assert_eq!(content.len() as u64, bytes);
                return Ok(content);
            }
            Frame::Output(..) => panic!("output of a file"),
        }
    }
}

async fn write(worker: &Client, path: &str, content: &[u8]) -> Reply {
    let request = Request::WriteFile { path: path.into(), executable: false };
    let mut exchange = worker.ask(&request).await;
    for piece in content.chunks(100_000) {
        exchange.data(piece).await;
    }
    exchange.send(&Receipt::EndOfData).await;
    exchange.reply().await
}

#[tokio::test]
async fn files_travel_whole() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    assert_eq!(write(&worker, "new/file", &content).await, Reply::Ok);
    assert_eq!(std::fs::read(guest.workspace().join("new/file")).unwrap(), content);
    assert!(read(&worker, "new/file").await.unwrap() == content);
    assert_eq!(write(&worker, "empty", b"").await, Reply::Ok);
    assert_eq!(read(&worker, "/workspace/empty").await.unwrap(), b"");

    assert_eq!(error_code(write(&worker, "new", &content).await), "is_a_folder");
    assert_eq!(error_code(write(&worker, "../x", &content).await), "outside_workspace");
    assert_eq!(read(&worker, "gone").await.unwrap_err(), "not_found");
    assert_eq!(read(&worker, "new").await.unwrap_err(), "is_a_folder");
    symlink("/etc/passwd", guest.workspace().join("out")).unwrap();
    assert_eq!(read(&worker, "out").await.unwrap_err(), "outside_workspace");

    let delete = |path: &str| Request::DeleteFile { path: path.into() };
    assert_eq!(error_code(worker.reply(&delete("new")).await), "folder_not_empty");
    assert_eq!(worker.reply(&delete("new/file")).await, Reply::Ok);
    assert_eq!(worker.reply(&delete("new")).await, Reply::Ok);
}

#[tokio::test]
async fn a_worker_that_dies_while_it_writes_leaves_the_old_file() {
    let guest = TestGuest::start();
    guest.write("file", "old");
    let worker = guest.connect().await;
    let request = Request::WriteFile { path: "file".into(), executable: false };
    let mut exchange = worker.ask(&request).await;
    exchange.data(&[b'n'; 100_000]).await;
    support::eventually("the guest has begun", || {
        std::fs::read_dir(guest.workspace()).unwrap().count() == 2
    })
    .await;
    drop(exchange);
    worker.die();
    support::eventually("the guest has tidied up", || {
        std::fs::read_dir(guest.workspace()).unwrap().count() == 1
    })
    .await;
    assert_eq!(guest.read("file"), "old");
}

#[tokio::test]
async fn folders_are_listed_in_order() {
    let guest = TestGuest::start();
    guest.write("b", "12");
    guest.write("a/x", "");
    symlink("b", guest.workspace().join("c")).unwrap();
    let worker = guest.connect().await;
    for path in ["", ".", "/workspace"] {
        let mut exchange = worker.ask(&Request::ListFolder { path: path.into() }).await;
        let mut seen = Vec::new();
        while let Reply::Entry { entry } = exchange.reply().await {
            seen.push((entry.path, entry.kind, entry.bytes));
        }
        let link = EntryKind::Symlink { target: "b".into() };
        let expected = [("a", EntryKind::Folder, 0), ("b", EntryKind::File, 2), ("c", link, 0)];
        assert_eq!(seen, expected.map(|(path, kind, bytes)| (path.to_owned(), kind, bytes)));
    }
    let missing = Request::ListFolder { path: "gone".into() };
    assert_eq!(error_code(worker.reply(&missing).await), "not_found");
    let outside = Request::ListFolder { path: "/etc".into() };
    assert_eq!(error_code(worker.reply(&outside).await), "outside_workspace");
}

/// Everything that packing tells: each entry, with a file's content or what was wrong with it.
async fn pack(worker: &Client) -> Vec<(Entry, Option<Result<Vec<u8>, String>>)> {
    let mut exchange = worker.ask(&Request::Pack).await;
    let mut packed = Vec::new();
    loop {
        match exchange.reply().await {
            Reply::Entry { entry } if entry.kind == EntryKind::File => {
                let mut content = Vec::new();
                let end = loop {
                    match exchange.frame().await.unwrap() {
                        Frame::Data(piece) => content.extend_from_slice(&piece),
                        Frame::Message(text) => break serde_json::from_slice(&text).unwrap(),
                        Frame::Output(..) => panic!("output of a file"),
                    }
                };
                let Reply::EntryEnd { error } = end else { panic!("{end:?}") };
                packed.push((entry, Some(error.map_or(Ok(content), Err))));
            }
            Reply::Entry { entry } => packed.push((entry, None)),
            Reply::End => return packed,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_pack_holds_everything_and_follows_nothing() {
    let guest = TestGuest::start();
    let workspace = guest.workspace();
    guest.write("z", "last");
    guest.write("folder/b", vec![b'x'; 200_000]);
    guest.write("folder/a", "");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(workspace.join("z"), executable).unwrap();
    symlink("/etc/passwd", workspace.join("link")).unwrap();
    symlink(".", workspace.join("folder/loop")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, workspace.join("pipe"), 0o644.into()).unwrap();
    std::fs::write(workspace.join(OsStr::from_bytes(b"odd\xff")), "odd").unwrap();

    let packed = pack(&guest.connect().await).await;
    let paths: Vec<&str> = packed.iter().map(|(entry, _)| entry.path.as_str()).collect();
    assert_eq!(
        paths,
        ["folder", "folder/a", "folder/b", "folder/loop", "link", "odd%FF", "pipe", "z"]
    );
    let by_path: BTreeMap<&str, _> =
        packed.iter().map(|(entry, content)| (entry.path.as_str(), (entry, content))).collect();
    assert_eq!(by_path["folder/b"].1.as_ref().unwrap().as_ref().unwrap().len(), 200_000);
    assert_eq!(by_path["link"].0.kind, EntryKind::Symlink { target: "/etc/passwd".into() });
    assert_eq!(by_path["pipe"].0.kind, EntryKind::Other);
    assert_eq!(by_path["z"].0.mode, 0o755);
    assert!(by_path["z"].0.modified > 1_600_000_000);
}

#[tokio::test]
async fn what_cannot_be_read_is_said() {
    assert_root("can work on files as somebody else");
    // As in a sandbox where the guest is root but works on files as the tools' user.
    let guest = TestGuest::start_with(|| {
        // SAFETY: changes the file ids of this thread only.
        unsafe { libc::syscall(libc::SYS_setfsuid, 65_534) };
    });
    guest.write("a", "fine");
    guest.write("closed", "no");
    guest.write("shut/file", "no");
    let nobody = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(guest.workspace().join("closed"), nobody.clone()).unwrap();
    std::fs::set_permissions(guest.workspace().join("shut"), nobody).unwrap();
    for folder in [guest.outside().to_path_buf(), guest.workspace()] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let packed = pack(&guest.connect().await).await;
    let said: Vec<_> = packed
        .iter()
        .map(|(entry, content)| {
            (entry.path.as_str(), &entry.kind, content.as_ref().map(Result::is_ok))
        })
        .collect();
    assert_eq!(
        said,
        [
            ("a", &EntryKind::File, Some(true)),
            ("closed", &EntryKind::File, Some(false)),
            ("shut", &EntryKind::Other, None),
        ]
    );
    std::fs::set_permissions(
        guest.workspace().join("shut"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
}

#[tokio::test]
async fn a_bottomless_folder_is_packed_to_a_bound() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    worker.shell(1, "for i in {1..300}; do mkdir d && cd d || exit; done").await;
    let packed = pack(&worker).await;
    assert_eq!(packed.len(), 200);
    assert_eq!(packed.last().unwrap().0.kind, EntryKind::Other);
    assert!(packed[..199].iter().all(|(entry, _)| entry.kind == EntryKind::Folder));
    worker.shell(2, "rm -rf d").await;
}

#[tokio::test]
async fn what_its_owner_has_closed_is_packed_with_its_mode() {
    const OWNER: u32 = 65_534;
    assert_root("can work on files as somebody else");
    // As in a sandbox where the guest is root but works on files as the tools' user.
    let guest = TestGuest::start_with(|| {
        // SAFETY: changes the file ids of this thread only.
        unsafe { libc::syscall(libc::SYS_setfsuid, OWNER) };
    });
    guest.write("closed", "a");
    guest.write("shut/file", "b");
    guest.write("seen/file", "c");
    let workspace = guest.workspace();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(guest.outside(), everybody).unwrap();
    for path in ["closed", "shut/file", "shut", "seen/file", "seen", ""] {
        std::os::unix::fs::chown(workspace.join(path), Some(OWNER), None).unwrap();
    }
    for (path, mode) in [("closed", 0o000), ("shut", 0o000), ("seen", 0o400), ("", 0o000)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(workspace.join(path), mode).unwrap();
    }
    let packed = pack(&guest.connect().await).await;
    let said: Vec<_> = packed
        .iter()
        .map(|(entry, content)| (entry.path.as_str(), entry.mode, content.clone()))
        .collect();
    let file = |content: &str| Some(Ok(content.as_bytes().to_vec()));
    assert_eq!(
        said,
        [
            ("closed", 0o000, file("a")),
            ("seen", 0o400, None),
            ("seen/file", 0o644, file("c")),
            ("shut", 0o000, None),
            ("shut/file", 0o644, file("b")),
        ]
    );
}
