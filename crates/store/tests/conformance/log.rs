//! What is kept of a job: append-only, in order, whole, and told to listeners.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::chain::Verifier;
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::job::Work;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{PAGE_BYTES, Store, StoreError};

use crate::support::{finished, output, step_finished, steps_job, verified_kinds, worker};

const LEASE: Duration = Duration::from_secs(60);

async fn claimed(store: &dyn Store) -> (JobId, Generation) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, job);
    (job, claimed.generation)
}

pub(crate) async fn pages_are_exact_and_the_chain_holds(store: Arc<dyn Store>) {
    let (job, generation) = claimed(&*store).await;
    // Enough for every size of statement, with text that JSON has to escape.
    let bodies = (0..90).map(|n| output(&format!("{n} \"quoted\" \\ \n \u{1F600}"))).collect();
    let appended = store.append(job, generation, bodies).await.unwrap();
    assert_eq!(appended.first().unwrap().event.seq, 3);
    assert_eq!(appended.last().unwrap().event.seq, 92);
    assert_eq!(verified_kinds(&*store, job).await.len(), 92);

    let page = store.events_after(job, 10, 5).await.unwrap();
    let numbers: Vec<_> = page.iter().map(|sealed| sealed.event.seq).collect();
    assert_eq!(numbers, [11, 12, 13, 14, 15]);
    for (read, written) in page.iter().zip(&appended[8..]) {
        assert_eq!((&read.line, read.hash), (&written.line, written.hash));
    }
    assert!(store.events_after(job, 92, 5).await.unwrap().is_empty());
    assert!(store.events_after(job, u64::MAX, 5).await.unwrap().is_empty());

    // A log with one letter changed does not pass.
    let mut verifier = Verifier::new(Some(job));
    let line = &store.events_after(job, 0, 1).await.unwrap()[0].line;
    assert!(verifier.line(&line.replacen("true", "tru3", 1)).is_err());
}

pub(crate) async fn a_page_is_bounded_by_bytes_too(store: Arc<dyn Store>) {
    let (job, generation) = claimed(&*store).await;
    let lengths = [PAGE_BYTES / 3, PAGE_BYTES / 3, PAGE_BYTES / 3, 3 * PAGE_BYTES, 1];
    let bodies = lengths.map(|length| output(&"x".repeat(length)));
    store.append(job, generation, bodies.into()).await.unwrap();
    let mut after = 2;
    // Of a long line there is a page all the same, or nobody could read on.
    for expected in [&[3, 4][..], &[5], &[6], &[7], &[]] {
        let page = store.events_after(job, after, 1000).await.unwrap();
        let numbers: Vec<_> = page.iter().map(|sealed| sealed.event.seq).collect();
        assert_eq!(numbers, expected);
        after += numbers.len() as u64;
    }
    assert_eq!(verified_kinds(&*store, job).await.len(), 7);
}

