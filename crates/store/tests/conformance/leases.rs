//! How long a worker holds a job, and what happens to it afterwards. A lease of no length has run
//! out at once, so no test waits.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::Generation;
use bellglass_store::{Store, StoreError};

use crate::support::{finished, output, steps_job, verified_kinds, worker};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn a_lease_keeps_others_away(store: Arc<dyn Store>) {
    store.schedule(steps_job("true")).await.unwrap();
    store.claim_next_job(&worker("a"), LEASE).await.unwrap().unwrap();
    assert!(store.claim_next_job(&worker("b"), LEASE).await.unwrap().is_none());
    assert!(store.claim_next_job(&worker("a"), LEASE).await.unwrap().is_none());
}

pub(crate) async fn a_job_whose_lease_ran_out_is_taken_over(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    store.claim_next_job(&worker("a"), Duration::ZERO).await.unwrap().unwrap();
    let taken = store.claim_next_job(&worker("b"), LEASE).await.unwrap().unwrap();
    assert_eq!(taken.view.job_id, job);
    assert_eq!(taken.generation, Generation(2));
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "claimed", "claimed"]);
}

pub(crate) async fn a_predecessor_is_fenced_off(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let first = store.claim_next_job(&worker("a"), Duration::ZERO).await.unwrap().unwrap();
    // Its lease has run out, but as long as nobody else has the job it may go on.
    store.append(job, first.generation, vec![output("1")]).await.unwrap();

    let second = store.claim_next_job(&worker("b"), LEASE).await.unwrap().unwrap();
    let late = store.append(job, first.generation, vec![output("2")]).await;
    assert!(matches!(late, Err(StoreError::StaleGeneration)), "{late:?}");
    let future = store.append(job, Generation(3), vec![output("2")]).await;
    assert!(matches!(future, Err(StoreError::StaleGeneration)), "{future:?}");
    store.append(job, second.generation, vec![finished(EndStatus::Completed)]).await.unwrap();
    assert_eq!(
        verified_kinds(&*store, job).await,
        ["scheduled", "claimed", "step.output", "claimed", "finished"]
    );
}

pub(crate) async fn renewing_reports_what_was_lost(store: Arc<dyn Store>) {
    let kept = store.schedule(steps_job("kept")).await.unwrap();
    let taken = store.schedule(steps_job("taken")).await.unwrap();
    let ended = store.schedule(steps_job("ended")).await.unwrap();
    let me = worker("a");
    for (job, lease) in [(kept, LEASE), (taken, LEASE), (ended, LEASE)] {
        let claimed = store.claim_next_job(&me, lease).await.unwrap().unwrap();
        assert_eq!(claimed.view.job_id, job);
    }
    let one = Generation(1);
    store.renew_leases(&me, &[(taken, one)], Duration::ZERO).await.unwrap();
    store.claim_next_job(&worker("b"), LEASE).await.unwrap().unwrap();
    store.append(ended, one, vec![finished(EndStatus::Completed)]).await.unwrap();

    let held = [(kept, one), (taken, one), (ended, one)];
    assert_eq!(store.renew_leases(&me, &held, LEASE).await.unwrap(), [taken, ended]);
    let another = store.renew_leases(&worker("c"), &[(kept, one)], LEASE).await.unwrap();
    assert_eq!(another, [kept]);
    assert!(store.renew_leases(&me, &[], LEASE).await.unwrap().is_empty());
}

pub(crate) async fn a_renewed_lease_holds(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("a"), Duration::ZERO).await.unwrap().unwrap();
    // Run out, but taken by nobody: it can still be renewed.
    let lost = store.renew_leases(&worker("a"), &[(job, claimed.generation)], LEASE).await.unwrap();
    assert!(lost.is_empty());
    assert!(store.claim_next_job(&worker("b"), LEASE).await.unwrap().is_none());
}

pub(crate) async fn released_leases_can_be_claimed_at_once(store: Arc<dyn Store>) {
    let mine = store.schedule(steps_job("mine")).await.unwrap();
    store.claim_next_job(&worker("a"), LEASE).await.unwrap().unwrap();
    store.schedule(steps_job("theirs")).await.unwrap();
    store.claim_next_job(&worker("b"), LEASE).await.unwrap().unwrap();

    store.release_leases(&worker("a")).await.unwrap();
    let again = store.claim_next_job(&worker("a"), LEASE).await.unwrap().unwrap();
    assert_eq!(again.view.job_id, mine);
    assert_eq!(again.generation, Generation(2));
    assert!(store.claim_next_job(&worker("a"), LEASE).await.unwrap().is_none());
}

pub(crate) async fn a_worker_that_starts_again_goes_on_with_what_it_held(store: Arc<dyn Store>) {
    let (a, b) = (worker("a"), worker("b"));
    let mut held = Vec::new();
    for _ in 0..3 {
        let job = store.schedule(steps_job("true")).await.unwrap();
        store.claim_next_job(&a, LEASE).await.unwrap().unwrap();
        held.push(job);
    }
    let own = store.claim_own(&a, held[0], LEASE).await.unwrap().unwrap();
    assert_eq!((own.view.job_id, own.generation), (held[0], Generation(2)));
    assert_eq!(own.view.generation, Generation(2));
    // Whoever held it before under the same name is fenced off too.
    let late = store.append(held[0], Generation(1), vec![output("x")]).await.unwrap_err();
    assert!(matches!(late, StoreError::StaleGeneration), "{late}");
    assert!(store.claim_own(&b, held[1], LEASE).await.unwrap().is_none());

    store.release_leases_but(&a, &held[..1]).await.unwrap();
    let taken = store.claim_next_job(&b, LEASE).await.unwrap().unwrap();
    assert_eq!(taken.view.job_id, held[1]);
    assert!(store.claim_own(&a, held[1], LEASE).await.unwrap().is_none(), "it is another's");
    // A lease that ran out is no reason to let go of what nobody has taken.
    let own = store.claim_own(&a, held[2], LEASE).await.unwrap().unwrap();
    assert!(store.claim_next_job(&b, LEASE).await.unwrap().is_none());
    let end = vec![finished(EndStatus::Completed)];
    store.append(held[2], own.generation, end).await.unwrap();
    assert!(store.claim_own(&a, held[2], LEASE).await.unwrap().is_none(), "it is over");
}

pub(crate) async fn a_worker_knows_what_it_holds_and_others_where_it_is(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let (a, b) = (worker("a"), worker("b"));
    store.announce_worker(&a, Some("10.0.0.1:1")).await.unwrap();
    store.announce_worker(&b, Some("10.0.0.2:2")).await.unwrap();
    assert_eq!(store.address_of_holder(job).await.unwrap(), None);
    store.claim_next_job(&a, Duration::ZERO).await.unwrap().unwrap();
    // Also when its lease has run out: it may come back.
    assert_eq!(store.held_by(&a).await.unwrap(), [job]);
    assert_eq!(store.address_of_holder(job).await.unwrap().as_deref(), Some("10.0.0.1:1"));

    let taken = store.claim_next_job(&b, LEASE).await.unwrap().unwrap();
    assert_eq!(store.held_by(&a).await.unwrap(), []);
    assert_eq!(store.held_by(&b).await.unwrap(), [job]);
    assert_eq!(store.address_of_holder(job).await.unwrap().as_deref(), Some("10.0.0.2:2"));
    store.announce_worker(&b, None).await.unwrap();
    assert_eq!(store.address_of_holder(job).await.unwrap(), None);
    store.append(job, taken.generation, vec![finished(EndStatus::Completed)]).await.unwrap();
    assert_eq!(store.held_by(&b).await.unwrap(), []);
}
