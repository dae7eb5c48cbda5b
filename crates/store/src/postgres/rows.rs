//! The SQL of the writer: reads and writes rows of the index and lines of the log, many at once.

use std::borrow::Cow;

use bellglass_protocol::chain::LinkHash;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::view::JobStatus;
use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use uuid::Uuid;

use crate::group::draft::Line;
use crate::index::IndexRow;
use crate::{LogEnd, StoreError};

/// Writes rows of the index, whether they are new or not.
pub(super) async fn write_jobs(
    connection: &mut PgConnection,
    rows: &[&IndexRow],
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let moments = |moment: fn(&IndexRow) -> Option<Timestamp>| -> Vec<Option<i64>> {
        rows.iter().map(|row| moment(row).map(Timestamp::as_microsecond)).collect()
    };
    let column =
        |number: fn(&IndexRow) -> i64| -> Vec<i64> { rows.iter().map(|row| number(row)).collect() };
    let mut last_seq = Vec::with_capacity(rows.len());
    let mut result_seq = Vec::with_capacity(rows.len());
    for row in rows {
        last_seq.push(integer(row.last_seq)?);
        result_seq.push(row.result_seq.map(integer).transpose()?);
    }
    sqlx::query(
        "INSERT INTO jobs (id, status, priority, name, title, scheduled_at, started_at, \
         finished_at, generation, cancel_requested, worker, lease_until, last_seq, last_at, \
         last_hash, steps_done, steps_total, failed_steps, result_seq, owner, forked_from) \
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], \
         $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bool[], $11::text[], \
         $12::bigint[], $13::bigint[], $14::bigint[], $15::bytea[], $16::bigint[], \
         $17::bigint[], $18::text[], $19::bigint[], $20::text[], $21::uuid[]) \
         ON CONFLICT (id) DO UPDATE SET status = excluded.status, \
         started_at = excluded.started_at, finished_at = excluded.finished_at, \
         generation = excluded.generation, cancel_requested = excluded.cancel_requested, \
         worker = excluded.worker, lease_until = excluded.lease_until, \
         last_seq = excluded.last_seq, last_at = excluded.last_at, \
         last_hash = excluded.last_hash, steps_done = excluded.steps_done, \
         failed_steps = excluded.failed_steps, result_seq = excluded.result_seq",
    )
    .bind(rows.iter().map(|row| row.id.uuid()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.status.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.priority).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.name.as_deref().map(text)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| text(&row.title)).collect::<Vec<_>>())
    .bind(column(|row| row.scheduled_at.as_microsecond()))
    .bind(moments(|row| row.started_at))
    .bind(moments(|row| row.finished_at))
    .bind(column(|row| row.generation.0.into()))
    .bind(rows.iter().map(|row| row.cancel_requested).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.worker.as_ref().map(|w| text(w.as_str()))).collect::<Vec<_>>())
    .bind(moments(|row| row.lease_until))
    .bind(last_seq)
    .bind(column(|row| row.last_at.as_microsecond()))
    .bind(rows.iter().map(|row| row.last_hash.as_bytes().to_vec()).collect::<Vec<_>>())
    .bind(column(|row| row.steps_done.into()))
    .bind(rows.iter().map(|row| row.steps_total.map(i64::from)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| list_text(&row.failed_steps)).collect::<Vec<_>>())
    .bind(result_seq)
    .bind(rows.iter().map(|row| row.owner.as_deref().map(text)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.forked_from.map(|job| job.uuid())).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds lines to the log. A line that exists already is an error: the log is append-only.
pub(super) async fn write_lines(
    connection: &mut PgConnection,
    lines: Vec<Line>,
) -> Result<(), StoreError> {
    if lines.is_empty() {
        return Ok(());
    }
    let (mut jobs, mut numbers, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        jobs.push(line.job.uuid());
        numbers.push(integer(line.seq)?);
        texts.push(line.text);
    }
    sqlx::query(
        "INSERT INTO events (job_id, seq, line) \
         SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[])",
    )
    .bind(jobs)
    .bind(numbers)
    .bind(texts)
    .execute(connection)
    .await?;
    Ok(())
}

macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, status, priority, name, title, scheduled_at, started_at, finished_at, \
             generation, cancel_requested, worker, lease_until, last_seq, last_at, last_hash, \
             steps_done, steps_total, failed_steps, result_seq, owner, forked_from, retired, \
             needs FROM jobs ",
            $rest
        )
    };
}

