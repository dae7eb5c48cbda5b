//! Accepted means durable: a process that is killed in the middle of its work loses no job.
//!
//! The test runs itself as a second process, which schedules jobs until it is killed.

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use bellglass_protocol::id::JobId;
use bellglass_store::{JobFilter, SqliteStore, Store as _, StoreError};
use support::{steps_job, verified_kinds};

/// Names the database to the second process.
const DATABASE: &str = "BELLGLASS_TEST_CRASH_DATABASE";

#[tokio::test]
async fn no_accepted_job_is_lost_by_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(DATABASE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let accepted = |line: String| line.strip_prefix("accepted ")?.parse::<JobId>().ok();

    let mut jobs: Vec<JobId> =
        lines.by_ref().map_while(Result::ok).filter_map(accepted).take(300).collect();
    assert_eq!(jobs.len(), 300);
    let second = SqliteStore::open(&path).await.unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    assert_eq!(verified_kinds(&reader, jobs[0]).await, ["scheduled"]);
    reader.close().await;

    victim.kill().unwrap();
    jobs.extend(lines.map_while(Result::ok).filter_map(accepted));
    victim.wait().unwrap();

    let store = SqliteStore::open(&path).await.unwrap();
    for job in &jobs {
        assert_eq!(verified_kinds(&store, *job).await, ["scheduled"]);
    }
    // What was written but not answered may be there too; it is whole as well.
    let all = store.jobs(&JobFilter { limit: u32::MAX, ..JobFilter::default() }).await.unwrap();
    assert!(all.jobs.len() >= jobs.len());
    for job in all.jobs {
        assert_eq!(verified_kinds(&store, job.id).await, ["scheduled"]);
    }
}

/// Not a test by itself: the process that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let store = std::sync::Arc::new(SqliteStore::open(Path::new(&path)).await.unwrap());
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        callers.spawn(async move {
            loop {
                let job = store.schedule(steps_job("true")).await.unwrap();
                // One call for the whole line, so that a kill cannot leave half of one.
                let line = format!("accepted {job}\n");
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
        });
    }
    callers.join_next().await;
}
