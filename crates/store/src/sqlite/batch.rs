//! One transaction for a group of operations.
//!
//! The rows of all jobs concerned are read at once, the rules decide in memory, and the outcome is
//! written at once: a refusal never touches the database, so it cannot hurt its neighbours.

use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::draft::Draft;
use super::operation::Operation;
use super::{memories, rows};
use crate::index::now;
use crate::{Change, StoreError, rules};

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
    for operation in operations.iter_mut() {
        draft.decide(operation, now);
    }
    draft.write(connection).await?;

    // Leases are released and jobs are claimed last: they look at all jobs, as they now stand.
    for operation in operations.iter_mut() {
        match operation {
            Operation::Release(pending) => {
                rows::release(connection, &pending.request).await?;
                pending.answer = Some(Ok(()));
            }
            Operation::Memory(pending) => {
                let changed = memories::change(connection, &pending.request, now).await?;
                pending.answer = Some(Ok(changed));
            }
            _ => {}
        }
    }
    claim(connection, &mut draft, operations, now).await?;
    Ok(draft.changes())
}

/// Hands the best jobs to those who ask, in the order in which they asked.
async fn claim(
    connection: &mut SqliteConnection,
    draft: &mut Draft,
    operations: &mut [Operation],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut claims: Vec<_> = operations
        .iter_mut()
        .filter_map(|operation| match operation {
            // Nobody would work on a job whose claimer has gone away.
            Operation::Claim(pending) if !pending.is_abandoned() => Some(pending),
            _ => None,
        })
        .collect();
    if claims.is_empty() {
        return Ok(());
    }
    let mut best = rows::claimable(connection, now, claims.len()).await?.into_iter();
    for pending in &mut claims {
        let claimed = best.next().map(|mut row| {
            let request = &pending.request;
            let event = rules::claim(&mut row, &request.worker, request.lease, now);
            let taken = (row.id, row.generation);
            draft.put(row, &event);
            taken
        });
        pending.answer = Some(Ok(claimed));
    }
    draft.write(connection).await
}

fn jobs_named_by(operations: &[Operation]) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for operation in operations {
        match operation {
            Operation::Append(pending) => jobs.push(pending.request.job),
            Operation::Cancel(pending) => jobs.push(pending.request.job),
            Operation::Steer(pending) => jobs.push(pending.request.job),
            Operation::ChangeNetwork(pending) => jobs.push(pending.request.job),
            Operation::Renew(pending) => {
                jobs.extend(pending.request.held.iter().map(|(job, _)| *job));
            }
            Operation::Schedule(_)
            | Operation::Release(_)
            | Operation::Claim(_)
            | Operation::Memory(_)
            | Operation::Close(_) => {}
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::super::operation::{NewJob, Pending};
    use super::*;
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
        assert!(matches!(failure, Failure::RolledBack(StoreError::Database(_))), "{failure:?}");

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