/// Whoever takes a job up learns where it stands, and how much is recorded, but not every text.
pub(crate) async fn a_claim_carries_no_texts(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    let mine = store.claim_next_job(&worker("w"), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(mine.recorded_bytes, 0);
    let Work::Steps(steps) = &mine.view.spec.work else { panic!("a list of steps") };
    let started = EventBody::StepStarted { n: 1, call: steps[0].clone() };
    let bodies = vec![started, output("some text"), step_finished(1, StepStatus::Failed)];
    let written = store.append(job, mine.generation, bodies).await.unwrap();
    let again = store.claim_next_job(&worker("x"), LEASE).await.unwrap().unwrap();
    let [step] = again.view.steps.as_slice() else { panic!("{:?}", again.view.steps) };
    assert_eq!((step.status, step.stdout.as_str()), (StepStatus::Failed, ""));
    assert_eq!(store.job(job).await.unwrap().steps[0].stdout, "out");
    let recorded: usize = written[1..].iter().map(|sealed| sealed.line.len()).sum();
    assert_eq!(again.recorded_bytes, recorded as u64);
}

pub(crate) async fn many_writers_share_one_log_store(store: Arc<dyn Store>) {
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(claimed(&*store).await);
    }
    let writers: Vec<_> = held
        .iter()
        .map(|&(job, generation)| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..25 {
                    store.append(job, generation, vec![output(&n.to_string())]).await.unwrap();
                    // A stranger's refusal must not disturb its neighbours in the same commit.
                    let refused = store.append(job, Generation(9), vec![output("no")]).await;
                    assert!(matches!(refused, Err(StoreError::StaleGeneration)));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for (job, _) in held {
        assert_eq!(verified_kinds(&*store, job).await.len(), 27);
    }
}

pub(crate) async fn an_append_is_all_or_nothing(store: Arc<dyn Store>) {
    let (job, generation) = claimed(&*store).await;
    let end = || finished(EndStatus::Completed);
    let beyond = store.append(job, generation, vec![end(), output("too late")]).await;
    assert!(matches!(beyond, Err(StoreError::JobEnded)), "{beyond:?}");
    let reclaim = EventBody::Claimed { worker: worker("w"), generation: Generation(7) };
    let forged = store.append(job, generation, vec![output("1"), reclaim]).await;
    assert!(
        matches!(&forged, Err(StoreError::ReservedEvent(kind)) if kind == "claimed"),
        "{forged:?}"
    );
    assert!(store.append(job, generation, vec![]).await.unwrap().is_empty());
    assert_eq!(verified_kinds(&*store, job).await, ["scheduled", "claimed"]);
}

pub(crate) async fn nothing_comes_after_the_end(store: Arc<dyn Store>) {
    let (job, generation) = claimed(&*store).await;
    store.append(job, generation, vec![output("1"), finished(EndStatus::Failed)]).await.unwrap();
    let late = store.append(job, generation, vec![output("2")]).await;
    assert!(matches!(late, Err(StoreError::JobEnded)), "{late:?}");
    assert!(store.claim_next_job(&worker("w"), LEASE).await.unwrap().is_none());
    assert_eq!(store.renew_leases(&worker("w"), &[(job, generation)], LEASE).await.unwrap(), [job]);
    assert_eq!(verified_kinds(&*store, job).await.len(), 4);
}

pub(crate) async fn only_the_holder_appends(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("true")).await.unwrap();
    for generation in [Generation(0), Generation(1)] {
        let refused = store.append(job, generation, vec![output("1")]).await;
        assert!(matches!(refused, Err(StoreError::StaleGeneration)), "{refused:?}");
    }
}

pub(crate) async fn an_unknown_job_has_no_log(store: Arc<dyn Store>) {
    let nowhere = JobId::generate();
    let is_missing = |error| matches!(error, StoreError::NotFound(job) if job == nowhere);
    assert!(is_missing(store.events_after(nowhere, 0, 10).await.unwrap_err()));
    assert!(is_missing(store.job(nowhere).await.unwrap_err()));
    assert!(is_missing(store.append(nowhere, Generation(1), vec![]).await.unwrap_err()));
}

pub(crate) async fn times_never_run_backwards(store: Arc<dyn Store>) {
    let (job, generation) = claimed(&*store).await;
    for n in 0..20 {
        store.append(job, generation, vec![output(&n.to_string())]).await.unwrap();
    }
    let events = store.events_after(job, 0, 100).await.unwrap();
    assert!(events.windows(2).all(|pair| pair[0].event.at <= pair[1].event.at));
    assert!(events.iter().all(|sealed| sealed.event.at.subsec_nanosecond() % 1000 == 0));
}

pub(crate) async fn changes_are_told_after_they_are_readable(store: Arc<dyn Store>) {
    let mut changes = store.changes();
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    store.request_cancel(job, "me").await.unwrap();
    let end = vec![output("1"), finished(EndStatus::Cancelled)];
    store.append(job, claimed.generation, end).await.unwrap();
    let expected = [
        (1, JobStatus::Scheduled, false),
        (2, JobStatus::Running, false),
        (3, JobStatus::Running, true),
        (5, JobStatus::Cancelled, true),
    ];
    for expected in expected {
        let change = changes.recv().await.unwrap();
        assert_eq!(change.job, job);
        assert_eq!((change.seq, change.status, change.cancel_requested), expected);
    }

    let scheduling = {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                store.schedule(steps_job("true")).await.unwrap();
            }
        })
    };
    for _ in 0..50 {
        let change = changes.recv().await.unwrap();
        assert_eq!(store.job(change.job).await.unwrap().last_seq, change.seq);
    }
    scheduling.await.unwrap();
    assert!(changes.try_recv().is_err());
}
