//! Threads for blocking code that waits for artifacts.
//!
//! The object store does its work on the blocking threads of tokio, of which there are so many and
//! no more. Code that held one of them while it waited for another could take them all, and then
//! everybody would wait for ever. So such code runs elsewhere, and artifacts refuse any other.

use std::io;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::ArtifactError;

/// Runs blocking code that reads or writes artifacts on a thread of its own, beginning at once.
///
/// The caller bounds how many there are. If nobody waits for the outcome, the code still runs to
/// its end.
pub fn run_apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, ArtifactError>> + Send {
    let (done, outcome) = oneshot::channel();
    let started = std::thread::Builder::new()
        .name("artifacts".into())
        // A caller that went away does not want to know.
        .spawn(move || drop(done.send(work())));
    async move {
        started.map_err(ArtifactError::NoThread)?;
        outcome.await.map_err(|_| {
            ArtifactError::NoThread(io::Error::other("the thread ended before its work"))
        })
    }
}

/// Refuses to wait for an artifact on a thread that belongs to the runtime.
pub(super) fn check_thread() -> io::Result<()> {
    match Handle::try_current() {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::Deadlock,
            "artifacts are read and written by blocking code through `run_apart` only",
        )),
        Err(_) => Ok(()),
    }
}
