//! The whole workspace as a stream of entries, for the job's result.
//!
//! The walk goes by descriptors and follows no symlink. Nothing in the workspace can stop it: what
//! vanishes, cannot be read or is no file is said and passed over.

use std::fs::File;
use std::os::fd::OwnedFd;

use bellglass_protocol::wire::{Entry, EntryKind, Reply};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::send::{described, entry_of, names_in, send_content};
use super::text::name;
use crate::inside::transfer::{Frames, Unwanted};
use crate::inside::workspace::{Workspace, file_type};

/// Folders below this are not packed: each level costs a descriptor, and no one can use the paths.
const DEEPEST: usize = 200;

const OPEN_CHILD: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

pub(in crate::inside) struct Packing<'a> {
    frames: &'a Frames,
}

/// A folder whose entries are being sent.
struct Level {
    folder: OwnedFd,
    /// What is still to come, last first.
    names: Vec<Vec<u8>>,
    /// Path of the folder in the workspace, with a `/` behind it unless it is empty.
    prefix: String,
}

impl<'a> Packing<'a> {
    pub(in crate::inside) fn new(frames: &'a Frames) -> Self {
        Self { frames }
    }

    pub(in crate::inside) fn whole(self, workspace: &Workspace) -> Result<(), Unwanted> {
        let root = workspace
            .open_beneath("".as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)
            .and_then(|folder| Level::open(folder, String::new()));
        let mut levels: Vec<Level> = match root {
            Ok(root) => vec![root],
            Err(error) => {
                let error = crate::inside::failure::path_failure("", error);
                return self.frames.reply(&Reply::Error { error });
            }
        };
        while let Some(level) = levels.last_mut() {
            let Some(child) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = format!("{}{}", level.prefix, name(&child));
            let Ok(entry) = entry_of(&level.folder, &child, path) else { continue };
            match entry.kind {
                EntryKind::File => self.file(level, &child, entry)?,
                EntryKind::Folder => {
                    let below = level.child(&child, &entry.path);
                    match below {
                        Ok(below) if levels.len() < DEEPEST => {
                            self.entry(entry)?;
                            levels.push(below);
                        }
                        // A folder that cannot be entered is said to be nothing that can be packed.
                        _ => self.entry(Entry { kind: EntryKind::Other, ..entry })?,
                    }
                }
                EntryKind::Symlink { .. } | EntryKind::Other => self.entry(entry)?,
            }
        }
        self.frames.reply(&Reply::End)
    }

    fn entry(&self, entry: Entry) -> Result<(), Unwanted> {
        self.frames.reply(&Reply::Entry { entry })
    }

    fn file(&self, level: &Level, child: &[u8], entry: Entry) -> Result<(), Unwanted> {
        // It may have become a pipe since it was looked at, which must not be waited for.
        let opened = level.open_child(child, OFlags::NONBLOCK).and_then(|fd| {
            let stat = rustix::fs::fstat(&fd)?;
            let is_file = file_type(&stat) == FileType::RegularFile;
            if is_file { Ok((File::from(fd), stat)) } else { Err(Errno::NOENT) }
        });
        let error = match opened {
            Ok((mut file, stat)) => {
                let entry = described(entry.path, EntryKind::File, &stat);
                let bytes = entry.bytes;
                self.entry(entry)?;
                send_content(&mut file, bytes, self.frames)?.err()
            }
            Err(error) => {
                self.entry(entry)?;
                Some(format!("cannot be read: {error}"))
            }
        };
        self.frames.reply(&Reply::EntryEnd { error })
    }
}

impl Level {
    fn open(folder: OwnedFd, prefix: String) -> Result<Self, Errno> {
        let mut names = names_in(&folder)?;
        names.reverse();
        Ok(Self { folder, names, prefix })
    }

    fn child(&self, name: &[u8], path: &str) -> Result<Self, Errno> {
        Self::open(self.open_child(name, OFlags::DIRECTORY)?, format!("{path}/"))
    }

    fn open_child(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.folder, name, OPEN_CHILD | flags, Mode::empty())
    }
}
