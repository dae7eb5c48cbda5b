//! One transaction for a group of operations.
//!
//! The rows of all jobs concerned are read at once, the rules decide in memory, and the outcome is
//! written at once: a refusal never touches the database, so it cannot hurt its neighbours.

use sqlx::SqliteConnection;

use super::{access, audit, memories, rows};
use crate::audit::Done;
use crate::group::draft::{Draft, count_claims, jobs_named_by};
use crate::group::operation::Operation;
use crate::index::now;
use crate::{Change, StoreError};

/// Why a batch has no effect.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was written.
    RolledBack(StoreError),
    /// The commit itself failed, so nothing is known.
    AtCommit(sqlx::Error),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::RolledBack(error) => error,
            Failure::AtCommit(error) => error.into(),
        }
    }
}

/// Runs the operations, leaves its answer in each, commits, and returns what changed.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    operations: &mut [Operation],
) -> Result<Vec<Change>, Failure> {
    match decide_and_write(connection, operations).await {
        Ok(changes) => match sqlx::query("COMMIT").execute(&mut *connection).await {
            Ok(_) => Ok(changes),
            Err(error) => {
                roll_back(connection).await;
                Err(Failure::AtCommit(error))
            }
        },
        Err(error) => {
            roll_back(connection).await;
            Err(Failure::RolledBack(error))
        }
    }
}

/// A transaction object would count on this to succeed. But SQLite rolls back by itself when, for
/// example, the disk is full, and then there is nothing left to roll back.
async fn roll_back(connection: &mut SqliteConnection) {
    if let Err(error) = sqlx::query("ROLLBACK").execute(connection).await {
        tracing::debug!(%error, "nothing to roll back");
    }
}

async fn decide_and_write(
    connection: &mut SqliteConnection,
    operations: &mut [Operation],
) -> Result<Vec<Change>, StoreError> {
    // IMMEDIATE takes the right to write at once; a transaction that has read cannot always get it.
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
    let now = now();
    let mut draft = Draft::of(rows::load(connection, &jobs_named_by(operations)).await?);
    let mut done = Vec::new();
    for operation in operations.iter_mut() {
        draft.decide(operation, now);
    }
    write(connection, &mut draft).await?;

    // Leases are released and jobs are claimed last: they look at all jobs, as they now stand.
    for operation in operations.iter_mut() {
        match operation {
            Operation::Release(pending) => {
                rows::release(connection, &pending.request).await?;
                pending.answer = Some(Ok(()));
            }
            Operation::Memory(pending) => {
                let wanted = &pending.request;
                let changed = memories::change(connection, &wanted.change, now).await?;
                let memory = changed.as_ref();
                done.extend(memory.and_then(|memory| Done::to_memory(wanted, memory)));
                pending.answer = Some(Ok(changed));
            }
            Operation::Access(pending) => {
                let wanted = &pending.request;
                let changed = access::change(connection, &wanted.change, now).await?;
                done.extend(changed.then(|| Done::to_access(wanted)));
                pending.answer = Some(Ok(changed));
            }
            Operation::Retire(pending) => {
                pending.answer = Some(Ok(rows::retire(connection, pending.request).await?));
            }
            Operation::Forget(pending) => {
                let ended = rows::forget(connection, pending.request).await?;
                pending.answer = Some(Ok(ended.is_some()));
                done.extend(ended.map(|end| Done::to_forget(pending.request, end)));
            }
            _ => {}
        }
    }
    let claims = count_claims(operations);
    if claims > 0 {
        let best = rows::claimable(connection, now, claims).await?;
        draft.claim(operations, best, now);
        write(connection, &mut draft).await?;
    }
    audit::append(connection, done, now).await?;
    Ok(draft.changes())
}

async fn write(connection: &mut SqliteConnection, draft: &mut Draft) -> Result<(), StoreError> {
    let (rows, lines) = draft.take_unwritten();
    rows::write_jobs(connection, &rows).await?;
    rows::write_lines(connection, lines).await
}

#[cfg(test)]
mod tests {
    use super::super::open;

    use super::*;
    use crate::group::operation::{NewJob, Pending};
    use crate::index::IndexRow;
    use bellglass_protocol::job::{
        Budget, DEFAULT_IMAGE, IsolationLevel, JobSpec, Limits, OnError, Priority, Work,
    };
    use bellglass_protocol::network::NetworkPolicy;

    fn large_job() -> Operation {
        let spec = JobSpec {
            name: None,
            work: Work::Task("x".repeat(1 << 20)),
            on_error: OnError::Continue,
            priority: Priority(0),
            image: DEFAULT_IMAGE.into(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            isolation: IsolationLevel::Namespace,
            nested_sandboxing: false,
            desktop: None,
            secrets: Default::default(),
            files: Vec::new(),
            model: None,
            budget: Budget::default(),
            plan: Default::default(),
            mcp: Default::default(),
            approve: Vec::new(),
            project: None,
            fork: None,
            owner: None,
        };
        let (row, scheduled) = IndexRow::accept(spec, now());
        Operation::Schedule(Pending::new(Box::new(NewJob { row, line: scheduled.line })).0)
    }

    #[tokio::test]
    async fn a_full_disk_fails_the_write_and_not_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let opened = open::for_writing(&dir.path().join("db")).await.unwrap();
        let mut connection = opened.connection;
        sqlx::query("PRAGMA max_page_count = 100").execute(&mut connection).await.unwrap();
        let failure = run(&mut connection, &mut [large_job()]).await.unwrap_err();
        assert!(matches!(&failure, Failure::RolledBack(error) if error.is_full()), "{failure:?}");

        sqlx::query("PRAGMA max_page_count = 100000").execute(&mut connection).await.unwrap();
        let changes = run(&mut connection, &mut [large_job()]).await.unwrap();
        assert_eq!(changes.len(), 1);
        let jobs: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(jobs, 1);
    }

    #[tokio::test]
    async fn a_claim_never_sorts_the_queue() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = open::for_writing(&dir.path().join("db")).await.unwrap().connection;
        let explain = format!("EXPLAIN QUERY PLAN {}", rows::WAITING);
        let plan: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let [(.., step)] = plan.as_slice() else { panic!("{plan:?}") };
        assert!(step.ends_with("USING INDEX jobs_waiting"), "{step}");
    }

    #[tokio::test]
    async fn paused_jobs_are_found_without_looking_at_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = open::for_writing(&dir.path().join("db")).await.unwrap().connection;
        let explain = format!("EXPLAIN QUERY PLAN {}", rows::PAUSED_RUN_OUT);
        let plan: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let (.., step) = &plan[0];
        assert!(step.contains("SEARCH") && step.contains("INDEX jobs_by_status"), "{step}");
    }
}
