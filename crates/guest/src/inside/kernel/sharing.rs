//! What others than calls may do with a kernel: a person's notebook attaches to the one that the job's
//! calls use, also while a call runs in it.

use std::sync::{Arc, Mutex, PoisonError};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Language;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use super::connection::{Identity, Kernel};
use super::{INTERRUPTING, Restart, begin};
use crate::inside::Guest;
use crate::inside::failure::failure;
use crate::inside::run_process::kill_supervised;

/// Where the running kernel is, for those who do not wait for their turn.
#[derive(Default)]
pub(super) struct Shared(Mutex<Option<Known>>);

#[derive(Clone)]
struct Known {
    supervisor: libc::pid_t,
    connection: Value,
    ended: watch::Receiver<Option<i32>>,
}

impl Shared {
    pub(super) fn tell(&self, kernel: &Kernel, identity: &Identity) {
        let connection = identity.connection();
        let known =
            Known { supervisor: kernel.supervisor, connection, ended: kernel.ended.clone() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// The kernel that runs now, if one does.
    fn running(&self) -> Option<Known> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.filter(|known| known.ended.borrow().is_none())
    }
}

/// How to connect to the kernel of a language, which is started if none runs.
pub(in crate::inside) async fn attach(
    guest: &Arc<Guest>,
    language: Language,
) -> Result<Value, ToolError> {
    let shared = &guest.kernels.seat(language).shared;
    if let Some(known) = shared.running() {
        return Ok(known.connection);
    }
    let begun = begin(guest, language, Restart::No).await;
    begun.unwrap_or_else(|_| Err(failure("kernel_not_started", "starting it broke")))?;
    let known = shared.running();
    let known = known.ok_or_else(|| failure("kernel_not_started", "the kernel has ended"))?;
    Ok(known.connection)
}

/// Ends the kernel of a language, whatever runs in it, and starts another in its place.
pub(in crate::inside) async fn begin_anew(
    guest: &Arc<Guest>,
    language: Language,
) -> Result<Value, ToolError> {
    if let Some(mut known) = guest.kernels.seat(language).shared.running() {
        kill_supervised(guest, known.supervisor).await;
        let _ = timeout(INTERRUPTING, known.ended.wait_for(Option::is_some)).await;
    }
    attach(guest, language).await
}