/// Locks and reads the rows of these jobs, as far as they exist, and of all that these workers hold.
pub(super) async fn lock(
    connection: &mut PgConnection,
    jobs: &[JobId],
    held_by: &[WorkerId],
) -> Result<Vec<IndexRow>, StoreError> {
    if jobs.is_empty() && held_by.is_empty() {
        return Ok(Vec::new());
    }
    let jobs: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    let held_by: Vec<_> = held_by.iter().map(|worker| text(worker.as_str())).collect();
    let query = if held_by.is_empty() {
        sqlx::query(select_jobs!("WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE")).bind(jobs)
    } else {
        sqlx::query(select_jobs!(
            "WHERE id = ANY($1 || ARRAY(SELECT id FROM jobs \
             WHERE status IN ('running', 'paused') AND worker = ANY($2::text[]))) \
             ORDER BY id FOR NO KEY UPDATE"
        ))
        .bind(jobs)
        .bind(held_by)
    };
    query.fetch_all(connection).await?.iter().map(read_row).collect()
}

/// What this program can carry out. It is raised together with what a job may ask for, and with every new form of
/// an event that says where a job stands: a worker which meets such a form leaves the job to whoever is able to do
/// more than itself. Jobs that need more are left to newer programs, which may run beside this one during an
/// upgrade.
pub(super) const ABILITY: i32 = 0;

/// The best jobs that nobody holds, best first: waiting ones, and those whose lease has run out,
/// paused ones too. Those that somebody else is about to claim are passed over, and those that this
/// program cannot carry out.
pub(super) async fn claimable(
    connection: &mut PgConnection,
    run_out: Timestamp,
    limit: usize,
) -> Result<Vec<IndexRow>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = sqlx::query(select_jobs!(
        "WHERE status = 'scheduled' AND coalesce(needs, 0) <= $2 \
         ORDER BY priority DESC, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED"
    ))
    .bind(limit)
    .bind(ABILITY)
    .fetch_all(&mut *connection)
    .await?;
    let run_out = sqlx::query(select_jobs!(
        "WHERE status IN ('running', 'paused') AND lease_until <= $1 AND coalesce(needs, 0) <= $3 \
         ORDER BY priority DESC, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED"
    ))
    .bind(run_out.as_microsecond())
    .bind(limit)
    .bind(ABILITY);
    rows.extend(run_out.fetch_all(&mut *connection).await?);
    let mut best: Vec<_> = rows.iter().map(read_row).collect::<Result<_, _>>()?;
    best.sort_by_key(|row| (std::cmp::Reverse(row.priority), row.id));
    Ok(best)
}

pub(super) const ONE: &str = select_jobs!("WHERE id = $1");

/// Jobs that are not over, and those that ended since a moment.
pub(super) const CHANGED_SINCE: &str =
    select_jobs!("WHERE status IN ('scheduled', 'running', 'paused') OR finished_at >= $1");

/// The jobs that those which have not ended go on from, and what these went on from, and so on.
pub(super) const IN_USE: &str = "WITH RECURSIVE in_use (id) AS ( \
     SELECT forked_from FROM jobs WHERE finished_at IS NULL AND forked_from IS NOT NULL \
     UNION SELECT jobs.forked_from FROM jobs JOIN in_use ON jobs.id = in_use.id \
     WHERE jobs.forked_from IS NOT NULL)";

/// Has nothing more go on from a job that has ended and that nothing which has not ended goes on from.
pub(super) async fn retire(connection: &mut PgConnection, job: JobId) -> Result<bool, StoreError> {
    let statement = format!(
        "{IN_USE} UPDATE jobs SET retired = TRUE WHERE id = $1 AND finished_at IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM in_use WHERE in_use.id = $1)"
    );
    let retired = sqlx::query(AssertSqlSafe(statement)).bind(job.uuid()).execute(connection);
    Ok(retired.await?.rows_affected() > 0)
}

