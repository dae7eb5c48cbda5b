//! Who gets which job.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::id::Generation;
use bellglass_protocol::view::JobStatus;
use bellglass_store::Store;

use crate::support::{steps_job, verified_kinds, with_priority, worker};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn higher_priority_first_then_older(store: Arc<dyn Store>) {
    let mut scheduled = Vec::new();
    for priority in [0, 5, 0, 5, -1, 100] {
        scheduled.push(store.schedule(with_priority(priority)).await.unwrap());
    }
    let mut claimed = Vec::new();
    while let Some(job) = store.claim_next_job(&worker("w"), LEASE).await.unwrap() {
        claimed.push(job.view.job_id);
    }
    let expected = [5, 1, 3, 0, 2, 4].map(|n| scheduled[n]);
    assert_eq!(claimed, expected);
}

pub(crate) async fn nothing_to_claim_is_no_error(store: Arc<dyn Store>) {
    assert!(store.claim_next_job(&worker("w"), LEASE).await.unwrap().is_none());
}

pub(crate) async fn no_job_is_claimed_twice(store: Arc<dyn Store>) {
    let mut scheduled = HashSet::new();
    for _ in 0..200 {
        scheduled.insert(store.schedule(steps_job("true")).await.unwrap());
    }
    let workers: Vec<_> = (0..16)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let me = worker(&format!("w{n}"));
                let mut mine = Vec::new();
                while let Some(job) = store.claim_next_job(&me, LEASE).await.unwrap() {
                    assert_eq!(job.generation, Generation(1));
                    mine.push(job.view.job_id);
                }
                mine
            })
        })
        .collect();
    let mut claimed = Vec::new();
    for worker in workers {
        claimed.extend(worker.await.unwrap());
    }
    assert_eq!(claimed.len(), 200);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>(), scheduled);
}

pub(crate) async fn a_claim_shows_the_job_with_the_claim_in_it(store: Arc<dyn Store>) {
    let spec = steps_job("echo hello");
    let job = store.schedule(spec.clone()).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert_eq!(claimed.generation, Generation(1));
    assert_eq!(claimed.view.job_id, job);
    assert_eq!(claimed.view.spec, spec);
    assert_eq!(claimed.view.status, JobStatus::Running);
    assert_eq!(claimed.view.generation, Generation(1));
    assert!(claimed.view.started_at.is_some());
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "claimed"]);
}
