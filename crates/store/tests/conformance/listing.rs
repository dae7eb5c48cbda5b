//! Lists and counts: the index over the log.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError};
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::job::{Fork, JobSpec, Work};
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::view::{JobStatus, JobView};
use bellglass_store::{JobFilter, JobPage, Store, StoreError};

use crate::support::{
    finished, output, result_stored, step_finished, steps_job, task_job, with_priority, worker,
};

const LEASE: Duration = Duration::from_secs(60);

async fn list(store: &dyn Store, filter: JobFilter) -> JobPage {
    store.jobs(&JobFilter { limit: filter.limit.max(1), ..filter }).await.unwrap()
}

async fn titles_with(store: &dyn Store, search: &str) -> Vec<String> {
    let filter = JobFilter { search: Some(search.into()), limit: 100, ..JobFilter::default() };
    list(store, filter).await.jobs.into_iter().map(|job| job.title).collect()
}

pub(crate) async fn newest_first_in_pages(store: Arc<dyn Store>) {
    let mut scheduled = Vec::new();
    for n in 0..7 {
        scheduled.push(store.schedule(steps_job(&n.to_string())).await.unwrap());
    }
    scheduled.reverse();
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = list(&*store, JobFilter { before, limit: 3, ..JobFilter::default() }).await;
        seen.extend(page.jobs.iter().map(|job| job.id));
        assert_eq!(page.more, seen.len() < 7);
        if !page.more {
            break;
        }
        assert_eq!(page.jobs.len(), 3);
        before = seen.last().copied();
    }
    assert_eq!(seen, scheduled);
    let exact = list(&*store, JobFilter { limit: 7, ..JobFilter::default() }).await;
    assert!(!exact.more);
}

pub(crate) async fn by_status(store: Arc<dyn Store>) {
    let first = store.schedule(steps_job("1")).await.unwrap();
    let second = store.schedule(steps_job("2")).await.unwrap();
    store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    for (status, expected) in [
        (JobStatus::Running, vec![first]),
        (JobStatus::Scheduled, vec![second]),
        (JobStatus::Completed, vec![]),
    ] {
        let filter = JobFilter { status: Some(status), limit: 10, ..JobFilter::default() };
        let found: Vec<_> = list(&*store, filter).await.jobs.iter().map(|job| job.id).collect();
        assert_eq!(found, expected);
    }
}

pub(crate) async fn search_takes_text_literally(store: Arc<dyn Store>) {
    for task in ["make it 50% faster", "make it 500 faster", "snake_case", "snakeXcase"] {
        store.schedule(task_job(task)).await.unwrap();
    }
    let named = JobSpec { name: Some("Release".into()), ..steps_job("ls") };
    store.schedule(named).await.unwrap();
    assert_eq!(titles_with(&*store, "50%").await, ["make it 50% faster"]);
    assert_eq!(titles_with(&*store, "snake_case").await, ["snake_case"]);
    assert_eq!(titles_with(&*store, "release").await, ["shell: ls"]);
    assert!(titles_with(&*store, r"\").await.is_empty());
    assert!(titles_with(&*store, "' OR 1=1 --").await.is_empty());
}

pub(crate) async fn search_finds_text_beyond_the_title(store: Arc<dyn Store>) {
    store.schedule(task_job(&format!("{} the needle", "hay ".repeat(100)))).await.unwrap();
    store.schedule(task_job(&"hay ".repeat(100))).await.unwrap();
    let found = titles_with(&*store, "needle").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].chars().count(), 120);
    assert_eq!(titles_with(&*store, "hay").await.len(), 2);
}

