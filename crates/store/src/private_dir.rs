//! Makes the folders that the store lives in: for their owner only, and durably.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes `dir` and what is missing above it with mode 0700. A folder that exists stays as it is.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_private_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
        // A new folder outlives a power cut only when the entry above it is on the disk.
        Ok(()) => File::open(parent.unwrap_or(Path::new(".")))?.sync_all(),
    }
}
