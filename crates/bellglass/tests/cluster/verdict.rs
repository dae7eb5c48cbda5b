//! What the logs must show in the end, whatever happened: one end for every job, every step once, and
//! chains that hold.

use std::collections::HashSet;

use bellglass_protocol::chain::Verifier;
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{JobFilter, Store};

use crate::deployment::Deployment;

/// Judges every job that the store knows; `accepted` must be among them. Says how many there are of each
/// status.
pub(crate) async fn judge(deployment: &Deployment, accepted: &[String]) -> Vec<(JobStatus, u64)> {
    let store = deployment.store().await;
    let filter = JobFilter { limit: u32::MAX - 1, ..JobFilter::default() };
    let jobs = store.jobs(&filter).await.unwrap().jobs;
    let known: HashSet<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    for job in accepted {
        assert!(known.contains(job), "the accepted job {job} is lost");
    }
    for job in jobs {
        judge_job(&store, job.id).await;
    }
    store.count_by_status().await.unwrap()
}

/// Judges one job, whatever became of the others.
pub(crate) async fn judge_job(store: &dyn Store, job: JobId) {
    let outline = store.outline(job).await.unwrap();
    let status = outline.status;
    assert!(status.is_terminal(), "job {job} is still {}", status.as_str());
    let events = verified(store, job).await;
    ended_once(&events);
    every_step_once(&events, status, outline.steps_total);
}

/// The whole log, whose chain holds.
async fn verified(store: &dyn Store, job: JobId) -> Vec<Event> {
    let mut verifier = Verifier::new(Some(job));
    let mut events = Vec::new();
    loop {
        let page = store.lines_after(job, events.len() as u64, 1000).await.unwrap();
        if page.is_empty() {
            break;
        }
        for line in page {
            events.push(verifier.line(&line).unwrap_or_else(|error| panic!("{job}: {error}")));
        }
    }
    let (lines, _) = verifier.finish().unwrap();
    assert_eq!(lines, store.end_of_log(job).await.unwrap().seq, "{job}");
    events
}

fn ended_once(events: &[Event]) {
    let is_end = |event: &&Event| matches!(event.body, EventBody::Finished { .. });
    assert_eq!(events.iter().filter(is_end).count(), 1, "{events:#?}");
    assert!(events.last().is_some_and(|last| is_end(&last)), "something came after the end");
}

/// Every step was begun at most once and ended at most once, but for those that a lost sandbox made void.
/// What was begun and not ended was interrupted by that loss, which is written down, or by the end of the
/// job.
fn every_step_once(events: &[Event], status: JobStatus, total: Option<u32>) {
    let (mut begun, mut ended) = (HashSet::new(), HashSet::new());
    let job = events[0].job;
    for event in events {
        match &event.body {
            EventBody::SandboxLost { kept, .. } => {
                let counts = |n: &u32| kept.is_some_and(|kept| *n <= kept);
                begun.retain(counts);
                ended.retain(counts);
            }
            EventBody::StepStarted { n, .. } => {
                assert!(begun.insert(*n), "step {n} of {job} was begun twice in one sandbox");
            }
            EventBody::StepFinished { n, .. } => {
                assert!(begun.contains(n), "step {n} of {job} ended before it began");
                assert!(ended.insert(*n), "step {n} of {job} ended twice");
            }
            _ => {}
        }
    }
    if status == JobStatus::Completed {
        let all: HashSet<u32> = (1..=total.unwrap_or_default()).collect();
        assert_eq!(ended, all, "{job}");
    } else {
        assert!(begun.len() - ended.len() <= 1, "{job} has steps without an end");
    }
}
