//! A job's way out of its sandbox, if its policy gives it one, and the record of what used it.

use std::sync::Arc;

use bellglass_protocol::network::NetworkPolicy;
use bellglass_sandbox::egress::Egress;

use crate::NetworkSource;
use crate::connection_log::NetworkJournal;
use crate::job_log::JobLog;

/// Nothing for a job that reaches nothing: its sandbox then has no proxy at all.
pub(crate) struct WayOut(Option<(Arc<Egress>, NetworkJournal)>);

impl WayOut {
    pub(crate) async fn open(
        network: &dyn NetworkSource,
        log: &JobLog,
        policy: &NetworkPolicy,
    ) -> Self {
        if *policy == NetworkPolicy::None {
            return Self::none();
        }
        let journal = NetworkJournal::start(log.clone());
        let settings = network.settings().await;
        let egress = Egress::new(policy.clone(), settings, journal.gathering());
        Self(Some((Arc::new(egress), journal)))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn egress(&self) -> Option<Arc<Egress>> {
        self.0.as_ref().map(|(egress, _)| egress.clone())
    }

    /// Records the last connections. The sandbox must be gone.
    pub(crate) async fn close(self) {
        if let Some((_, journal)) = self.0 {
            journal.finish().await;
        }
    }
}
