//! The sandbox's way out as its programs meet it: the proxy's port, and what they find around them.
//!
//! What the files and variables mean is known outside; here they are only put where they belong.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{RwLock, mpsc};
use std::{fs, io};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Equipment;
use tokio::sync::{OnceCell, oneshot};

use super::failure::failure;
use super::relay::{self, LatestWire};

/// Closed until a worker opens it. It is never closed again: the policy outside decides.
pub(super) struct WayOut {
    placer: Placer,
    listening: OnceCell<()>,
    environment: RwLock<BTreeMap<String, String>>,
}

impl WayOut {
    pub(super) fn new(placer: Placer) -> Self {
        Self { placer, listening: OnceCell::new(), environment: RwLock::default() }
    }

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
        let folders =
            tokio::task::spawn_blocking(move || folders.iter().try_for_each(fs::create_dir_all));
        let placed = match folders.await.map_err(io::Error::other).flatten() {
            Ok(()) => self.placer.place(files).await,
            Err(error) => Err(error),
        };
        placed.map_err(|error| {
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

/// A thread that puts files where tools may not write. It is started before the guest works on files
/// as the tools' user and before it is fenced in, and so is neither.
pub struct Placer(mpsc::Sender<Order>);

struct Order {
    files: BTreeMap<String, String>,
    placed: oneshot::Sender<io::Result<()>>,
}

/// It holds a path and a line or two.
const STACK: usize = 128 << 10;

impl Placer {
    pub fn start() -> io::Result<Self> {
        let (orders, to_do) = mpsc::channel::<Order>();
        let thread = std::thread::Builder::new().name("placer".into()).stack_size(STACK);
        thread.spawn(move || {
            for Order { files, placed } in to_do {
                // Who went away does not want to know.
                let _ = placed.send(place(&files));
            }
        })?;
        Ok(Self(orders))
    }

    async fn place(&self, files: BTreeMap<String, String>) -> io::Result<()> {
        let (placed, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that places files is gone");
        self.0.send(Order { files, placed }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
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
