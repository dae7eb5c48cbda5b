//! The connections that are open now, so that those which a new policy forbids can be cut, and all in the end.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

#[derive(Default)]
pub(super) struct LiveConnections {
    register: Mutex<Register>,
    closing: CancellationToken,
    /// Whatever the log will still hear of.
    unrecorded: TaskTracker,
}

#[derive(Default)]
struct Register {
    next: u64,
    open: HashMap<u64, Open>,
}

struct Open {
    host: String,
    port: u16,
    cut: CancellationToken,
}

/// A connection's number in the register.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionNumber(u64);

impl LiveConnections {
    /// Enters a connection. It is to end when the token is cancelled.
    pub(super) fn enter(&self, host: &str, port: u16) -> (ConnectionNumber, CancellationToken) {
        let mut register = self.lock();
        let number = register.next;
        register.next += 1;
        let cut = CancellationToken::new();
        register.open.insert(number, Open { host: host.to_owned(), port, cut: cut.clone() });
        (ConnectionNumber(number), cut)
    }

    pub(super) fn leave(&self, number: ConnectionNumber) {
        self.lock().open.remove(&number.0);
    }

    /// Cuts every connection that may not stay.
    pub(super) fn cut_unless(&self, may_stay: impl Fn(&str, u16) -> bool) {
        for open in self.lock().open.values() {
            if !may_stay(&open.host, open.port) {
                open.cut.cancel();
            }
        }
    }

    /// To be held until the log has heard of a connection.
    pub(super) fn hold(&self) -> TaskTrackerToken {
        self.unrecorded.token()
    }

    /// Works on a connection until all must go.
    pub(super) async fn until_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.closing.run_until_cancelled(work).await
    }

    /// Has all connections go, also those that are still to come, and waits until the log has heard of them.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.unrecorded.close();
        self.unrecorded.wait().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Register> {
        self.register.lock().expect("no code panics while it holds this lock")
    }
}
