//! Puts a whole new file in the place of an old one, in one moment: a reader sees the old content
//! or the new, and a failure leaves the old. Or puts one where nothing stands.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bellglass_protocol::step::ToolError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::inside::failure::{already_exists, not_a_file, path_failure};
use crate::inside::workspace::{Place, Workspace, file_type};

/// A file that is being written beside the one it will replace.
pub(in crate::inside) struct Replacement {
    path: String,
    place: Place,
    temporary: String,
    file: File,
    /// Permission bits of the file that was there.
    old_mode: Option<u32>,
    landing: Landing,
    committed: bool,
}

/// What may stand in the place when the file takes it.
#[derive(Clone, Copy)]
enum Landing {
    Anything,
    Nothing,
}

impl Replacement {
    pub(in crate::inside) fn begin(workspace: &Workspace, path: &str) -> Result<Self, ToolError> {
        let relative = workspace.inside(path)?;
        let failed = |error| path_failure(path, error);
        let place = workspace.make_place_for_content(&relative).map_err(failed)?;
        let old_mode = match place.stat().map_err(failed)? {
            None => None,
            Some(stat) => match file_type(&stat) {
                FileType::RegularFile => Some(stat.st_mode & 0o7777),
                FileType::Directory => return Err(path_failure(path, Errno::ISDIR)),
                _ => return Err(not_a_file(path)),
            },
        };
        Self::beside(path, place, old_mode, Landing::Anything)
    }

    /// A file for a place where nothing stands, and where nothing may stand in the end either.
    pub(super) fn begin_new(workspace: &Workspace, path: &str) -> Result<Self, ToolError> {
        Self::beside(path, empty_place(workspace, path)?, None, Landing::Nothing)
    }

    fn beside(
        path: &str,
        place: Place,
        old_mode: Option<u32>,
        landing: Landing,
    ) -> Result<Self, ToolError> {
        let made = create_beside(&place.parent);
        let (temporary, file) = made.map_err(|error| path_failure(path, error))?;
        let path = path.into();
        Ok(Self { path, place, temporary, file, old_mode, landing, committed: false })
    }

    pub(in crate::inside) fn is_new(&self) -> bool {
        self.old_mode.is_none()
    }

    /// Lets the new file take its place. An old file's permissions are kept.
    pub(in crate::inside) fn commit(mut self, executable: bool) -> Result<(), ToolError> {
        let mut mode = self.old_mode.unwrap_or(0o644);
        if executable {
            // Whoever may read it may run it.
            mode |= (mode & 0o444) >> 2;
        }
        let finish = || {
            rustix::fs::fchmod(&self.file, Mode::from(mode))?;
            let parent = &self.place.parent;
            match self.landing {
                Landing::Anything => {
                    rustix::fs::renameat(parent, &self.temporary, parent, &self.place.name)
                }
                Landing::Nothing => take_empty_place(&self.place, &self.temporary),
            }
        };
        finish().map_err(|error| match error {
            Errno::EXIST => already_exists(&self.path),
            error => path_failure(&self.path, error),
        })?;
        self.committed = true;
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.committed {
            let _ = rustix::fs::unlinkat(&self.place.parent, &self.temporary, AtFlags::empty());
        }
    }
}

/// A place for something new, in folders that are made as needed.
pub(super) fn empty_place(workspace: &Workspace, path: &str) -> Result<Place, ToolError> {
    let relative = workspace.inside(path)?;
    let failed = |error| path_failure(path, error);
    let place = workspace.make_place(&relative).map_err(failed)?;
    match place.stat().map_err(failed)? {
        None => Ok(place),
        Some(_) => Err(already_exists(path)),
    }
}

/// Moves what was made beside a place into it, unless something stands there by now.
pub(super) fn take_empty_place(place: &Place, temporary: &str) -> Result<(), Errno> {
    let parent = &place.parent;
    rustix::fs::renameat_with(parent, temporary, parent, &place.name, RenameFlags::NOREPLACE)
}

/// A name for what is made beside its place.
pub(super) fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".bellglass-{}-{number}.part", std::process::id())
}

fn create_beside(parent: &OwnedFd) -> Result<(String, File), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let name = temporary_name();
        match rustix::fs::openat(parent, &name, flags, Mode::from(0o600)) {
            Err(Errno::EXIST | Errno::INTR) => {}
            other => return Ok((name, File::from(other?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_meanwhile_is_not_replaced_by_something_new() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(folder.path().to_str().unwrap()).unwrap();
        let mut new = Replacement::begin_new(&workspace, "file").unwrap();
        new.write_all(b"new").unwrap();
        std::fs::write(folder.path().join("file"), "theirs").unwrap();
        assert_eq!(new.commit(false).unwrap_err().code, "already_exists");
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "theirs");
    }
}
