//! Where an image lies while it is made, and who may make one. Whatever happens to a build, what
//! it leaves is recognised as waste and removed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::enclosure::Enclosure;
use super::error::ImageError;
use super::progress::Reporter;

const PREFIX: &str = ".building-";
const LOCK: &str = ".lock";

/// The right to build in a store. The kernel takes it back when its holder dies.
pub(super) struct BuildLock(#[expect(dead_code, reason = "held for its lock")] File);

impl BuildLock {
    /// The right, unless another process has it. The directory need not exist; then nobody can.
    pub(super) fn try_acquire(directory: &Path) -> Result<Option<Self>, ImageError> {
        let path = directory.join(LOCK);
        fs::create_dir_all(directory).map_err(ImageError::io("create", directory))?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(ImageError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(ImageError::io("lock", &path)(error)),
        }
    }

    /// Waits for the right, and says so.
    pub(super) async fn acquire(
        directory: &Path,
        reporter: &dyn Reporter,
    ) -> Result<Self, ImageError> {
        let mut told = false;
        loop {
            if let Some(lock) = Self::try_acquire(directory)? {
                return Ok(lock);
            }
            if !told {
                reporter.note("another image build is under way; waiting for its end");
                told = true;
            }
            // A blocking wait for the lock could not be cancelled.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A directory for one build; it is removed with all that is in it when this is dropped.
pub(super) struct Workbench {
    path: PathBuf,
}

impl Workbench {
    /// Only who holds the lock may, so every other workbench is a leftover.
    pub(super) fn set_up(directory: &Path, _lock: &BuildLock) -> Result<Self, ImageError> {
        let path = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir_in(directory)
            .map_err(ImageError::io("create a build directory in", directory))?
            .keep();
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the workbenches of builds that were killed. Says how many there were.
    pub(super) fn remove_leftovers(
        directory: &Path,
        _lock: &BuildLock,
    ) -> Result<usize, ImageError> {
        let mut removed = 0;
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let path = entry.path();
                Enclosure::remove_tree(&path).map_err(ImageError::io("remove", &path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        // Programs that were killed a moment ago may still be writing their last file.
        for _ in 0..40 {
            match Enclosure::remove_tree(&self.path) {
                Err(_) if self.path.exists() => std::thread::sleep(Duration::from_millis(50)),
                _ => return,
            }
        }
        tracing::warn!(path = %self.path.display(), "a build directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::progress::Silent;

    #[test]
    fn a_workbench_vanishes_with_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let lock = BuildLock::try_acquire(directory.path()).unwrap().unwrap();
        let workbench = Workbench::set_up(directory.path(), &lock).unwrap();
        let path = workbench.path().to_owned();
        fs::create_dir_all(path.join("image/rootfs/bin")).unwrap();
        drop(workbench);
        assert!(!path.exists());
    }

    #[test]
    fn leftovers_are_swept_but_never_those_of_a_build_under_way() {
        let directory = tempfile::tempdir().unwrap();
        let store = crate::image::ImageStore::new(directory.path().to_owned());
        let leftover = directory.path().join(".building-1-abc");
        fs::create_dir_all(leftover.join("image/rootfs")).unwrap();
        fs::create_dir_all(directory.path().join("base-0123456789ab")).unwrap();

        let lock = BuildLock::try_acquire(directory.path()).unwrap().unwrap();
        assert_eq!(store.sweep().unwrap(), 0);
        assert!(leftover.exists());
        drop(lock);
        assert_eq!(store.sweep().unwrap(), 1);
        assert!(!leftover.exists() && directory.path().join("base-0123456789ab").exists());
    }

    #[tokio::test]
    async fn a_second_build_waits_for_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = BuildLock::acquire(directory.path(), &Silent).await.unwrap();
        let waiting = BuildLock::acquire(directory.path(), &Silent);
        tokio::pin!(waiting);
        let early = tokio::time::timeout(Duration::from_millis(250), &mut waiting).await;
        assert!(early.is_err(), "two builds held the lock at once");
        drop(first);
        waiting.await.unwrap();
    }
}
