//! The database as a file: whose it is, who uses it, and what happens when it was tampered with.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bellglass_protocol::chain::{ChainError, Verifier};
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{SqliteStore, Store as _, StoreError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use support::{finished, result_stored, step_finished, steps_job, verified_kinds, worker};

/// Runs a statement as somebody who has the file but not the store.
async fn meddle(path: &Path, statement: &'static str) {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn jobs_survive_closing_and_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/er/store.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let job = store.schedule(steps_job("true")).await.unwrap();
    store.close().await;
    assert!(matches!(store.schedule(steps_job("true")).await, Err(StoreError::Closed)));
    assert!(store.ping().await.is_err());

    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(verified_kinds(&store, job).await, ["scheduled"]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&dir.path().join("deep")), 0o700);
    assert_eq!(mode(&path), 0o600);
}

#[tokio::test]
async fn one_store_at_a_time_but_any_number_of_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let missing = SqliteStore::open_read_only(&path).await.unwrap_err();
    assert!(matches!(missing, StoreError::File { .. }), "{missing}");

    let store = SqliteStore::open(&path).await.unwrap();
    let second = SqliteStore::open(&path).await.unwrap_err();
    assert!(second.to_string().starts_with("another bellglass process uses this data directory"));

    let job = store.schedule(steps_job("true")).await.unwrap();
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    assert_eq!(verified_kinds(&reader, job).await, ["scheduled"]);
    let refused = reader.schedule(steps_job("true")).await.unwrap_err();
    assert!(matches!(refused, StoreError::ReadOnly), "{refused}");
    reader.close().await;
    store.close().await;

    let offline = SqliteStore::open_read_only(&path).await.unwrap();
    assert_eq!(verified_kinds(&offline, job).await, ["scheduled"]);
}

#[tokio::test]
async fn somebody_elses_file_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database").unwrap();
    let foreign = dir.path().join("foreign.db");
    meddle(&foreign, "CREATE TABLE recipes (name TEXT)").await;
    for path in [text, foreign] {
        let before = std::fs::read(&path).unwrap();
        for opened in [SqliteStore::open(&path).await, SqliteStore::open_read_only(&path).await] {
            assert!(matches!(opened, Err(StoreError::NotOurs(_))), "{opened:?}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    meddle(
        &path,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (999, 'from the future', TRUE, x'00', 0)",
    )
    .await;
    for opened in [SqliteStore::open(&path).await, SqliteStore::open_read_only(&path).await] {
        let error = opened.unwrap_err();
        let StoreError::NewerSchema { found, known, .. } = error else { panic!("{error}") };
        assert!(found == 999 && (1..999).contains(&known), "{found}, {known}");
    }
    meddle(&path, "DELETE FROM _sqlx_migrations").await;
    let older = SqliteStore::open_read_only(&path).await.unwrap_err();
    assert!(matches!(older, StoreError::OlderSchema(_)), "{older}");
}

#[tokio::test]
async fn a_changed_line_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let job = store.schedule(steps_job("ls")).await.unwrap();
    store.request_cancel(job, "me").await.unwrap();
    store.close().await;
    meddle(&path, "UPDATE events SET line = replace(line, '\"me\"', '\"you\"') WHERE seq = 2")
        .await;

    let store = SqliteStore::open_read_only(&path).await.unwrap();
    let mut verifier = Verifier::new(Some(job));
    let events = store.events_after(job, 0, 10).await.unwrap();
    let outcomes: Vec<_> = events.iter().map(|sealed| verifier.line(&sealed.line)).collect();
    assert!(outcomes[0].is_ok());
    assert_eq!(outcomes[1], Err(ChainError::Altered { line: 2 }));
}

/// It would be claimed again and again otherwise, and never come to an end.
#[tokio::test]
async fn a_job_that_cannot_be_read_ends_and_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let damaged = store.schedule(steps_job("ls")).await.unwrap();
    store.close().await;
    meddle(&path, "UPDATE events SET line = 'no json' WHERE seq = 1").await;

    let store = SqliteStore::open(&path).await.unwrap();
    let job = store.schedule(steps_job("true")).await.unwrap();
    let lease = std::time::Duration::from_secs(60);
    let claimed = store.claim_next_job(&worker("w"), lease).await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, job);
    let outline = store.outline(damaged).await.unwrap();
    assert_eq!((outline.status, outline.last_seq), (JobStatus::Failed, 3));
    assert_eq!(outline.error.unwrap().code, "log_unreadable");
    assert!(store.claim_next_job(&worker("w"), lease).await.unwrap().is_none());
}

#[tokio::test]
async fn a_database_from_before_outlines_gets_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let mut before = Vec::new();
    for body in [finished(EndStatus::Failed), step_finished(2, StepStatus::TimedOut)] {
        let job = store.schedule(steps_job("true")).await.unwrap();
        let lease = std::time::Duration::from_secs(60);
        let claimed = store.claim_next_job(&worker("w"), lease).await.unwrap().unwrap();
        let bodies = vec![
            step_finished(1, StepStatus::Failed),
            EventBody::SandboxLost { reason: "gone".into(), kept: None },
            step_finished(1, StepStatus::Succeeded),
            step_finished(2, StepStatus::Failed),
            result_stored(),
            body,
        ];
        store.append(job, claimed.generation, bodies).await.unwrap();
        before.push(store.outline(job).await.unwrap());
    }
    store.close().await;
    for column in [
        "ALTER TABLE jobs DROP COLUMN steps_done",
        "ALTER TABLE jobs DROP COLUMN steps_total",
        "ALTER TABLE jobs DROP COLUMN failed_steps",
        "ALTER TABLE jobs DROP COLUMN result_seq",
        "DELETE FROM _sqlx_migrations WHERE version = 2",
    ] {
        meddle(&path, column).await;
    }
    let store = SqliteStore::open(&path).await.unwrap();
    for outline in before {
        assert_eq!(outline.steps_total, Some(1));
        assert!(outline.result.is_some() && outline.steps_done >= 2);
        let after = store.outline(outline.id).await.unwrap();
        assert_eq!(format!("{after:?}"), format!("{outline:?}"));
    }
}
