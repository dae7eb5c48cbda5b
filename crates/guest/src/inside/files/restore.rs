//! Makes the workspace what the worker says: all that is there goes, all that was named comes.
//!
//! Everything is made by a single name in a folder that is open, so nothing that still runs can lead
//! it out of the workspace.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use bellglass_protocol::checkpoint::{Change, CheckpointNumber, What, WorkspacePath};
use bellglass_protocol::step::ToolError;
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::checkpoint::{Checkpoints, as_path};
use super::pack::allow_owner;
use super::send::names_in;
use crate::inside::failure::{failure, path_failure, path_io_failure};
use crate::inside::workspace::{Workspace, open_child};

/// What comes from the worker.
pub(in crate::inside) enum Piece {
    Change(Change),
    /// Of the file whose change came last.
    Data(Bytes),
}

/// A workspace that is being made.
pub(in crate::inside) struct Restoration<'a> {
    workspace: &'a Workspace,
    /// The folder that was needed last; most things come folder by folder.
    parent: Option<(WorkspacePath, OwnedFd)>,
    file: Option<(WorkspacePath, File, u32, i64)>,
    /// Folders get their modes last: one that is closed could not be filled.
    modes: Vec<(WorkspacePath, u32)>,
}

impl<'a> Restoration<'a> {
    pub(in crate::inside) fn begin(workspace: &'a Workspace) -> Result<Self, ToolError> {
        let failed = |error| path_failure("", error);
        let root = open_child(workspace.root(), c".", OFlags::RDONLY | OFlags::DIRECTORY);
        empty(&root.map_err(failed)?).map_err(failed)?;
        Ok(Self { workspace, parent: None, file: None, modes: Vec::new() })
    }

    pub(in crate::inside) fn take(&mut self, piece: Piece) -> Result<(), ToolError> {
        match piece {
            Piece::Data(bytes) => match &mut self.file {
                Some((path, file, ..)) => {
                    let written = file.write_all(&bytes);
                    written.map_err(|error| path_io_failure(&path.to_string(), &error))
                }
                None => Err(failure("bad_request", "data came without a file")),
            },
            Piece::Change(change) => {
                self.end_file()?;
                let shown = change.path.to_string();
                self.make(change).map_err(|error| path_failure(&shown, error))
            }
        }
    }

    fn make(&mut self, Change { path, what }: Change) -> Result<(), Errno> {
        self.enter_parent(&path)?;
        let parent = self.parent.as_ref().map_or(self.workspace.root(), |(_, folder)| folder);
        match what {
            What::Gone => {}
            What::Folder { mode } => {
                rustix::fs::mkdirat(parent, path.name(), Mode::RWXU)?;
                self.modes.push((path, mode));
            }
            What::Symlink { target } => {
                rustix::fs::symlinkat(target.as_bytes(), parent, path.name())?;
            }
            What::File { mode, modified, .. } => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file = rustix::fs::openat(parent, path.name(), flags, Mode::from(0o600))?;
                self.file = Some((path, File::from(file), mode, modified));
            }
        }
        Ok(())
    }

    fn enter_parent(&mut self, path: &WorkspacePath) -> Result<(), Errno> {
        let wanted = path.parent();
        if self.parent.as_ref().map(|(path, _)| path) != wanted.as_ref() {
            self.parent = match wanted {
                None => None,
                Some(wanted) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    let folder = open_child(self.workspace.root(), as_path(&wanted), flags)?;
                    Some((wanted, folder))
                }
            };
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), ToolError> {
        let Some((path, file, mode, modified)) = self.file.take() else { return Ok(()) };
        let seconds = modified.div_euclid(1_000_000_000);
        let time = Timespec { tv_sec: seconds, tv_nsec: modified.rem_euclid(1_000_000_000) as _ };
        let times = Timestamps { last_access: time, last_modification: time };
        let ended = rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))
            .and_then(|()| rustix::fs::futimens(&file, &times));
        ended.map_err(|error| path_failure(&path.to_string(), error))
    }

    /// Everything came. What the workspace is now, is known under this number.
    pub(in crate::inside) fn finish(
        mut self,
        checkpoints: &Checkpoints,
        number: CheckpointNumber,
    ) -> Result<(), ToolError> {
        self.end_file()?;
        for (path, mode) in self.modes.iter().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            open_child(self.workspace.root(), as_path(path), flags)
                .and_then(|folder| rustix::fs::fchmod(folder, Mode::from_raw_mode(mode & 0o7777)))
                .map_err(|error| path_failure(&path.to_string(), error))?;
        }
        checkpoints.remember(self.workspace, number)
    }
}

/// Deletes all that is in a folder, closed folders too.
pub(super) fn empty(folder: &OwnedFd) -> Result<(), Errno> {
    let _ = allow_owner_by_name(folder);
    let mut levels = vec![(open_child(folder, c".", OFlags::RDONLY | OFlags::DIRECTORY)?, None)];
    // Depth first, each folder by the descriptor of the one above it.
    let mut names = vec![names_in(&levels[0].0)?];
    while let (Some((folder, _)), Some(left)) = (levels.last(), names.last_mut()) {
        let Some(name) = left.pop() else {
            names.pop();
            let emptied = levels.pop().and_then(|(_, name): (OwnedFd, Option<Vec<u8>>)| name);
            if let (Some(name), Some((above, _))) = (emptied, levels.last()) {
                match rustix::fs::unlinkat(above, &*name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            continue;
        };
        match rustix::fs::unlinkat(folder, &*name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                let named = open_child(folder, &*name, OFlags::PATH)?;
                allow_owner(&named, Mode::RWXU)?;
                let below = open_child(folder, &*name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                names.push(names_in(&below)?);
                levels.push((below, Some(name)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn allow_owner_by_name(folder: &OwnedFd) -> Result<(), Errno> {
    allow_owner(&open_child(folder, c".", OFlags::PATH)?, Mode::RWXU)
}