pub(crate) async fn text_with_a_character_of_number_0_is_kept(store: Arc<dyn Store>) {
    let task = format!("{} zero \0 one", "x".repeat(200));
    let named = JobSpec { name: Some("nu\0ll".into()), ..task_job(&task) };
    let job = store.schedule(named.clone()).await.unwrap();
    store.schedule(task_job(&format!("{} needle", "x".repeat(200)))).await.unwrap();
    assert_eq!(store.job(job).await.unwrap().spec, named);
    assert_eq!(titles_with(&*store, "needle").await.len(), 1);
    titles_with(&*store, "\0").await;
}

pub(crate) async fn the_index_agrees_with_the_log(store: Arc<dyn Store>) {
    for priority in [0, 3, -2, 9, 1] {
        let named = JobSpec { name: Some(format!("n{priority}")), ..with_priority(priority) };
        store.schedule(named).await.unwrap();
    }
    let done = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let end = JobEnd {
        status: EndStatus::Failed,
        failed_steps: vec![1],
        error: Some(JobError { code: "bad".into(), message: "it was".into() }),
    };
    let end = vec![
        step_started(&done.view),
        output("1"),
        step_finished(1, StepStatus::Failed),
        result_stored(),
        EventBody::Finished { end },
    ];
    store.append(done.view.job_id, done.generation, end).await.unwrap();
    let stopping = store.claim_next_job(&worker("w"), Duration::ZERO).await.unwrap().unwrap();
    store.request_cancel(stopping.view.job_id, "me").await.unwrap();
    store.claim_next_job(&worker("x"), LEASE).await.unwrap().unwrap();
    let waiting = list(&*store, JobFilter { limit: 1, ..JobFilter::default() }).await;
    store.request_cancel(waiting.jobs[0].id, "me").await.unwrap();

    let all = list(&*store, JobFilter { limit: 100, ..JobFilter::default() }).await;
    assert_eq!(all.jobs.len(), 5);
    for row in all.jobs {
        let view = store.job(row.id).await.unwrap();
        assert_eq!(row.status, view.status);
        assert_eq!(row.name, view.spec.name);
        assert_eq!(row.priority, view.spec.priority.0);
        assert_eq!(row.scheduled_at, view.scheduled_at);
        assert_eq!(row.started_at, view.started_at);
        assert_eq!(row.finished_at, view.finished_at);
        assert_eq!(row.title, "shell: true");

        let outline = store.outline(row.id).await.unwrap();
        assert_eq!(outline.id, view.job_id);
        assert_eq!(outline.name, view.spec.name);
        assert_eq!(outline.status, view.status);
        assert_eq!(outline.cancel_requested, view.cancel_requested);
        assert_eq!(outline.scheduled_at, view.scheduled_at);
        assert_eq!(outline.started_at, view.started_at);
        assert_eq!(outline.finished_at, view.finished_at);
        assert_eq!(outline.steps_done as usize, view.steps.len());
        assert_eq!(outline.steps_total, view.steps_total);
        assert_eq!(outline.failed_steps, view.failed_steps);
        assert_eq!(outline.result, view.result);
        assert_eq!(outline.error, view.error);
        assert_eq!(outline.last_seq, view.last_seq);
    }
}

pub(crate) async fn every_status_is_counted(store: Arc<dyn Store>) {
    for _ in 0..3 {
        store.schedule(steps_job("true")).await.unwrap();
    }
    store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let counts = store.count_by_status().await.unwrap();
    let expected = JobStatus::ALL.map(|status| match status {
        JobStatus::Scheduled => (status, 2),
        JobStatus::Running => (status, 1),
        _ => (status, 0),
    });
    assert_eq!(counts, expected);
}

fn step_started(view: &JobView) -> EventBody {
    let Work::Steps(steps) = &view.spec.work else { panic!("a list of steps") };
    EventBody::StepStarted { n: 1, call: steps[0].clone() }
}

