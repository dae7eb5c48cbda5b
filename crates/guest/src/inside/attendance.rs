//! Whether a worker is there and awake. A guest that was left alone for too long has no purpose any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A worker that holds its connection but asks for nothing stands still: its process is stopped, or
/// its machine is cut off. It gets at least so long, however short others may be away.
const STANDS_STILL: Duration = Duration::from_secs(20);

/// Counts connections, and remembers when something was heard on one.
#[derive(Clone)]
pub(super) struct Attendance(Arc<watch::Sender<State>>);

#[derive(Clone, Copy)]
struct State {
    connections: usize,
    /// When a worker came, asked or went, or the guest began.
    heard_last: Instant,
}

impl State {
    /// When a worker was missed for so long, if nothing is heard any more.
    fn missed_at(self, time: Duration) -> Option<Instant> {
        let time = if self.connections == 0 { time } else { time.max(STANDS_STILL) };
        self.heard_last.checked_add(time)
    }
}

/// A connection, for as long as this lives.
pub(super) struct Attending(Attendance);

impl Attendance {
    pub(super) fn new() -> Self {
        let state = State { connections: 0, heard_last: Instant::now() };
        Self(Arc::new(watch::Sender::new(state)))
    }

    pub(super) fn begin(&self) -> Attending {
        self.heard(|state| state.connections += 1);
        Attending(self.clone())
    }

    /// Returns once no worker was there and awake for so long; never, if no time is given.
    pub(super) async fn missed_for(&self, time: Option<Duration>) {
        let Some(time) = time else { return std::future::pending().await };
        let mut changes = self.0.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            tokio::select! {
                () = at(state.missed_at(time)) => return,
                // The sender lives as long as `self`, so this waits for a change and cannot fail.
                _ = changes.changed() => {}
            }
        }
    }

    fn heard(&self, change: impl FnOnce(&mut State)) {
        self.0.send_modify(|state| {
            change(state);
            state.heard_last = Instant::now();
        });
    }
}

impl Attending {
    /// The worker asked for something, so it is awake.
    pub(super) fn heard(&self) {
        self.0.heard(|_| {});
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.heard(|state| state.connections -= 1);
    }
}

/// A time that is too far away to be told never comes.
async fn at(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stands_still_is_missed_too() {
        let now = Instant::now();
        let missed = |connections, seconds| {
            let at = State { connections, heard_last: now }.missed_at(Duration::from_secs(seconds));
            at.unwrap().duration_since(now)
        };
        assert_eq!(missed(0, 2), Duration::from_secs(2));
        assert_eq!(missed(1, 2), STANDS_STILL);
        assert_eq!(missed(1, 600), Duration::from_secs(600));
        let never = State { connections: 0, heard_last: now }.missed_at(Duration::MAX);
        assert_eq!(never, None);
    }

    #[tokio::test]
    async fn whatever_is_heard_counts() {
        let attendance = Attendance::new();
        let began = attendance.0.borrow().heard_last;
        let worker = attendance.begin();
        worker.heard();
        assert!(attendance.0.borrow().heard_last >= began);
        drop(worker);
        assert_eq!(attendance.0.borrow().connections, 0);
        attendance.missed_for(Some(Duration::from_millis(1))).await;
    }
}
