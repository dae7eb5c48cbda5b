//! The workspace of a job that has ended, read out of its ZIP as if it were still a folder.
//!
//! The ZIP holds what a sandbox left behind, so its names are hostile: those that could not stand
//! in a workspace are passed over, and symlinks are followed within the ZIP only.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};

use bellglass_protocol::step::check_workspace_path;
use bellglass_protocol::wire::{Entry, EntryKind};
use bellglass_store::artifacts::{ArtifactError, ArtifactKey, Artifacts, run_apart};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use zip::ZipArchive;

use crate::idle::{IDLE, let_go_of_idle_readers};
use crate::live::LiveContent;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    #[error("nothing is there")]
    NotFound,
    #[error("the ZIP cannot be read")]
    Zip(#[from] zip::result::ZipError),
    #[error("the ZIP cannot be opened")]
    Open(#[from] ArtifactError),
}

/// How many may read at once. Each has a thread, and holds all names of its ZIP in memory.
pub(crate) const MOST_READERS: usize = 32;

/// What stands at `path` in a ZIP. A file's data is read as it is asked for, and the
/// place is free again when that is over.
pub(crate) async fn read(
    artifacts: &Artifacts,
    key: &ArtifactKey,
    path: String,
    place: OwnedSemaphorePermit,
) -> Result<LiveContent, ArchiveError> {
    let file = artifacts.open_seekable(key).await?;
    let (answer, answered) = oneshot::channel();
    let served = run_apart(move || {
        let _place = place;
        match ZipArchive::new(file) {
            Ok(archive) => serve(archive, &path, answer),
            Err(error) => drop(answer.send(Err(error.into()))),
        }
    });
    match answered.await {
        // The thread waits for its reader, so an idle reader is let go of on this side.
        Ok(Ok(LiveContent::File { bytes, data })) => {
            Ok(LiveContent::File { bytes, data: let_go_of_idle_readers(data, IDLE, ()) })
        }
        Ok(answer) => answer,
        Err(_) => Err(served.await.err().map_or(ArchiveError::NotFound, ArchiveError::Open)),
    }
}

type Answer = oneshot::Sender<Result<LiveContent, ArchiveError>>;

/// Pieces of a file that wait for a slow reader.
const PIECES_AHEAD: usize = 4;
const PIECE: usize = 64 << 10;

fn serve<R: Read + Seek>(mut archive: ZipArchive<R>, path: &str, answer: Answer) {
    let found = Tree::of(&mut archive).and_then(|tree| match tree.find(path) {
        Some(Found::Folder(entries)) => Ok(Err(entries)),
        Some(Found::File(index)) => Ok(Ok(index)),
        None => Err(ArchiveError::NotFound),
    });
    let index = match found {
        Ok(Ok(index)) => index,
        Ok(Err(entries)) => return drop(answer.send(Ok(LiveContent::Folder(entries)))),
        Err(error) => return drop(answer.send(Err(error))),
    };
    let mut file = match archive.by_index(index) {
        Ok(file) => file,
        Err(error) => return drop(answer.send(Err(error.into()))),
    };
    let (pieces, data) = mpsc::channel(PIECES_AHEAD);
    let bytes = file.size();
    let data = ReceiverStream::new(data).boxed();
    if answer.send(Ok(LiveContent::File { bytes, data })).is_err() {
        return;
    }
    loop {
        let mut piece = vec![0; PIECE];
        let piece = match file.read(&mut piece) {
            Ok(0) => return,
            Ok(length) => {
                piece.truncate(length);
                Ok(Bytes::from(piece))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let broken = piece.is_err();
        if pieces.blocking_send(piece).is_err() || broken {
            return;
        }
    }
}

/// The names of a ZIP, ordered, with the folders that they imply.
#[derive(Default)]
struct Tree {
    nodes: BTreeMap<String, Node>,
}

struct Node {
    entry: Entry,
    /// Where the data is; folders that are only implied have none.
    index: Option<usize>,
}

#[derive(Debug, PartialEq)]
enum Found {
    File(usize),
    Folder(Vec<Entry>),
}

const LONGEST_TARGET: u64 = 4096;
const MOST_HOPS: usize = 16;

impl Tree {
    fn of<R: Read + Seek>(archive: &mut ZipArchive<R>) -> Result<Self, ArchiveError> {
        let mut tree = Self::default();
        for index in 0..archive.len() {
            let data = archive.by_index_data(index)?;
            let Ok(name) = data.name().map(|name| name.into_owned()) else { continue };
            let mode = data.unix_mode();
            let (is_folder, is_symlink) = (data.is_dir(), data.is_symlink());
            let (bytes, modified) = (data.size(), data.last_modified().map_or(0, unix_seconds));
            let kind = if is_symlink {
                let mut target = String::new();
                let mut file = archive.by_index(index)?;
                // A target that is too long or no text leads nowhere.
                let read = file.by_ref().take(LONGEST_TARGET).read_to_string(&mut target);
                EntryKind::Symlink { target: read.map(|_| target).unwrap_or_default() }
            } else if is_folder {
                EntryKind::Folder
            } else {
                EntryKind::File
            };
            let usual = if is_folder { 0o755 } else { 0o644 };
            let mode = mode.unwrap_or(usual) & 0o7777;
            tree.add(name.trim_end_matches('/'), kind, mode, bytes, modified, index);
        }
        Ok(tree)
    }

    fn add(&mut self, path: &str, kind: EntryKind, mode: u32, bytes: u64, at: i64, index: usize) {
        let dotted = path.split('/').any(|part| part.is_empty() || part == ".");
        if dotted || check_workspace_path(path).is_err() {
            return;
        }
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if !self.nodes.contains_key(folder) {
                let entry = entry(folder, EntryKind::Folder, 0o755, 0, at);
                self.nodes.insert(folder.to_owned(), Node { entry, index: None });
            }
        }
        let node = Node { entry: entry(path, kind, mode, bytes, at), index: Some(index) };
        self.nodes.insert(path.to_owned(), node);
    }

    /// What stands at a path after following symlinks; they may not lead out.
    fn find(&self, path: &str) -> Option<Found> {
        let mut resolved: Vec<String> = Vec::new();
        let mut rest: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut hops = 0;
        while let Some(part) = rest.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    resolved.pop()?;
                    continue;
                }
                _ => resolved.push(part),
            }
            if let EntryKind::Symlink { target } = &self.nodes.get(&resolved.join("/"))?.entry.kind
            {
                hops += 1;
                resolved.pop();
                let inside = match target.strip_prefix("/workspace/") {
                    Some(inside) => {
                        resolved.clear();
                        inside
                    }
                    None => target,
                };
                if hops > MOST_HOPS || inside.is_empty() || inside.starts_with('/') {
                    return None;
                }
                rest.extend(inside.split('/').rev().map(str::to_owned));
            }
        }
        let place = resolved.join("/");
        if place.is_empty() {
            return Some(Found::Folder(self.list("")));
        }
        let node = self.nodes.get(&place)?;
        match (&node.entry.kind, node.index) {
            (EntryKind::Folder, _) => Some(Found::Folder(self.list(&format!("{place}/")))),
            (EntryKind::File, Some(index)) => Some(Found::File(index)),
            _ => None,
        }
    }

    fn list(&self, prefix: &str) -> Vec<Entry> {
        let below = self.nodes.range(prefix.to_owned()..);
        below
            .take_while(|(path, _)| path.starts_with(prefix))
            .filter(|(path, _)| !path[prefix.len()..].contains('/'))
            .map(|(_, node)| node.entry.clone())
            .collect()
    }
}

