//! The SQL of the writer: reads and writes rows of the index and lines of the log, many at once.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use bellglass_protocol::chain::LinkHash;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::view::JobStatus;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::group::draft::Line;
use crate::group::operation::Release;
use crate::index::IndexRow;
use crate::{LogEnd, StoreError};

/// Writes rows of the index, whether they are new or not.
pub(super) async fn write_jobs(
    connection: &mut SqliteConnection,
    rows: &[&IndexRow],
) -> Result<(), StoreError> {
    static STATEMENTS: LazyLock<ManyRows> = LazyLock::new(|| {
        ManyRows::new(
            "INSERT INTO jobs (id, status, priority, name, title, scheduled_at, started_at, \
             finished_at, generation, cancel_requested, worker, lease_until, last_seq, last_at, \
             last_hash, steps_done, steps_total, failed_steps, result_seq, owner, forked_from) \
             VALUES ",
            "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            " ON CONFLICT (id) DO UPDATE SET status = excluded.status, \
             started_at = excluded.started_at, finished_at = excluded.finished_at, \
             generation = excluded.generation, cancel_requested = excluded.cancel_requested, \
             worker = excluded.worker, lease_until = excluded.lease_until, \
             last_seq = excluded.last_seq, last_at = excluded.last_at, \
             last_hash = excluded.last_hash, steps_done = excluded.steps_done, \
             failed_steps = excluded.failed_steps, result_seq = excluded.result_seq",
        )
    });
    let mut rest = rows;
    while let Some((statement, count)) = STATEMENTS.for_rows(rest.len()) {
        let (rows, more) = rest.split_at(count);
        rest = more;
        let mut query = sqlx::query(AssertSqlSafe(statement));
        for row in rows {
            query = query
                .bind(row.id.to_string())
                .bind(row.status.as_str())
                .bind(row.priority)
                .bind(row.name.as_deref())
                .bind(row.title.as_str())
                .bind(row.scheduled_at.as_microsecond())
                .bind(row.started_at.map(Timestamp::as_microsecond))
                .bind(row.finished_at.map(Timestamp::as_microsecond))
                .bind(row.generation.0)
                .bind(row.cancel_requested)
                .bind(row.worker.as_ref().map(WorkerId::as_str))
                .bind(row.lease_until.map(Timestamp::as_microsecond))
                .bind(integer(row.last_seq)?)
                .bind(row.last_at.as_microsecond())
                .bind(row.last_hash.as_bytes().as_slice())
                .bind(row.steps_done)
                .bind(row.steps_total)
                .bind(list_text(&row.failed_steps))
                .bind(row.result_seq.map(integer).transpose()?)
                .bind(row.owner.as_deref())
                .bind(row.forked_from.map(|job| job.to_string()));
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Adds lines to the log. A line that exists already is an error: the log is append-only.
pub(super) async fn write_lines(
    connection: &mut SqliteConnection,
    lines: Vec<Line>,
) -> Result<(), StoreError> {
    static STATEMENTS: LazyLock<ManyRows> = LazyLock::new(|| {
        ManyRows::new("INSERT INTO events (job_id, seq, line) VALUES ", "(?,?,?)", "")
    });
    let mut rest = lines.into_iter();
    while let Some((statement, count)) = STATEMENTS.for_rows(rest.len()) {
        let mut query = sqlx::query(AssertSqlSafe(statement));
        for line in rest.by_ref().take(count) {
            query = query.bind(line.job.to_string()).bind(integer(line.seq)?).bind(line.text);
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

macro_rules! select_jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, status, priority, name, title, scheduled_at, started_at, finished_at, \
             generation, cancel_requested, worker, lease_until, last_seq, last_at, last_hash, \
             steps_done, steps_total, failed_steps, result_seq, owner, forked_from, retired \
             FROM jobs ",
            $rest
        )
    };
}

/// The rows of these jobs, as far as they exist.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    jobs: &[JobId],
) -> Result<Vec<IndexRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query(select_jobs!("WHERE id IN (SELECT value FROM json_each($1))"))
        .bind(list_of(jobs))
        .fetch_all(connection)
        .await?
        .iter()
        .map(read_row)
        .collect()
}

/// One parameter for any number of jobs; ids need no escaping.
fn list_of(jobs: &[JobId]) -> String {
    let mut list = String::with_capacity(2 + 39 * jobs.len());
    list.push('[');
    for (n, job) in jobs.iter().enumerate() {
        let separator = if n > 0 { "," } else { "" };
        let _ = write!(list, "{separator}\"{job}\"");
    }
    list.push(']');
    list
}

/// `INDEXED BY`, because the planner has no statistics to tell it that a claim should not sort all
/// the jobs that wait.
pub(super) const WAITING: &str = select_jobs!(
    "INDEXED BY jobs_waiting WHERE status = 'scheduled' ORDER BY priority DESC, id LIMIT $1"
);
pub(super) const RUN_OUT: &str = select_jobs!(
    "INDEXED BY jobs_leased WHERE status = 'running' AND lease_until <= $1 \
     ORDER BY priority DESC, id LIMIT $2"
);

/// Paused jobs whose lease has run out, too: whoever holds one keeps its sandbox. There are few.
pub(super) const PAUSED_RUN_OUT: &str = select_jobs!(
    "WHERE status = 'paused' AND lease_until <= $1 ORDER BY priority DESC, id LIMIT $2"
);

/// The best jobs that nobody holds, best first: waiting ones, and those whose lease has run out.
pub(super) async fn claimable(
    connection: &mut SqliteConnection,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<IndexRow>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = sqlx::query(WAITING).bind(limit).fetch_all(&mut *connection).await?;
    for run_out in [RUN_OUT, PAUSED_RUN_OUT] {
        let query = sqlx::query(run_out).bind(now.as_microsecond()).bind(limit);
        rows.extend(query.fetch_all(&mut *connection).await?);
    }
    let mut best: Vec<_> = rows.iter().map(read_row).collect::<Result<_, _>>()?;
    best.sort_by_key(|row| (std::cmp::Reverse(row.priority), row.id));
    Ok(best)
}

/// Ends all leases of a worker.
pub(super) async fn release(
    connection: &mut SqliteConnection,
    Release { worker, kept }: &Release,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE jobs SET lease_until = 0 WHERE status IN ('running', 'paused') AND worker = $1 \
         AND id NOT IN (SELECT value FROM json_each($2))",
    )
    .bind(worker.as_str())
    .bind(list_of(kept))
    .execute(connection)
    .await?;
    Ok(())
}

