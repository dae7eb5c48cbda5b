//! The whole workspace as a stream of entries, for the job's result.
//!
//! The walk goes by descriptors and follows no symlink. Nothing in the workspace can stop it: what
//! vanishes, cannot be read or is no file is said and passed over. What its owner, the tools' user,
//! closed to itself is opened again: the job is over, and its result matters more than the mode of
//! a folder that is about to vanish. The entries tell the modes as they were.

use std::fs::File;
use std::os::fd::OwnedFd;

use bellglass_protocol::wire::{Entry, EntryKind, Reply};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::send::{described, entry_of, names_in, send_content};
use super::text::name;
use crate::inside::transfer::{Frames, Unwanted};
use crate::inside::workspace::{Workspace, file_type, open_child, own_path};

/// Folders below this are not packed: each level costs a descriptor, and no one can use the paths.
const DEEPEST: usize = 200;

const ENTER: Mode = Mode::RUSR.union(Mode::XUSR);

pub(in crate::inside) struct Packing<'a> {
    frames: &'a Frames,
    /// Bytes that the workspace's file system holds in all.
    disk: u64,
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
        Self { frames, disk: u64::MAX }
    }

    pub(in crate::inside) fn whole(mut self, workspace: &Workspace) -> Result<(), Unwanted> {
        if let Ok(disk) = rustix::fs::fstatvfs(workspace.root()) {
            self.disk = disk.f_blocks.saturating_mul(disk.f_frsize);
        }
        let _ = allow_owner(workspace.root(), ENTER);
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
        let error = match level.open_file(child) {
            Ok((mut file, stat)) => {
                let entry = Entry { mode: entry.mode, ..described(entry.path, entry.kind, &stat) };
                let bytes = entry.bytes;
                self.entry(entry)?;
                if bytes > self.disk {
                    // Only holes can be so large. Sent as zeros, they would crowd out the rest.
                    Some("larger than the sandbox's disk; it is sparse".into())
                } else {
                    send_content(&mut file, bytes, self.frames)?.err()
                }
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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Self::open(self.open_child(name, flags, ENTER)?, format!("{path}/"))
    }

    fn open_file(&self, name: &[u8]) -> Result<(File, Stat), Errno> {
        // It may have become a pipe since it was looked at, which must not be waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_child(name, flags, Mode::RUSR)?;
        let stat = rustix::fs::fstat(&file)?;
        let is_file = file_type(&stat) == FileType::RegularFile;
        if is_file { Ok((File::from(file), stat)) } else { Err(Errno::NOENT) }
    }

    fn open_child(&self, name: &[u8], flags: OFlags, needed: Mode) -> Result<OwnedFd, Errno> {
        let named = open_child(&self.folder, name, OFlags::PATH)?;
        // Where this is refused, opening is too and gives the better reason.
        let _ = allow_owner(&named, needed);
        open_child(&self.folder, name, flags)
    }
}

/// Gives the owner what it took from itself. Follows nothing: the descriptor is the thing itself.
pub(super) fn allow_owner(named: &OwnedFd, needed: Mode) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(named)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.contains(needed) || file_type(&stat) == FileType::Symlink {
        return Ok(());
    }
    // A descriptor that only names a thing cannot change it, but leads to it.
    rustix::fs::chmod(own_path(named), mode | needed)
}
