//! Asks the user before a sandbox reaches a host that its policy does not allow, for jobs that want that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::approval::{Approval, Decision, Wish};
use bellglass_protocol::event::EventBody;
use bellglass_sandbox::egress::HostAsker;
use bellglass_store::StoreError;
use sha2::{Digest as _, Sha256};
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

    /// Asks once for each place, also when another worker asked and this one goes on.
    async fn ask(&self, place: &str) -> Result<Decision, StoreError> {
        let mut changes = self.log.store.changes();
        let mut story = Story::of(place);
        let mut after = self.read_on(&mut story, 0).await?;
        if story.stands == Stands::Unasked {
            let wish = Wish::Host(place.to_owned());
            let approval = Approval { id: story.id.clone(), wish };
            self.log.append(vec![EventBody::ApprovalRequested { approval }]).await?;
        }
        let decided = async {
            loop {
                after = self.read_on(&mut story, after).await?;
                if let Stands::Decided(decision) = story.stands {
                    return Ok(decision);
                }
                let ours = async {
                    while changes.recv().await.is_ok_and(|change| change.job != self.log.job) {}
                };
                let _ = tokio::time::timeout(LOOK_AGAIN, ours).await;
            }
        };
        match tokio::time::timeout(PATIENCE, decided).await {
            Ok(decided) => decided,
            Err(_) => {
                let (id, decision, by) = (story.id, Decision::Refuse, "nobody".to_owned());
                let words = Some("there was no answer in time".to_owned());
                self.log
                    .append(vec![EventBody::ApprovalDecided { id, decision, by, words }])
                    .await?;
                Ok(decision)
            }
        }
    }

    /// Tells the story what the log says after an event; says how far that went.
    async fn read_on(&self, story: &mut Story, mut after: u64) -> Result<u64, StoreError> {
        loop {
            let page = self.log.store.events_after(self.log.job, after, 200).await?;
            let Some(last) = page.last() else { return Ok(after) };
            after = last.event.seq;
            page.iter().for_each(|sealed| story.take_in(&sealed.event.body));
        }
    }
}

/// What the log says about the wish to reach one place.
struct Story {
    /// Made of the place alone: no two places share a word of the user's, however closely they follow
    /// each other, and whoever takes the job over finds what was said.
    id: String,
    stands: Stands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Unasked,
    Asked,
    Decided(Decision),
}

impl Story {
    fn of(place: &str) -> Self {
        let digest = Sha256::digest(place.as_bytes());
        let name: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id: format!("host-{name}"), stands: Stands::Unasked }
    }

    fn take_in(&mut self, event: &EventBody) {
        match event {
            EventBody::ApprovalRequested { approval } if approval.id == self.id => {
                self.stands = Stands::Asked;
            }
            EventBody::ApprovalDecided { id, decision, .. } if *id == self.id => {
                self.stands = Stands::Decided(*decision);
            }
            // Who waited for the word is gone with it, and so is the question.
            EventBody::SandboxLost { .. } if self.stands == Stands::Asked => {
                self.stands = Stands::Unasked;
            }
            _ => {}
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
        match cell.get_or_try_init(async || self.ask(&place).await).await {
            Ok(decided) => *decided == Decision::Allow,
            // This connection is refused; the next one asks again.
            Err(error) => {
                tracing::warn!(job = %self.log.job, %error, "the user cannot be asked for a host");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(place: &str) -> EventBody {
        let id = Story::of(place).id;
        EventBody::ApprovalRequested { approval: Approval { id, wish: Wish::Host(place.into()) } }
    }

    fn decided(place: &str, decision: Decision) -> EventBody {
        let id = Story::of(place).id;
        EventBody::ApprovalDecided { id, decision, by: "ada".into(), words: None }
    }

    fn lost() -> EventBody {
        EventBody::SandboxLost { reason: "a power cut".into(), kept: None }
    }

    #[test]
    fn a_word_about_one_place_says_nothing_about_another() {
        let log = [
            asked("good.example:443"),
            asked("evil.example:443"),
            decided("good.example:443", Decision::Allow),
        ];
        for (place, stands) in [
            ("good.example:443", Stands::Decided(Decision::Allow)),
            ("evil.example:443", Stands::Asked),
            ("good.example:80", Stands::Unasked),
        ] {
            let mut story = Story::of(place);
            log.iter().for_each(|event| story.take_in(event));
            assert_eq!(story.stands, stands, "{place}");
        }
    }

    #[test]
    fn a_question_goes_with_its_sandbox_and_an_answer_stays() {
        for (log, stands) in [
            (vec![asked("a:1"), lost()], Stands::Unasked),
            (vec![asked("a:1"), lost(), asked("a:1")], Stands::Asked),
            (
                vec![asked("a:1"), decided("a:1", Decision::Refuse), lost()],
                Stands::Decided(Decision::Refuse),
            ),
        ] {
            let mut story = Story::of("a:1");
            log.iter().for_each(|event| story.take_in(event));
            assert_eq!(story.stands, stands, "{log:?}");
        }
    }
}
