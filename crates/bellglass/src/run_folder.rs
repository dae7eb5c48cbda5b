//! The data folder of one `bellglass run`, and the removal of those whose process was killed.
//!
//! They lie side by side in one folder of the user's, each locked by the process that it belongs to.
//! Whoever starts next clears away what nobody holds, sandboxes and all.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tempfile::TempDir;

use crate::installation::{SandboxSettings, sweep_all};

pub(crate) struct RunFolder {
    folder: TempDir,
    /// Released by the kernel, however this process ends.
    _lock: File,
}

impl RunFolder {
    pub(crate) fn make() -> io::Result<Self> {
        let parent = parent()?;
        // Nobody sweeps between the making of the folder and its lock.
        let _turn = lock(&parent.join(TURN), FlockOperation::LockExclusive)?;
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(&parent)?;
        let lock = lock(&folder.path().join(LOCK), FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what runs left that were killed.
pub(crate) async fn sweep(settings: &SandboxSettings) {
    match abandoned() {
        Ok(abandoned) => {
            for (folder, _lock) in abandoned {
                tracing::info!(folder = %folder.display(), "removing what a killed run left");
                if let Err(error) = sweep_all(&folder, settings, &HashSet::new()).await {
                    tracing::warn!(%error, "could not remove its sandboxes");
                } else if let Err(error) = fs::remove_dir_all(&folder) {
                    tracing::warn!(%error, "could not remove its folder");
                }
            }
        }
        Err(error) => tracing::warn!(%error, "could not look for what killed runs left"),
    }
}

/// The folders that nobody holds, held by us.
fn abandoned() -> io::Result<Vec<(PathBuf, File)>> {
    let parent = parent()?;
    let _turn = lock(&parent.join(TURN), FlockOperation::LockExclusive)?;
    let entries = fs::read_dir(&parent)?.flatten().map(|entry| entry.path());
    let folders = entries.filter(|path| path.is_dir());
    let held = folders.filter_map(|folder| {
        let lock = lock(&folder.join(LOCK), FlockOperation::NonBlockingLockExclusive).ok()?;
        Some((folder, lock))
    });
    Ok(held.collect())
}

const LOCK: &str = "lock";
const TURN: &str = "turn";

fn lock(file: &Path, operation: FlockOperation) -> io::Result<File> {
    let file = File::create(file)?;
    rustix::fs::flock(&file, operation)?;
    Ok(file)
}

/// The folder of all runs of this user, which nobody else can enter.
fn parent() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let parent = std::env::temp_dir().join(format!("bellglass-runs-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&parent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&parent)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let parent = parent.display();
        return Err(io::Error::other(format!(
            "{parent} is not a folder of this user's alone; remove it, or set TMPDIR"
        )));
    }
    Ok(parent)
}