/// The jobs that those which have not ended go on from, and what these went on from, and so on.
pub(super) const IN_USE: &str = "WITH RECURSIVE in_use (id) AS ( \
     SELECT forked_from FROM jobs WHERE finished_at IS NULL AND forked_from IS NOT NULL \
     UNION SELECT jobs.forked_from FROM jobs JOIN in_use ON jobs.id = in_use.id \
     WHERE jobs.forked_from IS NOT NULL)";

/// Has nothing more go on from a job that has ended and that nothing which has not ended goes on from.
pub(super) async fn retire(
    connection: &mut SqliteConnection,
    job: JobId,
) -> Result<bool, StoreError> {
    let statement = format!(
        "{IN_USE} UPDATE jobs SET retired = TRUE WHERE id = $1 AND finished_at IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM in_use WHERE in_use.id = $1)"
    );
    let retired = sqlx::query(AssertSqlSafe(statement)).bind(job.to_string()).execute(connection);
    Ok(retired.await?.rows_affected() > 0)
}

/// Removes a job that has ended, and all that refers to it.
pub(super) async fn forget(
    connection: &mut SqliteConnection,
    job: JobId,
) -> Result<Option<LogEnd>, StoreError> {
    const ENDED: &str = "SELECT id FROM jobs WHERE id = $1 AND finished_at IS NOT NULL";
    for table in ["events", "share_keys"] {
        let statement = format!("DELETE FROM {table} WHERE job_id IN ({ENDED})");
        sqlx::query(AssertSqlSafe(statement))
            .bind(job.to_string())
            .execute(&mut *connection)
            .await?;
    }
    let forgotten = sqlx::query(
        "DELETE FROM jobs WHERE id = $1 AND finished_at IS NOT NULL RETURNING last_seq, last_hash",
    )
    .bind(job.to_string())
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

pub(super) const ONE: &str = select_jobs!("WHERE id = $1");

pub(super) fn read_row(row: &SqliteRow) -> Result<IndexRow, StoreError> {
    let id = job_id(row.try_get(0)?)?;
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
        generation: Generation(row.try_get(8)?),
        cancel_requested: row.try_get(9)?,
        worker: row.try_get::<Option<String>, _>(10)?.map(WorkerId::new),
        lease_until: row.try_get::<Option<i64>, _>(11)?.map(moment).transpose()?,
        last_seq: natural(row.try_get(12)?)?,
        last_at: moment(row.try_get(13)?)?,
        last_hash: LinkHash::from_bytes(hash)
            .ok_or_else(|| corrupt(format_args!("the hash of job {id} is not a hash")))?,
        network_changed: false,
        steps_done: row.try_get(15)?,
        steps_total: row.try_get(16)?,
        failed_steps: serde_json::from_str(row.try_get(17)?).map_err(corrupt)?,
        result_seq: row.try_get::<Option<i64>, _>(18)?.map(natural).transpose()?,
        owner: row.try_get(19)?,
        forked_from: row.try_get::<Option<&str>, _>(20)?.map(job_id).transpose()?,
        retired: row.try_get(21)?,
        // A newer program has the file for itself.
        left_to_newer: false,
    })
}

pub(super) fn job_id(text: &str) -> Result<JobId, StoreError> {
    text.parse().map_err(corrupt)
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

/// A count as the database keeps it.
pub(super) fn integer(number: u64) -> Result<i64, StoreError> {
    number.try_into().map_err(corrupt)
}

fn corrupt(what: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(what.to_string())
}

/// One statement in many sizes, each prepared once, so that most groups take only two of them:
/// every statement is a trip to the connection's thread and back.
struct ManyRows(Vec<(usize, Arc<str>)>);

impl ManyRows {
    fn new(head: &str, row: &str, tail: &str) -> Self {
        let statement = |rows: usize| format!("{head}{}{tail}", vec![row; rows].join(",")).into();
        let sizes = (1..16).chain((1..=8).map(|n| 16 * n)).rev();
        Self(sizes.map(|rows| (rows, statement(rows))).collect())
    }

    /// The largest statement that `rows` rows fill; `None` when there are none left.
    fn for_rows(&self, rows: usize) -> Option<(Arc<str>, usize)> {
        let (size, statement) = self.0.iter().find(|(size, _)| *size <= rows)?;
        Some((statement.clone(), *size))
    }
}
