//! Small files of the server's own that nobody else may read.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Puts a file in its place, whole or not at all.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    // A server whose store is elsewhere has had nothing to put into its folder so far.
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(content)?;
    fs::rename(&beside, path)
}
