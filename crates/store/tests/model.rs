//! The queue against a model of it: whatever is asked in whatever order, both databases answer as the
//! model does. A lease of no length has run out at once and a long one never does, so no time passes.

mod support;
#[path = "support/postgres.rs"]
mod test_database;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::view::JobStatus;
use bellglass_store::{ClaimedJob, SqliteStore, Steering, Store, StoreError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{finished, output, verified_kinds, with_priority, worker};
use test_database::TestDatabase;

const LONG: Duration = Duration::from_secs(3600);

/// Something that is asked of the store. Jobs and workers are meant by number.
#[derive(Clone, Debug)]
enum Ask {
    Schedule {
        priority: i32,
    },
    Claim {
        worker: usize,
        lease: Lease,
    },
    /// As a worker that starts again takes up what it held.
    ClaimOwn {
        worker: usize,
        job: usize,
        lease: Lease,
    },
    /// Under the newest generation, or under one of so many ago.
    Renew {
        worker: usize,
        job: usize,
        behind: u32,
        lease: Lease,
    },
    /// All leases but one.
    Release {
        worker: usize,
        kept: Option<usize>,
    },
    /// As the holder, or as somebody who held it so many generations ago.
    Append {
        job: usize,
        behind: u32,
    },
    Finish {
        job: usize,
        behind: u32,
    },
    Cancel {
        job: usize,
    },
    Pause {
        job: usize,
    },
    Resume {
        job: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lease {
    RunsOutAtOnce,
    Holds,
}

impl Lease {
    fn duration(self) -> Duration {
        match self {
            Self::RunsOutAtOnce => Duration::ZERO,
            Self::Holds => LONG,
        }
    }
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let lease = || prop_oneof![Just(Lease::RunsOutAtOnce), Just(Lease::Holds)];
    let (worker, job) = (0..3_usize, 0..6_usize);
    let ask = prop_oneof![
        3 => (-2..3).prop_map(|priority| Ask::Schedule { priority }),
        5 => (worker.clone(), lease()).prop_map(|(worker, lease)| Ask::Claim { worker, lease }),
        2 => (worker.clone(), job.clone(), lease())
            .prop_map(|(worker, job, lease)| Ask::ClaimOwn { worker, job, lease }),
        3 => (worker.clone(), job.clone(), 0..3_u32, lease())
            .prop_map(|(worker, job, behind, lease)| Ask::Renew { worker, job, behind, lease }),
        1 => (worker, proptest::option::of(job.clone()))
            .prop_map(|(worker, kept)| Ask::Release { worker, kept }),
        3 => (job.clone(), 0..3_u32).prop_map(|(job, behind)| Ask::Append { job, behind }),
        2 => (job.clone(), 0..3_u32).prop_map(|(job, behind)| Ask::Finish { job, behind }),
        1 => job.clone().prop_map(|job| Ask::Cancel { job }),
        1 => job.clone().prop_map(|job| Ask::Pause { job }),
        1 => job.prop_map(|job| Ask::Resume { job }),
    ];
    vec(ask, 1..50)
}

/// A job as it must stand.
#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    priority: i32,
    status: JobStatus,
    generation: u32,
    holder: Option<usize>,
    lease: Lease,
    cancel_requested: bool,
    events: u64,
}

impl Job {
    /// Takes in a claim, which the store must have answered with this.
    fn is_claimed(&mut self, worker: usize, lease: Lease, claimed: &ClaimedJob) {
        self.generation += 1;
        self.events += 1;
        (self.holder, self.lease) = (Some(worker), lease);
        if self.status == JobStatus::Scheduled {
            self.status = JobStatus::Running;
        }
        assert_eq!((claimed.view.job_id, claimed.generation.0), (self.id, self.generation));
        assert_eq!(claimed.view.status, self.status);
    }
}

#[derive(Default)]
struct Model(Vec<Job>);

fn name(n: usize) -> WorkerId {
    worker(&format!("w{n}"))
}

impl Model {
    /// The job that a claim gets: the best that waits or whose lease has run out.
    fn best(&mut self) -> Option<&mut Job> {
        let free = self.0.iter_mut().filter(|job| match job.status {
            JobStatus::Scheduled => true,
            JobStatus::Running | JobStatus::Paused => job.lease == Lease::RunsOutAtOnce,
            _ => false,
        });
        free.min_by_key(|job| (-job.priority, job.id))
    }

    /// Asks the store and the model the same, and compares.
    async fn ask(&mut self, store: &dyn Store, ask: &Ask) {
        match *ask {
            Ask::Schedule { priority } => {
                let id = store.schedule(with_priority(priority)).await.unwrap();
                let (status, lease) = (JobStatus::Scheduled, Lease::RunsOutAtOnce);
                self.0.push(Job {
                    id,
                    priority,
                    status,
                    generation: 0,
                    holder: None,
                    lease,
                    cancel_requested: false,
                    events: 1,
                });
            }
            Ask::Claim { worker, lease } => {
                let claimed = store.claim_next_job(&name(worker), lease.duration()).await.unwrap();
                let Some(job) = self.best() else { return assert!(claimed.is_none()) };
                job.is_claimed(worker, lease, &claimed.expect("there is a free job"));
            }
            Ask::ClaimOwn { worker, job, lease } => {
                let Some(job) = self.0.get_mut(job) else { return };
                let (own, time) = (name(worker), lease.duration());
                let claimed = store.claim_own(&own, job.id, time).await.unwrap();
                match job.holder == Some(worker) {
                    true => job.is_claimed(worker, lease, &claimed.expect("it is its own")),
                    false => assert!(claimed.is_none()),
                }
            }
            Ask::Renew { worker, job, behind, lease } => {
                let Some(job) = self.0.get_mut(job) else { return };
                let generation = job.generation.saturating_sub(behind);
                let held = [(job.id, Generation(generation))];
                let lost =
                    store.renew_leases(&name(worker), &held, lease.duration()).await.unwrap();
                if job.holder == Some(worker) && generation == job.generation {
                    assert!(lost.is_empty());
                    job.lease = lease;
                } else {
                    assert_eq!(lost, [job.id]);
                }
            }
            Ask::Release { worker, kept } => {
                let kept = kept.and_then(|job| self.0.get(job)).map(|job| job.id);
                store.release_leases_but(&name(worker), kept.as_slice()).await.unwrap();
                let released = self.0.iter_mut().filter(|job| Some(job.id) != kept);
                for job in released.filter(|job| job.holder == Some(worker)) {
                    job.lease = Lease::RunsOutAtOnce;
                }
            }
            Ask::Append { job, behind } => self.append(store, job, behind, None).await,
            Ask::Finish { job, behind } => {
                self.append(store, job, behind, Some(EndStatus::Completed)).await;
            }
            Ask::Cancel { job } => {
                let Some(job) = self.0.get_mut(job) else { return };
                let status = store.request_cancel(job.id, "me").await.unwrap();
                if !job.status.is_terminal() {
                    job.events += u64::from(!job.cancel_requested);
                    job.cancel_requested = true;
                    if job.status == JobStatus::Scheduled {
                        job.status = JobStatus::Cancelled;
                        job.events += 1;
                    }
                }
                assert_eq!(status, job.status);
            }
            Ask::Pause { job } => {
                let Some(job) = self.0.get_mut(job) else { return };
                let steered = store.steer(job.id, Steering::Pause, "me").await;
                match job.status {
                    JobStatus::Scheduled => assert!(matches!(steered, Err(StoreError::NotStarted))),
                    JobStatus::Running => {
                        job.status = JobStatus::Paused;
                        job.events += 1;
                        assert_eq!(steered.unwrap(), JobStatus::Paused);
                    }
                    JobStatus::Paused => assert_eq!(steered.unwrap(), JobStatus::Paused),
                    _ => assert!(matches!(steered, Err(StoreError::JobEnded))),
                }
            }
            Ask::Resume { job } => {
                let Some(job) = self.0.get_mut(job) else { return };
                let steered = store.steer(job.id, Steering::Resume, "me").await;
                if job.status == JobStatus::Paused {
                    job.status = JobStatus::Running;
                    job.events += 1;
                }
                match job.status.is_terminal() {
                    true => assert!(matches!(steered, Err(StoreError::JobEnded))),
                    false => assert_eq!(steered.unwrap(), job.status),
                }
            }
        }
    }

    async fn append(&mut self, store: &dyn Store, job: usize, behind: u32, end: Option<EndStatus>) {
        let Some(job) = self.0.get_mut(job) else { return };
        let generation = job.generation.saturating_sub(behind);
        let body = end.map_or_else(|| output("x"), finished);
        let appended = store.append(job.id, Generation(generation), vec![body]).await;
        if generation != job.generation {
            return assert!(matches!(appended, Err(StoreError::StaleGeneration)), "{appended:?}");
        }
        if job.status.is_terminal() {
            return assert!(matches!(appended, Err(StoreError::JobEnded)), "{appended:?}");
        }
        if job.holder.is_none() {
            return assert!(matches!(appended, Err(StoreError::StaleGeneration)), "{appended:?}");
        }
        job.events += 1;
        assert_eq!(appended.unwrap()[0].event.seq, job.events);
        if end.is_some() {
            (job.status, job.holder) = (JobStatus::Completed, None);
        }
    }

    /// In the end the store shows every job as the model has it.
    async fn compare(&self, store: &dyn Store) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &self.0 {
            let outline = store.outline(job.id).await.unwrap();
            assert_eq!((outline.status, outline.last_seq), (job.status, job.events));
            assert_eq!(outline.cancel_requested, job.cancel_requested);
            assert_eq!(verified_kinds(store, job.id).await.len() as u64, job.events);
            *counts.entry(job.status.as_str()).or_default() += 1;
        }
        for (status, count) in store.count_by_status().await.unwrap() {
            assert_eq!(count, counts.get(status.as_str()).copied().unwrap_or_default());
        }
    }
}

fn check(fresh: impl AsyncFn() -> (Arc<dyn Store>, Box<dyn std::any::Any>)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The same cases each time; a failing one is made as small as it gets and shown.
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config.clone(),
        proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm),
    );
    let ran = runner.run(&asks(), |asks| {
        runtime.block_on(async {
            let (store, _guard) = fresh().await;
            let mut model = Model::default();
            for ask in &asks {
                model.ask(&*store, ask).await;
            }
            model.compare(&*store).await;
            store.close().await;
        });
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}

#[test]
fn sqlite_answers_as_the_model_does() {
    check(async || {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("store.db")).await.unwrap();
        (Arc::new(store) as Arc<dyn Store>, Box::new(dir) as Box<dyn std::any::Any>)
    });
}

#[test]
fn postgres_answers_as_the_model_does() {
    check(async || {
        let database = TestDatabase::create().await;
        let store = database.open().await;
        (Arc::new(store) as Arc<dyn Store>, Box::new(database) as Box<dyn std::any::Any>)
    });
}
