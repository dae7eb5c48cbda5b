//! Which calls there are: a call happens at most once, whatever happens to connections.
//!
//! A call is known by its id from its first request until the worker says that its result is safe.
//! A second request with the same id joins it. An id that was forgotten is never run again.

use std::collections::HashSet;
use std::collections::hash_map::{DefaultHasher, Entry, HashMap};
use std::hash::Hasher;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bellglass_protocol::id::CallId;
use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::CallResult;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::answer::Given;
use super::failure::failure;
use super::output::Output;

/// One call, running or at its end.
pub(super) struct Call {
    pub(super) output: Output,
    /// Asks whoever runs the call to end it.
    pub(super) cancel: CancellationToken,
    result: watch::Sender<Option<CallResult>>,
    /// Tells another call apart that comes with this call's id by mistake.
    fingerprint: u64,
    /// What it gave beside text.
    attachments: OnceLock<Vec<Given>>,
}

impl Call {
    fn new(fingerprint: u64) -> Self {
        Self {
            output: Output::new(),
            cancel: CancellationToken::new(),
            result: watch::Sender::new(None),
            fingerprint,
            attachments: OnceLock::new(),
        }
    }

    /// Keeps what the call gave beside text until it is forgotten.
    pub(super) fn keep(&self, given: Vec<Given>) {
        let _ = self.attachments.set(given);
    }

    pub(super) fn finish(&self, result: CallResult) {
        self.result.send_replace(Some(result));
    }

    /// The result, once there is one. It then never changes.
    pub(super) fn result(&self) -> watch::Receiver<Option<CallResult>> {
        self.result.subscribe()
    }
}

/// What became of a request for a call.
pub(super) enum Admission {
    /// The id is new: the caller must run the call.
    Started(Arc<Call>),
    Joined(Arc<Call>),
}

#[derive(Default)]
pub(super) struct Calls {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    known: HashMap<CallId, Arc<Call>>,
    forgotten: HashSet<CallId>,
}

impl Calls {
    pub(super) fn admit(&self, id: &CallId, call: &ToolCall) -> Result<Admission, ToolError> {
        let fingerprint = fingerprint(call);
        let mut table = self.lock();
        if table.forgotten.contains(id) {
            return Err(failure(
                "call_forgotten",
                format!("the call `{}` ran, and its result was given up", id.as_str()),
            ));
        }
        match table.known.entry(id.clone()) {
            Entry::Vacant(entry) => {
                let call = entry.insert(Arc::new(Call::new(fingerprint)));
                Ok(Admission::Started(call.clone()))
            }
            Entry::Occupied(entry) if entry.get().fingerprint == fingerprint => {
                Ok(Admission::Joined(entry.get().clone()))
            }
            Entry::Occupied(_) => Err(failure(
                "call_differs",
                format!("another call already has the id `{}`", id.as_str()),
            )),
        }
    }

    /// Something beside text that a call gave.
    pub(super) fn attachment(&self, id: &CallId, index: u32) -> Result<Given, ToolError> {
        let call = self.lock().known.get(id).cloned();
        let given = call.as_ref().and_then(|call| call.attachments.get());
        given.and_then(|given| given.get(index as usize)).cloned().ok_or_else(|| {
            failure("no_attachment", format!("the call `{}` gave no such thing", id.as_str()))
        })
    }

    /// Cancels a call; one that is at its end already stays as it is.
    pub(super) fn cancel(&self, id: &CallId) -> Result<(), ToolError> {
        match self.lock().known.get(id) {
            Some(call) => {
                call.cancel.cancel();
                Ok(())
            }
            None => Err(failure("unknown_call", format!("no call has the id `{}`", id.as_str()))),
        }
    }

    pub(super) fn forget(&self, id: &CallId) -> Result<(), ToolError> {
        let mut table = self.lock();
        let running = table.known.get(id).is_some_and(|call| call.result.borrow().is_none());
        if running {
            return Err(failure(
                "call_running",
                format!("the call `{}` still runs; cancel it first", id.as_str()),
            ));
        }
        if table.known.remove(id).is_some() {
            table.forgotten.insert(id.clone());
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprint(call: &ToolCall) -> u64 {
    struct Hashing(DefaultHasher);
    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hashing = Hashing(DefaultHasher::new());
    // Hashing cannot fail, and a call is plain data.
    let _ = serde_json::to_writer(&mut hashing, call);
    hashing.0.finish()
}