fn entry(path: &str, kind: EntryKind, mode: u32, bytes: u64, modified: i64) -> Entry {
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    Entry { path: name, kind, mode, bytes, modified }
}

/// ZIP keeps wall-clock time without a zone; it is written and read here as UTC.
fn unix_seconds(at: zip::DateTime) -> i64 {
    let small = |value: u8| i8::try_from(value).unwrap_or_default();
    jiff::civil::DateTime::new(
        i16::try_from(at.year()).unwrap_or_default(),
        small(at.month()),
        small(at.day()),
        small(at.hour()),
        small(at.minute()),
        small(at.second()),
        0,
    )
    .and_then(|civil| civil.to_zoned(jiff::tz::TimeZone::UTC))
    .map_or(0, |zoned| zoned.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        let link = |target: &str| EntryKind::Symlink { target: target.into() };
        for (index, (path, kind)) in [
            ("a.txt", EntryKind::File),
            ("src/main.rs", EntryKind::File),
            ("src-old/x", EntryKind::File),
            ("../outside", EntryKind::File),
            ("/etc/passwd", EntryKind::File),
            ("x/../../y", EntryKind::File),
            ("link", link("src/main.rs")),
            ("code", link("src")),
            ("absolute", link("/workspace/a.txt")),
            ("out", link("../../etc/passwd")),
            ("root", link("/etc/passwd")),
            ("loop", link("loop")),
        ]
        .into_iter()
        .enumerate()
        {
            tree.add(path, kind, 0o644, 1, 0, index);
        }
        tree
    }

    #[test]
    fn paths_lead_to_files_and_never_out() {
        for (path, expected) in [
            ("a.txt", Some(0)),
            ("src/main.rs", Some(1)),
            ("link", Some(1)),
            ("code/main.rs", Some(1)),
            ("absolute", Some(0)),
            ("out", None),
            ("root", None),
            ("loop", None),
            ("../outside", None),
            ("outside", None),
            ("etc/passwd", None),
            ("y", None),
            ("a.txt/b", None),
            ("missing", None),
        ] {
            let found = tree().find(path);
            assert_eq!(found, expected.map(Found::File), "{path}");
        }
    }

    #[test]
    fn folders_list_what_is_directly_in_them() {
        let names = |path: &str| match tree().find(path) {
            Some(Found::Folder(entries)) => {
                entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>()
            }
            _ => panic!("{path} is not a folder"),
        };
        assert_eq!(names("src"), ["main.rs"]);
        assert_eq!(names("code/"), ["main.rs"]);
        let root = names("");
        assert_eq!(root.len(), 9, "{root:?}");
        assert!(root.contains(&"src".into()) && root.contains(&"src-old".into()));
    }
}
