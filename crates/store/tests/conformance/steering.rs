//! What wishes other than to end do to a job, wherever the job stands.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{Steering, Store, StoreError};

use crate::support::{finished, steps_job, task_job, verified_kinds, worker};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn a_paused_job_stays_paused_in_other_hands(store: Arc<dyn Store>) {
    let job = store.schedule(task_job("x")).await.unwrap();
    store.claim_next_job(&worker("a"), LEASE).await.unwrap().unwrap();
    let steer = |wish| store.steer(job, wish, "me");
    for _ in 0..2 {
        assert_eq!(steer(Steering::Pause).await.unwrap(), JobStatus::Paused);
    }
    assert!(store.claim_next_job(&worker("b"), LEASE).await.unwrap().is_none());
    store.release_leases(&worker("a")).await.unwrap();
    let taken = store.claim_next_job(&worker("b"), LEASE).await.unwrap().unwrap();
    assert_eq!((taken.view.job_id, taken.view.status), (job, JobStatus::Paused));
    let message = Steering::Message("hurry".into());
    assert_eq!(steer(message).await.unwrap(), JobStatus::Paused);
    for _ in 0..2 {
        assert_eq!(steer(Steering::Resume).await.unwrap(), JobStatus::Running);
    }
    let kinds = ["scheduled", "claimed", "paused", "claimed", "message.received", "resumed"];
    assert_eq!(verified_kinds(&*store, job).await, kinds);
    store.append(job, taken.generation, vec![finished(EndStatus::Completed)]).await.unwrap();
}

pub(crate) async fn wishes_that_cannot_be_are_refused(store: Arc<dyn Store>) {
    let nowhere = store.steer(JobId::generate(), Steering::Pause, "me").await;
    assert!(matches!(nowhere, Err(StoreError::NotFound(_))), "{nowhere:?}");
    let job = store.schedule(steps_job("true")).await.unwrap();
    let early = store.steer(job, Steering::Pause, "me").await;
    assert!(matches!(early, Err(StoreError::NotStarted)), "{early:?}");
    store.request_cancel(job, "me").await.unwrap();
    for wish in [Steering::Pause, Steering::Resume, Steering::Message("x".into())] {
        let late = store.steer(job, wish, "me").await;
        assert!(matches!(late, Err(StoreError::JobEnded)), "{late:?}");
    }
}