pub(crate) async fn only_what_has_ended_is_forgotten(store: Arc<dyn Store>) {
    let ended = store.schedule(steps_job("1")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let running = store.schedule(steps_job("2")).await.unwrap();
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    assert!(store.ended_before(later, 0, 10).await.unwrap().is_empty());
    let end = JobEnd { status: EndStatus::Completed, failed_steps: vec![], error: None };
    let end = vec![EventBody::Finished { end }];
    store.append(ended, claimed.generation, end).await.unwrap();

    let long_ago = jiff::Timestamp::UNIX_EPOCH;
    assert!(store.ended_before(long_ago, 0, 10).await.unwrap().is_empty());
    assert_eq!(store.ended_before(later, 0, 10).await.unwrap(), [ended]);
    assert!(store.ended_before(later, 1, 10).await.unwrap().is_empty());
    assert!(!store.retire_job(running).await.unwrap());
    assert!(!store.forget_job(running).await.unwrap());
    assert!(store.forget_job(ended).await.unwrap());
    assert!(!store.forget_job(ended).await.unwrap());
    assert!(store.job(ended).await.is_err() && store.outline(ended).await.is_err());
    assert_eq!(store.job(running).await.unwrap().last_seq, 1);
}

/// The next job in line comes to its end.
async fn end_next(store: &dyn Store) -> JobId {
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let end = vec![finished(EndStatus::Completed)];
    store.append(claimed.view.job_id, claimed.generation, end).await.unwrap();
    claimed.view.job_id
}

fn fork_of(job: JobId) -> JobSpec {
    let fork = Fork { job, step: 1, checkpoint: None, heard: None };
    JobSpec { fork: Some(fork), ..steps_job("true") }
}

pub(crate) async fn what_another_job_goes_on_from_is_kept(store: Arc<dyn Store>) {
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let first = store.schedule(steps_job("1")).await.unwrap();
    end_next(&*store).await;
    let second = store.schedule(fork_of(first)).await.unwrap();
    assert!(store.ended_before(later, 0, 10).await.unwrap().is_empty(), "a fork waits");
    end_next(&*store).await;
    assert_eq!(store.ended_before(later, 0, 10).await.unwrap(), [first, second]);
    assert_eq!(store.ended_before(later, 1, 10).await.unwrap(), [second]);

    // A fork of the fork hears both.
    let third = store.schedule(fork_of(second)).await.unwrap();
    store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert!(store.ended_before(later, 0, 10).await.unwrap().is_empty(), "a fork is at work");
    for job in [first, second, third] {
        assert!(!store.retire_job(job).await.unwrap());
    }
    store.request_cancel(third, "me").await.unwrap();
    let end = vec![finished(EndStatus::Cancelled)];
    store.append(third, Generation(1), end).await.unwrap();
    assert_eq!(store.ended_before(later, 0, 10).await.unwrap(), [first, second, third]);
}

pub(crate) async fn nothing_goes_on_from_what_is_about_to_be_forgotten(store: Arc<dyn Store>) {
    let job = store.schedule(steps_job("1")).await.unwrap();
    end_next(&*store).await;
    assert!(store.retire_job(job).await.unwrap());
    assert!(store.retire_job(job).await.unwrap(), "whoever comes next can try again");
    let refused = store.schedule(fork_of(job)).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotFound(parent) if parent == job), "{refused}");
    assert!(store.forget_job(job).await.unwrap());
    assert!(store.schedule(fork_of(job)).await.is_err());
    assert!(!store.retire_job(job).await.unwrap());
    assert_eq!(store.count_by_status().await.unwrap().iter().map(|(_, n)| n).sum::<u64>(), 0);
}

/// Whoever comes first has its way: a fork that is accepted finds what it goes on from.
pub(crate) async fn a_fork_and_its_parents_end_do_not_pass_each_other(store: Arc<dyn Store>) {
    for _ in 0..20 {
        let job = store.schedule(with_priority(9)).await.unwrap();
        end_next(&*store).await;
        let (forked, retired) = tokio::join!(store.schedule(fork_of(job)), store.retire_job(job));
        assert_ne!(forked.is_ok(), retired.unwrap());
    }
}