/// Removes a job that has ended, and all that refers to it.
pub(super) async fn forget(
    connection: &mut PgConnection,
    job: JobId,
) -> Result<Option<LogEnd>, StoreError> {
    const ENDED: &str = "SELECT id FROM jobs WHERE id = $1 AND finished_at IS NOT NULL";
    for table in ["events", "share_keys"] {
        let statement = format!("DELETE FROM {table} WHERE job_id IN ({ENDED})");
        sqlx::query(AssertSqlSafe(statement)).bind(job.uuid()).execute(&mut *connection).await?;
    }
    let forgotten = sqlx::query(
        "DELETE FROM jobs WHERE id = $1 AND finished_at IS NOT NULL RETURNING last_seq, last_hash",
    )
    .bind(job.uuid())
    .fetch_optional(connection)
    .await?;
    let Some(row) = forgotten else { return Ok(None) };
    let hash = LinkHash::from_bytes(row.try_get(1)?)
        .ok_or_else(|| StoreError::Corrupt(format!("the last hash of job {job} is no hash")))?;
    Ok(Some(LogEnd { seq: natural(row.try_get(0)?)?, hash: hash.hex() }))
}

fn list_text(numbers: &[u32]) -> String {
    // Numbers can always be written.
    serde_json::to_string(numbers).unwrap_or_default()
}

pub(super) fn read_row(row: &PgRow) -> Result<IndexRow, StoreError> {
    let id = JobId::from(row.try_get::<Uuid, _>(0)?);
    let hash: &[u8] = row.try_get(14)?;
    Ok(IndexRow {
        id,
        status: status(row.try_get(1)?)?,
        priority: row.try_get(2)?,
        name: row.try_get(3)?,
        title: row.try_get(4)?,
        scheduled_at: moment(row.try_get(5)?)?,
        started_at: row.try_get::<Option<i64>, _>(6)?.map(moment).transpose()?,
        finished_at: row.try_get::<Option<i64>, _>(7)?.map(moment).transpose()?,
        generation: Generation(small(row.try_get(8)?)?),
        cancel_requested: row.try_get(9)?,
        worker: row.try_get::<Option<String>, _>(10)?.map(WorkerId::new),
        lease_until: row.try_get::<Option<i64>, _>(11)?.map(moment).transpose()?,
        last_seq: natural(row.try_get(12)?)?,
        last_at: moment(row.try_get(13)?)?,
        last_hash: LinkHash::from_bytes(hash)
            .ok_or_else(|| corrupt(format_args!("the hash of job {id} is not a hash")))?,
        network_changed: false,
        steps_done: small(row.try_get(15)?)?,
        steps_total: row.try_get::<Option<i64>, _>(16)?.map(small).transpose()?,
        failed_steps: serde_json::from_str(row.try_get(17)?).map_err(corrupt)?,
        result_seq: row.try_get::<Option<i64>, _>(18)?.map(natural).transpose()?,
        owner: row.try_get(19)?,
        forked_from: row.try_get::<Option<Uuid>, _>(20)?.map(JobId::from),
        retired: row.try_get(21)?,
        left_to_newer: row.try_get::<Option<i32>, _>(22)?.is_some_and(|needs| needs > ABILITY),
    })
}

/// A text as PostgreSQL can keep it, which has no place for the character of number 0. The log has it.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}").into(),
        false => text.into(),
    }
}

pub(super) fn status(text: &str) -> Result<JobStatus, StoreError> {
    JobStatus::parse(text).ok_or_else(|| corrupt(format_args!("`{text}` is not a status")))
}

pub(super) fn moment(microseconds: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(microseconds).map_err(corrupt)
}

pub(super) fn natural(number: i64) -> Result<u64, StoreError> {
    number.try_into().map_err(corrupt)
}

pub(super) fn small(number: i64) -> Result<u32, StoreError> {
    number.try_into().map_err(corrupt)
}

/// A count as the database keeps it.
pub(super) fn integer(number: u64) -> Result<i64, StoreError> {
    number.try_into().map_err(corrupt)
}

fn corrupt(what: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(what.to_string())
}
