//! Checkpoints: what the guest says has changed adds up to what is there, and leads back to it.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bellglass_protocol::checkpoint::{
    Change, ChangeReply, CheckpointNumber, LinkTarget, What, WorkspacePath,
};
use bellglass_protocol::wire::{Receipt, Reply, Request};
use support::{Client, TestGuest};

/// Something in a workspace, with all that a checkpoint keeps of it.
#[derive(Clone, Debug, PartialEq)]
enum Thing {
    Folder(u32),
    Symlink(Vec<u8>),
    File { mode: u32, modified: i64, content: Vec<u8> },
}

type Things = BTreeMap<Vec<u8>, Thing>;

/// What is really there.
fn found(root: &Path) -> Things {
    let mut things = Things::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, metadata) = (entry.path(), entry.path().symlink_metadata().unwrap());
            let mode = metadata.permissions().mode() & 0o7777;
            let thing = if metadata.is_dir() {
                folders.push(path.clone());
                Thing::Folder(mode)
            } else if metadata.is_symlink() {
                Thing::Symlink(fs::read_link(&path).unwrap().into_os_string().into_vec())
            } else if metadata.is_file() {
                let modified = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
                Thing::File { mode, modified, content: fs::read(&path).unwrap() }
            } else {
                continue;
            };
            let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            things.insert(relative, thing);
        }
    }
    things
}

/// A worker that remembers what it was told.
#[derive(Clone, Default)]
struct Kept {
    things: Things,
    newest: Option<CheckpointNumber>,
    given: u64,
}

struct Heard {
    since: Option<CheckpointNumber>,
    changes: usize,
    left_out: Vec<String>,
}

impl Kept {
    async fn take(&mut self, worker: &Client) -> Heard {
        self.given += 1;
        let (since, number) = (self.newest, CheckpointNumber(self.given));
        let request = Request::Checkpoint { since, number, most_bytes: 1 << 30 };
        let mut exchange = worker.ask(&request).await;
        let mut heard = Heard { since: None, changes: 0, left_out: Vec::new() };
        let mut current = Vec::new();
        loop {
            match ChangeReply::read(exchange.frame().await.unwrap()).unwrap() {
                ChangeReply::Since(since) => {
                    heard.since = since;
                    if since.is_none() {
                        self.things.clear();
                    }
                }
                ChangeReply::Change(Change { path, what }) => {
                    heard.changes += 1;
                    current = path.as_bytes().to_vec();
                    let below = [&current[..], b"/"].concat();
                    let is_folder = matches!(what, What::Folder { .. });
                    if !is_folder {
                        self.things.retain(|path, _| !path.starts_with(&below));
                    }
                    let thing = match what {
                        What::Gone => {
                            self.things.remove(&current);
                            continue;
                        }
                        What::Folder { mode } => Thing::Folder(mode),
                        What::Symlink { target } => Thing::Symlink(target.as_bytes().to_vec()),
                        What::File { mode, modified, .. } => {
                            Thing::File { mode, modified, content: Vec::new() }
                        }
                    };
                    if let Some(parent) = path.parent() {
                        let parent = self.things.get(parent.as_bytes());
                        assert!(matches!(parent, Some(Thing::Folder(_))), "{path}");
                    }
                    self.things.insert(current.clone(), thing);
                }
                ChangeReply::Data(piece) => match self.things.get_mut(&current) {
                    Some(Thing::File { content, .. }) => content.extend_from_slice(&piece),
                    other => panic!("data of {other:?}"),
                },
                ChangeReply::FileEnd(None) => {}
                ChangeReply::FileEnd(Some(error)) => {
                    self.things.remove(&current);
                    heard.left_out.push(error);
                }
                ChangeReply::End => break,
                ChangeReply::Refused(error) => panic!("{error:?}"),
            }
        }
        if heard.changes > 0 {
            self.newest = Some(number);
        }
        heard
    }
}

