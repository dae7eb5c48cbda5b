//! Walks below a folder of the workspace as `list_files` and `search_files` do: in order, leaving
//! out what .gitignore names, never through a symlink.
//!
//! The walk goes from descriptor to descriptor by single names, so nothing that tools rename while
//! it is under way can lead it out of the workspace.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bellglass_protocol::step::ToolError;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::rules::Rules;
use super::send::names_in;
use crate::inside::failure::path_failure;
use crate::inside::workspace::{Place, Workspace, file_type, open_child};

/// Folders below this are not entered: each level costs a descriptor.
const DEEPEST: usize = 200;

/// Where a walk begins: the real place of the path, which a symlink inside may have led to.
pub(super) struct Start<'a> {
    workspace: &'a Workspace,
    opened: OwnedFd,
    stat: Stat,
    /// Relative to the workspace.
    path: PathBuf,
}

/// Something that a walk came by.
pub(super) struct Found {
    folder: Arc<OwnedFd>,
    name: OsString,
    pub(super) stat: Stat,
    /// Relative to the workspace.
    pub(super) path: PathBuf,
}

pub(super) fn start<'a>(
    workspace: &'a Workspace,
    path: Option<&str>,
) -> Result<Start<'a>, ToolError> {
    let relative = workspace.inside_or_root(path)?;
    let begin = || {
        let opened = workspace.open_beneath(&relative, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&opened)?;
        let path = workspace.relative_of(&opened)?;
        Ok(Start { workspace, opened, stat, path })
    };
    begin().map_err(|error| path_failure(path.unwrap_or_default(), error))
}

impl Start<'_> {
    pub(super) fn is_folder(&self) -> bool {
        file_type(&self.stat) == FileType::Directory
    }

    /// Relative to the workspace.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All that is below a folder, down to a depth; of a file only itself. What cannot be read is
    /// left out.
    pub(super) fn walk(&self, depth: Option<usize>) -> Walk {
        let mut walk = Walk {
            levels: Vec::new(),
            rules: Rules::default(),
            deepest: depth.unwrap_or(DEEPEST).min(DEEPEST),
            only: None,
        };
        if !self.is_folder() {
            walk.only = self.workspace.place(&self.path).ok().map(|place| {
                let Place { parent, name } = place;
                let (stat, path) = (self.stat, self.path.clone());
                Found { folder: Arc::new(parent), name, stat, path }
            });
            return walk;
        }
        // The rules of the folders above hold too.
        for above in self.path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            match self.workspace.open_beneath(above, flags) {
                Ok(folder) => walk.rules.enter(&folder, above),
                Err(_) => walk.rules.enter_without(),
            }
        }
        if let Ok(folder) = open_child(&self.opened, c".", OFlags::RDONLY | OFlags::DIRECTORY) {
            // A folder that cannot be listed is shown as empty.
            let _ = walk.enter(folder, self.path.clone());
        }
        walk
    }
}

impl Found {
    pub(super) fn kind(&self) -> FileType {
        file_type(&self.stat)
    }

    /// Opens a plain file. A pipe could have taken its name since; it must not be waited for.
    pub(super) fn open(&self) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_child(&*self.folder, &*self.name, flags)?;
        let is_file = file_type(&rustix::fs::fstat(&file)?) == FileType::RegularFile;
        if is_file { Ok(File::from(file)) } else { Err(Errno::NXIO) }
    }

    pub(super) fn symlink_target(&self) -> Result<OsString, Errno> {
        let target = rustix::fs::readlinkat(&*self.folder, &*self.name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

/// A walk under way. Gives each folder before what is in it.
pub(super) struct Walk {
    levels: Vec<Level>,
    rules: Rules,
    deepest: usize,
    /// The file that the walk began at.
    only: Option<Found>,
}

struct Level {
    folder: Arc<OwnedFd>,
    /// What is still to come, last first.
    names: Vec<Vec<u8>>,
    /// Relative to the workspace.
    path: PathBuf,
}

impl Walk {
    fn enter(&mut self, folder: OwnedFd, path: PathBuf) -> Result<(), Errno> {
        let mut names = names_in(&folder)?;
        names.reverse();
        self.rules.enter(&folder, &path);
        self.levels.push(Level { folder: Arc::new(folder), names, path });
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if let Some(only) = self.only.take() {
            return Some(only);
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                self.rules.leave();
                continue;
            };
            // Hidden files are part of the work; git's own are not.
            if name == b".git" {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&level.folder, &*name, AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            let path = level.path.join(OsStr::from_bytes(&name));
            let is_folder = file_type(&stat) == FileType::Directory;
            if self.rules.leave_out(&path, is_folder) {
                continue;
            }
            let name = OsString::from_vec(name);
            let found = Found { folder: level.folder.clone(), name, stat, path };
            if is_folder && self.levels.len() < self.deepest {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                // What cannot be entered is still shown itself.
                let _ = open_child(&*found.folder, &*found.name, flags)
                    .and_then(|below| self.enter(below, found.path.clone()));
            }
            return Some(found);
        }
    }
}
