//! The name under which this process works: the same when it starts again on its data folder, and
//! nobody else's meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use bellglass_protocol::id::{JobId, WorkerId};
use rustix::fs::FlockOperation;

use crate::storage_config::Sharing;

/// A worker's name, held for as long as this lives.
pub(crate) struct WorkerName {
    pub(crate) name: WorkerId,
    /// Released by the kernel, however this process ends.
    _lock: Option<File>,
}

impl WorkerName {
    pub(crate) fn take(data: &Path, sharing: Sharing) -> anyhow::Result<Self> {
        match sharing {
            // Whoever holds the store is the only worker on it.
            Sharing::Alone => Ok(Self { name: WorkerId::new("local"), _lock: None }),
            Sharing::Shared => take_from(data),
        }
    }
}

fn take_from(data: &Path) -> anyhow::Result<WorkerName> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot make {}", data.display()))?;
    let path = data.join("worker");
    let file = OpenOptions::new().create(true).append(true).read(true).open(&path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another worker uses the data folder {}; each needs its own", data.display());
    }
    let mut name = String::new();
    file.read_to_string(&mut name)?;
    if name.trim().is_empty() {
        let host = rustix::system::uname();
        let host: String = host.nodename().to_string_lossy().chars().take(40).collect();
        let number = JobId::generate().to_string();
        let number = number.rsplit('-').next().unwrap_or_default();
        name = format!("{host}-{number}");
        file.write_all(name.as_bytes())?;
        file.sync_all()?;
    }
    Ok(WorkerName { name: WorkerId::new(name.trim()), _lock: Some(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_and_nobody_else_has_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = WorkerName::take(one.path(), Sharing::Shared).unwrap();
        let second = WorkerName::take(other.path(), Sharing::Shared).unwrap();
        assert_ne!(first.name, second.name);
        assert!(WorkerName::take(one.path(), Sharing::Shared).is_err());
        let name = first.name.clone();
        drop(first);
        assert_eq!(WorkerName::take(one.path(), Sharing::Shared).unwrap().name, name);
    }
}