async fn restore(worker: &Client, things: &Things, number: CheckpointNumber) -> Reply {
    let mut exchange = worker.ask(&Request::Restore { number }).await;
    for (path, thing) in things {
        let what = match thing {
            Thing::Folder(mode) => What::Folder { mode: *mode },
            Thing::Symlink(target) => {
                What::Symlink { target: LinkTarget::new(target.clone()).unwrap() }
            }
            Thing::File { mode, modified, content } => {
                What::File { mode: *mode, bytes: content.len() as u64, modified: *modified }
            }
        };
        exchange.send(&Change { path: WorkspacePath::new(path.clone()).unwrap(), what }).await;
        if let Thing::File { content, .. } = thing
            && !content.is_empty()
        {
            exchange.data(content).await;
        }
    }
    exchange.send(&Receipt::EndOfData).await;
    exchange.reply().await
}

#[tokio::test]
async fn only_what_changed_is_sent() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let mut kept = Kept::default();
    let first = kept.take(&worker).await;
    assert_eq!((first.since, first.changes), (None, 0));
    for n in 0..50 {
        guest.write(&format!("folder/{n}"), format!("content {n}"));
    }
    assert_eq!(kept.take(&worker).await.changes, 51);
    let nothing = kept.take(&worker).await;
    assert_eq!((nothing.since, nothing.changes), (kept.newest, 0));
    // The same size, at once: only the clock of the kernel tells.
    for round in 0..20 {
        guest.write("folder/7", format!("changed {round:02}"));
        assert_eq!(kept.take(&worker).await.changes, 1, "{round}");
        assert_eq!(kept.things, found(&guest.workspace()));
    }
    fs::remove_dir_all(guest.workspace().join("folder")).unwrap();
    assert_eq!(kept.take(&worker).await.changes, 1);
    assert!(kept.things.is_empty());
}

#[tokio::test]
async fn a_checkpoint_that_was_lost_is_sent_again() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    guest.write("a", "1");
    let mut kept = Kept::default();
    kept.take(&worker).await;
    guest.write("b", "2");
    // What is told to somebody who forgets it is told again to whoever comes next.
    kept.clone().take(&worker).await;
    worker.die();
    let worker = guest.connect().await;
    kept.given += 1;
    let again = kept.take(&worker).await;
    assert_eq!((again.since, again.changes), (Some(CheckpointNumber(1)), 1));
    // Whoever knows nothing, or something that nobody knows, is told all.
    let whole = Kept { given: 10, ..Kept::default() }.take(&worker).await;
    assert_eq!((whole.since, whole.changes), (None, 2));
    let mut stranger = Kept { newest: Some(CheckpointNumber(99)), given: 20, ..Kept::default() };
    let whole = stranger.take(&worker).await;
    assert_eq!((whole.since, whole.changes), (None, 2));
    assert_eq!(stranger.things, found(&guest.workspace()));
}

#[tokio::test]
async fn everything_that_a_workspace_can_hold_comes_back() {
    let guest = TestGuest::start();
    let root = guest.workspace();
    let worker = guest.connect().await;
    guest.write("empty", "");
    guest.write("binary", [0, 255, 10, 13, 0]);
    guest.write("large", vec![7; 300_000]);
    guest.write("folder/run.sh", "#!/bin/sh\n");
    fs::set_permissions(root.join("folder/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not \xff\xfe utf-8\\\n")), "odd").unwrap();
    symlink("/etc/passwd", root.join("out")).unwrap();
    symlink(OsStr::from_bytes(b"nowhere\xff"), root.join("dangling")).unwrap();
    fs::create_dir_all(root.join("closed/inner")).unwrap();
    guest.write("closed/inner/file", "inside");
    fs::set_permissions(root.join("closed/inner"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o1711)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let before = found(&root);
    let mut kept = Kept::default();
    kept.take(&worker).await;
    assert_eq!(kept.things, before);
    assert_eq!(found(&root), before, "looking changes nothing");

    guest.write("empty", "no longer");
    fs::remove_file(root.join("binary")).unwrap();
    guest.write("new/file", "x");
    symlink("new", root.join("to-new")).unwrap();
    assert_eq!(restore(&worker, &before, CheckpointNumber(7)).await, Reply::Ok);
    assert_eq!(found(&root), before);
    assert!(!root.join("pipe").exists());
    // From there on only changes are told again.
    kept = Kept { things: before, newest: Some(CheckpointNumber(7)), given: 7 };
    let none = kept.take(&worker).await;
    assert_eq!((none.since, none.changes), (Some(CheckpointNumber(7)), 0));
    guest.write("new", "y");
    assert_eq!(kept.take(&worker).await.changes, 1);
    assert_eq!(kept.things, found(&root));
}

