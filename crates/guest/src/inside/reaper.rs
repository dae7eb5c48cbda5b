//! Takes the dead away. The first process of a sandbox inherits every orphan, so it must wait for
//! all; anywhere else (in tests) only for the supervisors that it started itself.

use std::io;

use rustix::process::{Pid, WaitOptions, wait, waitpid};
use tokio::signal::unix::{SignalKind, signal};

/// Starts to reap everything, if this is the first process.
pub(super) fn start() -> io::Result<()> {
    if !rustix::process::getpid().is_init() {
        return Ok(());
    }
    let mut deaths = signal(SignalKind::child())?;
    tokio::spawn(async move {
        loop {
            // Deaths before the handler was there, or several at one signal, are all taken.
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if deaths.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(())
}

/// Reaps a supervisor that has closed its pipe and so is about to exit.
pub(super) async fn reap_supervisor(pid: Pid) {
    if !rustix::process::getpid().is_init() {
        let _ = tokio::task::spawn_blocking(move || waitpid(Some(pid), WaitOptions::empty())).await;
    }
}
