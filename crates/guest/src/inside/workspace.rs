//! The workspace, opened once: every path of a tool is resolved beneath it by the kernel.
//!
//! Symlinks that stay inside are followed, those that lead out are refused (`openat2` with
//! `RESOLVE_BENEATH`, or `step_by_step` where the kernel has no such call). What is created, renamed or deleted is named by its parent's descriptor and
//! its last component, so that no path is resolved twice.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bellglass_protocol::step::{ToolError, check_workspace_path, workspace_relative};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::failure::{failure, not_a_file, path_failure};
use super::step_by_step::{self, Links};

/// How often a lookup is tried again when something above it was renamed meanwhile.
const RESOLVE_TRIES: u32 = 16;

pub(super) struct Workspace {
    root: OwnedFd,
    path: PathBuf,
}

/// A name in a folder that is open.
pub(super) struct Place {
    pub(super) parent: OwnedFd,
    pub(super) name: OsString,
}

impl Place {
    /// What stands there, a symlink itself included.
    pub(super) fn stat(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Opens what has this name in a folder of the workspace; a symlink is refused, whenever it came
/// there.
pub(super) fn open_child(
    folder: impl AsFd,
    name: impl Arg,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    name.into_with_c_str(|name| resolved(folder.as_fd(), name, flags, resolve))
}

fn resolved(
    folder: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        let opened = match rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve) {
            // gVisor's kernel does not have it.
            Err(Errno::NOSYS) => step_by_step::open(folder, path, flags, links(resolve)),
            other => other,
        };
        match opened {
            Err(Errno::AGAIN) if tries < RESOLVE_TRIES => tries += 1,
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn links(resolve: ResolveFlags) -> Links {
    match resolve.contains(ResolveFlags::NO_SYMLINKS) {
        true => Links::Refuse,
        false => Links::FollowBeneath,
    }
}

impl Workspace {
    pub(super) fn open(path: &str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let path = path_of(&root)?;
        Ok(Self { root, path })
    }

    /// The path of the workspace as processes of the sandbox see it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder itself, by a descriptor that only names it.
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Checks the words of a path that must name something inside, and makes it plain.
    pub(super) fn inside(&self, path: &str) -> Result<PathBuf, ToolError> {
        check_workspace_path(path).map_err(|reason| {
            let code = match reason.contains("..") || reason.contains("outside") {
                true => "outside_workspace",
                false => "invalid_path",
            };
            failure(code, format!("the path `{path}` {reason}"))
        })?;
        Ok(plain(workspace_relative(path)))
    }

    /// Like [`Self::inside`], but the workspace itself may be meant: by nothing, `.` or its path.
    pub(super) fn inside_or_root(&self, path: Option<&str>) -> Result<PathBuf, ToolError> {
        match path {
            None => Ok(PathBuf::new()),
            Some(path) if workspace_relative(path).is_empty() => Ok(PathBuf::new()),
            Some(path) => self.inside(path),
        }
    }

    /// Opens what is beneath the workspace; an empty path is the workspace itself.
    pub(super) fn open_beneath(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        path.into_with_c_str(|path| resolved(self.root.as_fd(), path, flags, resolve))
    }

    /// Opens a plain file for reading; never waits for the other end of a pipe.
    pub(super) fn open_file(&self, path: &str) -> Result<(File, Stat), ToolError> {
        let relative = self.inside(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.open_beneath(&relative, flags).map_err(|e| path_failure(path, e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| path_failure(path, e))?;
        match file_type(&stat) {
            FileType::RegularFile => Ok((File::from(fd), stat)),
            FileType::Directory => Err(path_failure(path, Errno::ISDIR)),
            _ => Err(not_a_file(path)),
        }
    }

    /// The place that a path names, in a folder that must exist.
    pub(super) fn place(&self, relative: &Path) -> Result<Place, Errno> {
        let (parent, name) = split(relative)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok(Place { parent: self.open_beneath(parent, flags)?, name: name.into() })
    }

    /// The place that a path names, in folders that are made as needed.
    pub(super) fn make_place(&self, relative: &Path) -> Result<Place, Errno> {
        let (parent, name) = split(relative)?;
        Ok(Place { parent: self.make_folder(parent)?, name: name.into() })
    }

    /// The place whose file a write replaces: where the path is a symlink, what it leads to.
    pub(super) fn make_place_for_content(&self, relative: &Path) -> Result<Place, Errno> {
        let place = self.make_place(relative)?;
        match place.stat()? {
            Some(stat) if file_type(&stat) == FileType::Symlink => {
                let target = self.open_beneath(relative, OFlags::PATH)?;
                self.place(&self.relative_of(&target)?)
            }
            _ => Ok(place),
        }
    }

    /// Where something that was opened beneath the workspace really is, symlinks resolved.
    pub(super) fn relative_of(&self, fd: &OwnedFd) -> Result<PathBuf, Errno> {
        let path = path_of(fd).map_err(|_| Errno::NOENT)?;
        path.strip_prefix(&self.path).map(Path::to_path_buf).map_err(|_| Errno::XDEV)
    }

    fn make_folder(&self, relative: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_beneath(relative, flags) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let mut folder = self.open_beneath(Path::new(""), flags)?;
        let mut so_far = PathBuf::new();
        for part in relative.components() {
            so_far.push(part);
            // Each prefix is resolved from the root: a symlink may climb as long as it stays inside.
            folder = match self.open_beneath(&so_far, flags) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&folder, part.as_os_str(), Mode::from(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => self.open_beneath(&so_far, flags)?,
                        Err(error) => return Err(error),
                    }
                }
                other => other?,
            };
        }
        Ok(folder)
    }
}

fn split(relative: &Path) -> Result<(&Path, &std::ffi::OsStr), Errno> {
    let name = relative.file_name().ok_or(Errno::INVAL)?;
    Ok((relative.parent().unwrap_or(Path::new("")), name))
}

/// Drops empty parts and `.`; `..` was refused before.
fn plain(path: &str) -> PathBuf {
    let parts = Path::new(path).components();
    parts.filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(own_path(fd))
}

/// A path by which this process reaches exactly what a descriptor stands for.
pub(super) fn own_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
