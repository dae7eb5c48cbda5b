//! The connections that are open now, so that those which a new policy forbids can be cut.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub(super) struct LiveConnections(Mutex<Register>);

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

    fn lock(&self) -> std::sync::MutexGuard<'_, Register> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}
