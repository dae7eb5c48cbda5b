//! Signals that ask the program to end: Ctrl-C, SIGTERM, and SIGHUP when its terminal goes away.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// From its making on, none of these signals ends the process by itself.
pub(super) struct Interruptions {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interruptions {
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}
