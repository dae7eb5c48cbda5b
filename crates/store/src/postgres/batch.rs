//! One transaction for a group of operations.
//!
//! The rows of all jobs concerned are locked and read at once, always in the same order, so that two
//! processes never wait for each other in a circle. The rules decide in memory.

use bellglass_protocol::id::WorkerId;
use jiff::Timestamp;
use sqlx::{PgConnection, Row as _};

use super::link::DatabaseClock;
use super::{access, audit, memories, news, rows};
use crate::audit::Done;
use crate::group::draft::{Draft, count_claims, jobs_named_by};
use crate::group::operation::Operation;
use crate::{Change, StoreError, rules};

/// How far a transaction got.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Set when there is nothing left to do but to commit.
    pub(super) ready: Option<Ready>,
}

/// A transaction before its commit.
#[derive(Debug)]
pub(super) struct Ready {
    /// The number that the database has for it while it is open.
    pub(super) transaction: String,
    /// The number that stands in the database once it was committed.
    pub(super) number: i64,
    /// What it changes.
    pub(super) changes: Vec<Change>,
}

/// What a group needs to know beside its operations.
pub(super) struct Surroundings<'a> {
    pub(super) clock: &'a DatabaseClock,
    /// Under which name this store tells others of changes.
    pub(super) teller: &'a str,
    /// How many groups this store has tried to write.
    pub(super) number: i64,
    /// Whether leases that have run out are left to their holders for now.
    pub(super) forbearing: bool,
}

/// Runs the operations, leaves its answer in each, and commits.
pub(super) async fn run(
    connection: &mut PgConnection,
    operations: &mut [Operation],
    surroundings: &Surroundings<'_>,
    progress: &mut Progress,
) -> Result<(), StoreError> {
    let begun =
        sqlx::raw_sql("BEGIN; SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;")
            .fetch_one(&mut *connection)
            .await?;
    let now = surroundings.clock.set(begun.try_get(0)?);

    let changes = decide_and_write(connection, operations, surroundings.forbearing, now).await?;
    let told = news::written(surroundings.teller, &changes);
    let transaction: String = sqlx::query_scalar(
        "WITH mark AS (INSERT INTO written (teller, batch, at) VALUES ($3, $4, now()) \
         ON CONFLICT (teller) DO UPDATE SET batch = excluded.batch, at = excluded.at) \
         SELECT pg_current_xact_id()::text FROM \
         (SELECT count(pg_notify($1, text)) FROM unnest($2::text[]) AS text) AS told",
    )
    .bind(news::CHANNEL)
    .bind(told)
    .bind(surroundings.teller)
    .bind(surroundings.number)
    .fetch_one(&mut *connection)
    .await?;
    progress.ready = Some(Ready { transaction, number: surroundings.number, changes });
    sqlx::raw_sql("COMMIT").execute(&mut *connection).await?;
    Ok(())
}

async fn decide_and_write(
    connection: &mut PgConnection,
    operations: &mut [Operation],
    forbearing: bool,
    now: Timestamp,
) -> Result<Vec<Change>, StoreError> {
    let released = released_by(operations);
    let mut draft = Draft::of(rows::lock(connection, &jobs_named_by(operations), &released).await?);
    let mut done = Vec::new();
    for operation in operations.iter_mut() {
        draft.decide(operation, now);
    }
    for operation in operations.iter_mut() {
        match operation {
            Operation::Release(pending) => {
                draft.release(&pending.request);
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
            Operation::Forget(pending) => {
                let ended = rows::forget(connection, pending.request).await?;
                pending.answer = Some(Ok(ended.is_some()));
                done.extend(ended.map(|end| Done::to_forget(pending.request, end)));
            }
            _ => {}
        }
    }
    write(connection, &mut draft).await?;
    // After the jobs are written that go on from others. The rows are locked by now, so whoever lets a job
    // go on from one of them has done so and is seen, or waits and sees this.
    for operation in operations.iter_mut() {
        if let Operation::Retire(pending) = operation {
            pending.answer = Some(Ok(rows::retire(connection, pending.request).await?));
        }
    }

    // Jobs are claimed last: a claim looks at all jobs, as they now stand.
    let claims = count_claims(operations);
    if claims > 0 {
        // A lease that was given back has run out long ago, and nobody renews it.
        let run_out = if forbearing { rules::GIVEN_BACK } else { now };
        let best = rows::claimable(connection, run_out, claims).await?;
        draft.claim(operations, best, now);
        write(connection, &mut draft).await?;
    }
    audit::append(connection, done, now).await?;
    Ok(draft.changes())
}

async fn write(connection: &mut PgConnection, draft: &mut Draft) -> Result<(), StoreError> {
    let (rows, lines) = draft.take_unwritten();
    rows::write_jobs(connection, &rows).await?;
    rows::write_lines(connection, lines).await
}

fn released_by(operations: &[Operation]) -> Vec<WorkerId> {
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Release(pending) => Some(pending.request.worker.clone()),
            _ => None,
        })
        .collect()
}
