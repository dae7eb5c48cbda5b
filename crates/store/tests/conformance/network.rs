//! What a change of the network policy does to a job, wherever the job stands.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{Store, StoreError};

use crate::support::{finished, steps_job, verified_kinds, worker};

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn a_change_is_told_and_outlives_its_holder(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let open = NetworkPolicy::Open;
    let status = store.change_network(job, open.clone(), "me").await.unwrap();
    assert_eq!(status, JobStatus::Scheduled);
    let claimed = store.claim_next_job(&worker("gone"), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(claimed.view.network, open);
    let mut changes = store.changes();
    let registries = NetworkPolicy::Registries;
    let status = store.change_network(job, registries.clone(), "me").await.unwrap();
    assert_eq!(status, JobStatus::Running);
    let change = changes.recv().await.unwrap();
    assert!(change.job == job && change.network_changed);
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert_eq!(claimed.view.network, registries);
    assert_eq!(claimed.view.spec.network, NetworkPolicy::None, "what was asked for stays");
    assert!(!changes.recv().await.unwrap().network_changed);
    let kinds = ["scheduled", "network.changed", "claimed", "network.changed", "claimed"];
    assert_eq!(verified_kinds(&*store, job).await, kinds);
}

pub(crate) async fn only_a_living_job_is_given_another_policy(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    // Nor does its holder do that in its own name.
    let own = EventBody::NetworkChanged { network: NetworkPolicy::Open, by: "w".into() };
    let refused = store.append(job, claimed.generation, vec![own]).await;
    assert!(
        matches!(&refused, Err(StoreError::ReservedEvent(kind)) if kind == "network.changed"),
        "{refused:?}"
    );
    store.append(job, claimed.generation, vec![finished(EndStatus::Completed)]).await.unwrap();
    let refused = store.change_network(job, NetworkPolicy::Open, "me").await;
    assert!(matches!(refused, Err(StoreError::JobEnded)), "{refused:?}");
    let nowhere = JobId::generate();
    let refused = store.change_network(nowhere, NetworkPolicy::Open, "me").await;
    assert!(matches!(refused, Err(StoreError::NotFound(job)) if job == nowhere));
}
