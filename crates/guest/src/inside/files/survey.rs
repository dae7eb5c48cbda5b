//! What the workspace holds right now, by what the kernel says about each thing: enough to tell
//! whether it changed, without reading any of it.
//!
//! The walk goes by descriptors and follows no symlink. Folders that their owner closed to itself are
//! opened for as long as the survey lives, and closed again when it is dropped.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bellglass_protocol::checkpoint::{DEEPEST, MOST_ENTRIES, MOST_NAME_BYTES};
use bellglass_protocol::step::ToolError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::pack::allow_owner;
use super::send::names_in;
use crate::inside::failure::{failure, path_failure};
use crate::inside::workspace::{Workspace, file_type, open_child, own_path};

/// What is compared: where two of these are equal, nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    Folder {
        mode: u32,
    },
    Symlink {
        inode: u64,
        changed: i128,
    },
    File {
        inode: u64,
        mode: u32,
        bytes: u64,
        modified: i128,
        changed: i128,
    },
    /// Equal to none that is found: whatever it was, it is looked at again.
    Unsure,
}

impl Stamp {
    /// `None` for what is neither file, folder nor symlink.
    pub(super) fn of(stat: &Stat) -> Option<Self> {
        let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
        let (inode, mode) = (stat.st_ino, stat.st_mode & 0o7777);
        match file_type(stat) {
            FileType::Directory => Some(Self::Folder { mode }),
            FileType::Symlink => Some(Self::Symlink { inode, changed }),
            FileType::RegularFile => {
                let modified = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
                let bytes = u64::try_from(stat.st_size).unwrap_or_default();
                Some(Self::File { inode, mode, bytes, modified, changed })
            }
            _ => None,
        }
    }

    /// When the kernel last noted a change of it, where that matters.
    pub(super) fn changed(&self) -> i128 {
        match self {
            Self::Symlink { changed, .. } | Self::File { changed, .. } => *changed,
            Self::Folder { .. } | Self::Unsure => i128::MIN,
        }
    }
}

fn nanoseconds(seconds: impl Into<i128>, nanoseconds: impl TryInto<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + nanoseconds.try_into().unwrap_or_default()
}

/// Everything in the workspace, each folder before what is in it.
pub(super) struct Survey {
    pub(super) found: Vec<(Vec<u8>, Stamp)>,
    /// Folders that were closed, with the modes that they get back.
    opened: Vec<(OwnedFd, Mode)>,
}

struct Level {
    folder: OwnedFd,
    /// What is still to come, last first.
    names: Vec<Vec<u8>>,
    /// Path of the folder, with a `/` behind it unless it is the workspace.
    prefix: Vec<u8>,
}

const ENTER: Mode = Mode::RUSR.union(Mode::XUSR);

impl Survey {
    pub(super) fn take(workspace: &Workspace) -> Result<Self, ToolError> {
        let mut survey = Self { found: Vec::new(), opened: Vec::new() };
        let root = open_child(workspace.root(), c".", OFlags::RDONLY | OFlags::DIRECTORY);
        let root = root.map_err(|error| path_failure("", error))?;
        let mut levels = vec![Level::open(root, Vec::new()).map_err(|e| path_failure("", e))?];
        let mut name_bytes = 0;
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let stat = rustix::fs::statat(&level.folder, &*name, AtFlags::SYMLINK_NOFOLLOW);
            // What vanished since it was named is simply not there.
            let Some(stamp) = stat.ok().and_then(|stat| Stamp::of(&stat)) else { continue };
            let path = [&level.prefix[..], &name].concat();
            name_bytes += path.len();
            let below = match stamp {
                Stamp::Folder { .. } => match survey.enter(level, &name, &path) {
                    Ok(below) => Some(below),
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    Err(error) => {
                        return Err(path_failure(&String::from_utf8_lossy(&path), error));
                    }
                },
                _ => None,
            };
            survey.found.push((path, stamp));
            if survey.found.len() > MOST_ENTRIES || name_bytes > MOST_NAME_BYTES {
                let words = format!(
                    "the workspace has more than {MOST_ENTRIES} files, or longer names \
                             than can be kept"
                );
                return Err(failure("too_large", words));
            }
            levels.extend(below);
            if levels.len() > DEEPEST {
                let words = format!("folders of the workspace lie deeper than {DEEPEST} levels");
                return Err(failure("too_large", words));
            }
        }
        Ok(survey)
    }

    fn enter(&mut self, level: &Level, name: &[u8], path: &[u8]) -> Result<Level, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let prefix = [path, b"/"].concat();
        match open_child(&level.folder, name, flags) {
            Err(Errno::ACCESS) => {
                let named = open_child(&level.folder, name, OFlags::PATH)?;
                let mode = Mode::from_raw_mode(rustix::fs::fstat(&named)?.st_mode);
                allow_owner(&named, ENTER)?;
                let opened = open_child(&level.folder, name, flags);
                self.opened.push((named, mode));
                Level::open(opened?, prefix)
            }
            Ok(folder) => {
                // It can be listed, but what is in it cannot be looked at without this.
                let mode = Mode::from_raw_mode(rustix::fs::fstat(&folder)?.st_mode);
                if !mode.contains(Mode::XUSR) {
                    let named = open_child(&level.folder, name, OFlags::PATH)?;
                    let _ = allow_owner(&named, ENTER);
                    self.opened.push((named, mode));
                }
                Level::open(folder, prefix)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        for (folder, mode) in self.opened.iter().rev() {
            let _ = rustix::fs::chmod(own_path(folder), *mode);
        }
    }
}

impl Level {
    fn open(folder: OwnedFd, prefix: Vec<u8>) -> Result<Self, Errno> {
        let mut names = names_in(&folder)?;
        names.reverse();
        Ok(Self { folder, names, prefix })
    }
}

/// Waits until any further change gets another time from the kernel than `changed`. The clock of
/// files moves in steps, so what happens within one step cannot be told apart. `false` if that does
/// not come to be within a few steps, as when the clock was set back.
pub(super) fn let_time_pass(changed: i128) -> bool {
    for _ in 0..30 {
        if coarse_now() > changed {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    coarse_now() > changed
}

fn coarse_now() -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that the call writes to.
    match unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) } {
        0 => nanoseconds(now.tv_sec, now.tv_nsec),
        _ => i128::MIN,
    }
}
