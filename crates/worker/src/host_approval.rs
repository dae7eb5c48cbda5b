//! Asks the user before a sandbox reaches a host that its policy does not allow, for jobs that want that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::approval::{Approval, Decision, Wish};
use bellglass_protocol::event::EventBody;
use bellglass_sandbox::egress::HostAsker;
use bellglass_store::StoreError;
use tokio::sync::OnceCell;

use crate::job_log::JobLog;

/// How long a connection waits for the user's word. Without one it is refused.
const PATIENCE: Duration = Duration::from_secs(600);

/// Hosts that a job may ask for. A sandbox makes up as many as it likes.
const MOST_ASKED: usize = 100;

/// How often a change is looked for that was not heard of.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct HostApprovals {
    log: JobLog,
    /// What was decided, or is about to be, by host and port.
    decisions: Mutex<HashMap<String, Arc<OnceCell<Decision>>>>,
}

impl HostApprovals {
    pub(crate) fn new(log: JobLog) -> Arc<Self> {
        Arc::new(Self { log, decisions: Mutex::default() })
    }

    async fn ask(&self, place: &str) -> Result<Decision, StoreError> {
        let mut changes = self.log.store.changes();
        let mut after = self.log.store.end_of_log(self.log.job).await?.seq;
        let id = format!("host-{after}");
        let approval = Approval { id: id.clone(), wish: Wish::Host(place.to_owned()) };
        self.log.append(vec![EventBody::ApprovalRequested { approval }]).await?;
        let decided = async {
            loop {
                let page = self.log.store.events_after(self.log.job, after, 200).await?;
                for sealed in &page {
                    after = sealed.event.seq;
                    match &sealed.event.body {
                        EventBody::ApprovalDecided { id: about, decision, .. } if *about == id => {
                            return Ok(*decision);
                        }
                        _ => {}
                    }
                }
                if page.is_empty() {
                    let _ = tokio::time::timeout(LOOK_AGAIN, changes.recv()).await;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, decided).await {
            Ok(decided) => decided,
            Err(_) => {
                let (decision, by) = (Decision::Refuse, "nobody".to_owned());
                let words = Some("there was no answer in time".to_owned());
                self.log
                    .append(vec![EventBody::ApprovalDecided { id, decision, by, words }])
                    .await?;
                Ok(decision)
            }
        }
    }
}

#[async_trait]
impl HostAsker for HostApprovals {
    async fn may_reach(&self, host: &str, port: u16) -> bool {
        let place: String = format!("{host}:{port}").chars().take(300).collect();
        let cell = {
            let mut decisions =
                self.decisions.lock().expect("no code panics while it holds this lock");
            if decisions.len() >= MOST_ASKED && !decisions.contains_key(&place) {
                return false;
            }
            decisions.entry(place.clone()).or_default().clone()
        };
        // Connections to the same host wait for the same word.
        let decided = cell.get_or_init(async || {
            self.ask(&place).await.unwrap_or_else(|error| {
                tracing::warn!(job = %self.log.job, %error, "the user cannot be asked for a host");
                Decision::Refuse
            })
        });
        *decided.await == Decision::Allow
    }
}
