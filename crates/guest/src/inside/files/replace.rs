//! Puts a whole new file in the place of an old one, in one moment: a reader sees the old content
//! or the new, and a failure leaves the old.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bellglass_protocol::step::ToolError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::inside::failure::{not_a_file, path_failure};
use crate::inside::workspace::{Place, Workspace, file_type};

/// A file that is being written beside the one it will replace.
pub(in crate::inside) struct Replacement {
    path: String,
    place: Place,
    temporary: String,
    file: File,
    /// Permission bits of the file that was there.
    old_mode: Option<u32>,
    committed: bool,
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
        let (temporary, file) = create_beside(&place.parent).map_err(failed)?;
        Ok(Self { path: path.into(), place, temporary, file, old_mode, committed: false })
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
            rustix::fs::renameat(parent, &self.temporary, parent, &self.place.name)
        };
        finish().map_err(|error| path_failure(&self.path, error))?;
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

fn create_beside(parent: &OwnedFd) -> Result<(String, File), Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".bellglass-{}-{number}.part", std::process::id());
        match rustix::fs::openat(parent, &name, flags, Mode::from(0o600)) {
            Err(Errno::EXIST | Errno::INTR) => {}
            other => return Ok((name, File::from(other?))),
        }
    }
}
