//! What a wish to end does to a job, wherever the job stands.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{Store, StoreError};

use crate::support::{finished, steps_job, verified_kinds, worker};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn a_waiting_job_ends_at_once(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Cancelled);
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "cancel.requested", "finished"]);
    let view = store.job(job).await.unwrap();
    assert_eq!(view.status, JobStatus::Cancelled);
    assert!(view.cancel_requested && view.failed_steps.is_empty() && view.error.is_none());
    assert!(store.claim_next_job(&worker("w"), LEASE).await.unwrap().is_none());
}

pub(crate) async fn a_running_job_gets_one_event(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    for _ in 0..2 {
        assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Running);
    }
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "claimed", "cancel.requested"]);
    let end = vec![finished(EndStatus::Cancelled)];
    store.append(job, claimed.generation, end).await.unwrap();
    assert_eq!(store.job(job).await.unwrap().status, JobStatus::Cancelled);
}

pub(crate) async fn an_ended_job_stays_as_it_is(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let end = vec![finished(EndStatus::Completed)];
    store.append(job, claimed.generation, end).await.unwrap();
    assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Completed);
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "claimed", "finished"]);
}

pub(crate) async fn a_cancelled_job_without_holder_is_still_claimed(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    store.claim_next_job(&worker("gone"), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Running);
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, job);
    assert!(claimed.view.cancel_requested);
}

pub(crate) async fn an_unknown_job_is_not_found(store: Arc<dyn Store>) {
    let nowhere = JobId::generate();
    let refused = store.request_cancel(nowhere, "me").await;
    assert!(matches!(refused, Err(StoreError::NotFound(job)) if job == nowhere));
}
