//! The sandboxes that run here now, by job: how the HTTP side reaches a running workspace.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use bellglass_protocol::id::JobId;
use bellglass_sandbox::client::GuestClient;

/// A register of running sandboxes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LiveSandboxes(Arc<RwLock<HashMap<JobId, GuestClient>>>);

impl LiveSandboxes {
    /// The guest of a job whose sandbox runs here.
    pub fn guest(&self, job: JobId) -> Option<GuestClient> {
        self.0.read().expect("no code panics while it holds this lock").get(&job).cloned()
    }

    pub(crate) fn enter(&self, job: JobId, guest: GuestClient) -> Presence {
        self.0.write().expect("no code panics while it holds this lock").insert(job, guest);
        metrics::gauge!("bellglass_sandboxes_running").increment(1.0);
        Presence { register: self.clone(), job }
    }
}

/// A sandbox's entry in the register; removes it when dropped.
pub(crate) struct Presence {
    register: LiveSandboxes,
    job: JobId,
}

impl Drop for Presence {
    fn drop(&mut self) {
        metrics::gauge!("bellglass_sandboxes_running").decrement(1.0);
        if let Ok(mut register) = self.register.0.write() {
            register.remove(&self.job);
        }
    }
}
