//! Whether a worker is there. A guest that was left alone for too long has no purpose any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Counts connections.
#[derive(Clone)]
pub(super) struct Attendance(Arc<watch::Sender<State>>);

#[derive(Clone, Copy)]
struct State {
    connections: usize,
    /// When the last connection ended, or the guest began.
    alone_since: Instant,
}

/// A connection, for as long as this lives.
pub(super) struct Attending(Attendance);

impl Attendance {
    pub(super) fn new() -> Self {
        let state = State { connections: 0, alone_since: Instant::now() };
        Self(Arc::new(watch::Sender::new(state)))
    }

    pub(super) fn begin(&self) -> Attending {
        self.0.send_modify(|state| state.connections += 1);
        Attending(self.clone())
    }

    /// Returns once there was no connection for so long; never, if no time is given.
    pub(super) async fn missed_for(&self, time: Option<Duration>) {
        let Some(time) = time else { return std::future::pending().await };
        let mut changes = self.0.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            let end = state.alone_since.checked_add(time);
            tokio::select! {
                () = at(end), if state.connections == 0 => return,
                // The sender lives as long as `self`, so this waits for a change and cannot fail.
                _ = changes.changed() => {}
            }
        }
    }
}

/// A time that is too far away to be told never comes.
async fn at(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.connections -= 1;
            state.alone_since = Instant::now();
        });
    }
}