#[tokio::test]
async fn what_is_too_large_is_refused_or_left_out() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    guest.write("a", vec![1; 60]);
    guest.write("b", vec![1; 60]);
    let number = CheckpointNumber(1);
    let request = Request::Checkpoint { since: None, number, most_bytes: 100 };
    let mut exchange = worker.ask(&request).await;
    assert_eq!(exchange.error().await.code, "too_large");
    let request = Request::Checkpoint { since: None, number, most_bytes: 50 };
    assert_eq!(worker.ask(&request).await.error().await.code, "too_large");
    // A file that only has holes.
    let sparse = fs::File::create(guest.workspace().join("sparse")).unwrap();
    sparse.set_len(1 << 43).unwrap();
    let mut kept = Kept::default();
    let heard = kept.take(&worker).await;
    assert_eq!(heard.left_out.len(), 1);
    assert!(heard.left_out[0].contains("sparse"), "{:?}", heard.left_out);
    assert_eq!(kept.things.len(), 2);
}

#[tokio::test]
async fn nothing_is_restored_outside_of_the_workspace() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let file = Thing::File { mode: 0o644, modified: 0, content: b"x".to_vec() };
    let link = Thing::Symlink(guest.outside().as_os_str().as_bytes().to_vec());
    let things = Things::from([(b"link".to_vec(), link), (b"link/file".to_vec(), file)]);
    let reply = restore(&worker, &things, CheckpointNumber(1)).await;
    assert!(matches!(reply, Reply::Error { .. }), "{reply:?}");
    assert!(!guest.outside().join("file").exists());
}

/// Numbers that are the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most
    }
}

fn some_path(root: &Path, chance: &mut Chance) -> PathBuf {
    let names = [&b"a"[..], b"b", b"a-b", b"c\xff", b"d"];
    let mut path = root.to_owned();
    for _ in 0..=chance.below(3) {
        path.push(OsStr::from_bytes(names[chance.below(names.len())]));
    }
    path
}

/// Does something, or nothing where it cannot be done.
fn change_something(root: &Path, chance: &mut Chance) {
    let path = some_path(root, chance);
    match chance.below(9) {
        0 | 1 => _ = fs::create_dir_all(&path),
        2..=4 => {
            _ = path.parent().map(fs::create_dir_all);
            _ = fs::write(&path, vec![chance.below(256) as u8; chance.below(5)]);
        }
        5 => _ = symlink(["b", "/x", "../a"][chance.below(3)], &path),
        6 => {
            if fs::remove_file(&path).is_err() {
                _ = fs::remove_dir_all(&path);
            }
        }
        7 => _ = fs::rename(&path, some_path(root, chance)),
        _ => {
            let mode = [0o700, 0o755, 0o711][chance.below(3)];
            if path.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
                _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode));
            }
        }
    }
}

#[tokio::test]
async fn whatever_happens_the_changes_add_up() {
    for seed in 0..12 {
        let guest = TestGuest::start();
        let root = guest.workspace();
        let mut worker = guest.connect().await;
        let mut chance = Chance(seed);
        let (mut kept, mut past) = (Kept::default(), vec![Things::new()]);
        for round in 0..25 {
            for _ in 0..chance.below(8) {
                change_something(&root, &mut chance);
            }
            match chance.below(8) {
                0 => {
                    kept.clone().take(&worker).await;
                    kept.given += 1;
                }
                1 => {
                    worker.die();
                    worker = guest.connect().await;
                }
                2 => {
                    let things = past[chance.below(past.len())].clone();
                    kept.given += 1;
                    let number = CheckpointNumber(kept.given);
                    assert_eq!(restore(&worker, &things, number).await, Reply::Ok);
                    assert_eq!(found(&root), things, "seed {seed}, round {round}");
                    kept = Kept { things, newest: Some(number), given: kept.given };
                }
                _ => {}
            }
            kept.take(&worker).await;
            assert_eq!(kept.things, found(&root), "seed {seed}, round {round}");
            past.push(kept.things.clone());
        }
    }
}
