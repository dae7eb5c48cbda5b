//! The sandboxes that run here now, by job: how the HTTP side reaches a running workspace.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use bellglass_protocol::id::JobId;
use bellglass_sandbox::client::GuestClient;
use tokio::sync::Semaphore;

/// A register of running sandboxes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LiveSandboxes(Arc<RwLock<HashMap<JobId, LiveSandbox>>>);

/// A sandbox that runs here, and how many files may be on their way from and to it.
///
/// Each takes a thread of the guest and a stream of the wire, which the job itself needs too. The
/// ways are counted apart, so that readers who do not read leave room for writers.
#[derive(Clone, Debug)]
pub struct LiveSandbox {
    pub guest: GuestClient,
    pub reads: Arc<Semaphore>,
    pub writes: Arc<Semaphore>,
}

/// Files on their way at once, each way.
const MOST_TRANSFERS: usize = 16;

impl LiveSandboxes {
    /// The sandbox of a job, if it runs here.
    pub fn get(&self, job: JobId) -> Option<LiveSandbox> {
        self.0.read().expect("no code panics while it holds this lock").get(&job).cloned()
    }

    pub(crate) fn enter(&self, job: JobId, guest: GuestClient) -> Presence {
        let room = || Arc::new(Semaphore::new(MOST_TRANSFERS));
        let sandbox = LiveSandbox { guest, reads: room(), writes: room() };
        self.0.write().expect("no code panics while it holds this lock").insert(job, sandbox);
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
