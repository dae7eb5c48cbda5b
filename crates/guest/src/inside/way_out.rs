//! The sandbox's way out as its programs meet it: the proxy's port, and what they find around them.
//!
//! What the files and variables mean is known outside; here they are only put where they belong.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::RwLock;
use std::{fs, io};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Equipment;
use tokio::sync::OnceCell;

use super::failure::failure;
use super::relay::{self, LatestWire};

/// Closed until a worker opens it. It is never closed again: the policy outside decides.
#[derive(Default)]
pub(super) struct WayOut {
    listening: OnceCell<()>,
    environment: RwLock<BTreeMap<String, String>>,
}

impl WayOut {
    /// Opens the port if it is not open yet, and lays out the equipment. Programs that run already
    /// keep the environment that they were started with.
    pub(super) async fn open(
        &self,
        wire: LatestWire,
        equipment: Equipment,
    ) -> Result<(), ToolError> {
        let Equipment { environment, files, folders } = equipment;
        self.listening.get_or_try_init(|| relay::start(wire)).await.map_err(|error| {
            failure("proxy_port_taken", format!("the proxy's port cannot be opened: {error}"))
        })?;
        let placing = tokio::task::spawn_blocking(move || {
            folders.iter().try_for_each(fs::create_dir_all)?;
            as_the_guest_itself(|| place(&files))
        });
        placing.await.map_err(io::Error::other).flatten().map_err(|error| {
            failure("not_equipped", format!("what the way out needs cannot be placed: {error}"))
        })?;
        *self.environment.write().expect("no code panics while it holds this lock") = environment;
        Ok(())
    }

    /// Variables for a program that is about to start.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        self.environment.read().expect("no code panics while it holds this lock").clone()
    }
}

fn place(files: &BTreeMap<String, String>) -> io::Result<()> {
    for (path, content) in files {
        let path = Path::new(path);
        let named = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
        place_file(path, content.as_bytes()).map_err(named)?;
    }
    Ok(())
}

/// Puts a whole file in place of another: a program that reads meanwhile gets the one or the other.
fn place_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_added_extension("new");
    let _ = fs::remove_file(&draft);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o644).open(&draft)?;
    file.write_all(content)?;
    fs::rename(&draft, path)
}

/// Files are otherwise worked on as the tool user, who must not own these. The work is done in a
/// thread of its own, so that the identity ends with it.
fn as_the_guest_itself<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            take_own_identity();
            work()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the work itself broke")))
    })
}

/// Makes the calling thread work on files as the user that the guest really is. By raw calls, which
/// concern this thread only. The identity for files follows the effective one, and a kernel that has
/// none of its own for files goes by the effective one anyway.
fn take_own_identity() {
    const AS_IT_IS: libc::c_long = -1;
    // SAFETY: takes numbers only. Becoming whom one really is cannot be refused.
    unsafe {
        libc::syscall(libc::SYS_setresgid, AS_IT_IS, libc::getgid(), AS_IT_IS);
        libc::syscall(libc::SYS_setresuid, AS_IT_IS, libc::getuid(), AS_IT_IS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_replace_what_stands_in_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etc/deep/bundle.crt");
        let files = BTreeMap::from([(path.to_string_lossy().into_owned(), "one".to_owned())]);
        place(&files).unwrap();
        fs::write(path.with_added_extension("new"), "left by a crash").unwrap();
        let files = BTreeMap::from([(path.to_string_lossy().into_owned(), "two".to_owned())]);
        place(&files).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
