//! What readers ask: events, one job, lists, counts. Never waits for the writer.

use bellglass_protocol::chain::{LinkHash, SealedEvent};
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::{JobStatus, JobView};
use futures::TryStreamExt as _;
use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Postgres, QueryBuilder, Row as _};
use uuid::Uuid;

use super::rows::{self, IN_USE, integer, moment, natural, small, status, text};
use crate::line::read_line;
use crate::reading::{self, contains_pattern};
use crate::title::SHORTENED;
use crate::{
    Change, JobFilter, JobOutline, JobPage, JobSummary, LogEnd, PAGE_BYTES, StoreError,
    is_recording,
};

/// Folds a job from its log, which is streamed: in memory there is one line at a time, and what
/// the view keeps of it. How much that can be is bounded by who writes the log.
pub(super) async fn job(readers: &PgPool, job: JobId) -> Result<JobView, StoreError> {
    fold(readers, job, |view, sealed| view.apply(&sealed.event)).await
}

/// Folds a job without the texts of its steps, so a long log costs time but no memory. Says also
/// how long the lines are that record something.
pub(super) async fn brief(readers: &PgPool, job: JobId) -> Result<(JobView, u64), StoreError> {
    let mut recorded = 0;
    let view = fold(readers, job, |view, sealed| {
        view.apply_briefly(&sealed.event);
        if is_recording(&sealed.event.body) {
            recorded += sealed.line.len() as u64;
        }
    });
    let view = view.await?;
    Ok((view, recorded))
}

async fn fold(
    readers: &PgPool,
    job: JobId,
    mut take_in: impl FnMut(&mut JobView, &SealedEvent),
) -> Result<JobView, StoreError> {
    let mut lines =
        sqlx::query_scalar::<_, String>("SELECT line FROM events WHERE job_id = $1 ORDER BY seq")
            .bind(job.uuid())
            .fetch(readers);
    let first = lines.try_next().await?.ok_or(StoreError::NotFound(job))?;
    let mut view = JobView::begin(&read_line(job, first)?.event).ok_or_else(|| {
        StoreError::Corrupt(format!("the log of job {job} does not begin with `scheduled`"))
    })?;
    while let Some(line) = lines.try_next().await? {
        take_in(&mut view, &read_line(job, line)?);
    }
    Ok(view)
}

/// Answers from the job's row and two lines of its log at the most, beside those that a newer program put behind
/// its end.
pub(super) async fn outline(readers: &PgPool, job: JobId) -> Result<JobOutline, StoreError> {
    let row = sqlx::query(rows::ONE).bind(job.uuid()).fetch_optional(readers).await?;
    let row = rows::read_row(&row.ok_or(StoreError::NotFound(job))?)?;
    let result = match row.result_seq {
        Some(seq) => Some(event(readers, job, seq).await?),
        None => None,
    };
    let end = match row.status.is_terminal() {
        true => Some(end(readers, job, row.last_seq).await?),
        false => None,
    };
    reading::outline(row, result, end)
}

/// The end of a job that has ended: its last event, but for what only a newer program could write after it. That
/// is read line by line, since there is hardly ever any.
async fn end(readers: &PgPool, job: JobId, last: u64) -> Result<EventBody, StoreError> {
    let mut seq = last;
    loop {
        match event(readers, job, seq).await? {
            EventBody::Unknown(_) if seq > 1 => seq -= 1,
            end => return Ok(end),
        }
    }
}

async fn event(readers: &PgPool, job: JobId, seq: u64) -> Result<EventBody, StoreError> {
    let line: Option<String> =
        sqlx::query_scalar("SELECT line FROM events WHERE job_id = $1 AND seq = $2")
            .bind(job.uuid())
            .bind(integer(seq)?)
            .fetch_optional(readers)
            .await?;
    let line = line.ok_or_else(|| StoreError::Corrupt(format!("job {job} has no event {seq}")))?;
    Ok(read_line(job, line)?.event.body)
}

pub(super) async fn events_after(
    readers: &PgPool,
    job: JobId,
    after: u64,
    limit: u32,
) -> Result<Vec<SealedEvent>, StoreError> {
    let lines = lines_after(readers, job, after, limit).await?;
    lines.into_iter().map(|line| read_line(job, line)).collect()
}

pub(super) async fn ended_before(
    readers: &PgPool,
    moment: Timestamp,
    skip: u32,
    limit: u32,
) -> Result<Vec<JobId>, StoreError> {
    let statement = format!(
        "{IN_USE} SELECT id FROM jobs WHERE finished_at IS NOT NULL AND finished_at < $1 \
         AND NOT EXISTS (SELECT 1 FROM in_use WHERE in_use.id = jobs.id) \
         ORDER BY finished_at, id LIMIT $2 OFFSET $3"
    );
    let jobs: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(moment.as_microsecond())
        .bind(i64::from(limit))
        .bind(i64::from(skip))
        .fetch_all(readers)
        .await?;
    Ok(jobs.into_iter().map(JobId::from).collect())
}

pub(super) async fn end_of_log(readers: &PgPool, job: JobId) -> Result<LogEnd, StoreError> {
    let (seq, hash): (i64, Vec<u8>) =
        sqlx::query_as("SELECT last_seq, last_hash FROM jobs WHERE id = $1")
            .bind(job.uuid())
            .fetch_optional(readers)
            .await?
            .ok_or(StoreError::NotFound(job))?;
    let hash = LinkHash::from_bytes(&hash)
        .ok_or_else(|| StoreError::Corrupt(format!("the hash of job {job} is not a hash")))?;
    Ok(LogEnd { seq: natural(seq)?, hash: hash.hex() })
}

pub(super) async fn lines_after(
    readers: &PgPool,
    job: JobId,
    after: u64,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    // Bounded by the database already: it would send all the rest of a page that is left early.
    // Of a long line there is a page all the same, or nobody could read on.
    let page: Vec<String> = sqlx::query_scalar(
        "SELECT line FROM ( \
             SELECT line, seq, sum(octet_length(line)) OVER (ORDER BY seq) AS bytes FROM events \
             WHERE job_id = $1 AND seq > $2 ORDER BY seq LIMIT $3 \
         ) AS page WHERE bytes <= $4 OR bytes = octet_length(line) ORDER BY seq",
    )
    .bind(job.uuid())
    // Nothing can come after a number that the database cannot even hold.
    .bind(integer(after).unwrap_or(i64::MAX))
    .bind(i64::from(limit))
    .bind(i64::try_from(PAGE_BYTES).unwrap_or(i64::MAX))
    .fetch_all(readers)
    .await?;
    if page.is_empty() {
        // An end that was reached and a job that never was look the same up to here.
        sqlx::query("SELECT 1 FROM jobs WHERE id = $1")
            .bind(job.uuid())
            .fetch_optional(readers)
            .await?
            .ok_or(StoreError::NotFound(job))?;
    }
    Ok(page)
}

pub(super) async fn jobs(readers: &PgPool, filter: &JobFilter) -> Result<JobPage, StoreError> {
    let mut query = QueryBuilder::<Postgres>::new(
        "SELECT id, name, title, status, priority, scheduled_at, started_at, finished_at, \
         steps_done, steps_total, owner FROM jobs WHERE TRUE",
    );
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
    if let Some(owner) = &filter.owner {
        query.push(" AND owner = ").push_bind(text(owner).into_owned());
    }
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before.uuid());
    }
    if let Some(text) = &filter.search {
        push_search(&mut query, text);
    }
    // One more than asked for tells whether there are more.
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
    let rows = query.build().fetch_all(readers).await?;
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    let jobs = rows.iter().take(limit).map(read_summary).collect::<Result<_, _>>()?;
    Ok(JobPage { jobs, more })
}

/// Looks for the text in what the list shows; where the title is shortened, in the whole task.
fn push_search(query: &mut QueryBuilder<Postgres>, wanted: &str) {
    let pattern = contains_pattern(&text(wanted));
    query.push(" AND (name ILIKE ").push_bind(pattern.clone());
    query.push(" OR title ILIKE ").push_bind(pattern.clone());
    query.push(" OR (title LIKE ").push_bind(format!("%{SHORTENED}"));
    // PostgreSQL cannot take a character of number 0 out of JSON.
    query.push(
        r" AND (SELECT CASE WHEN position('\u0000' IN line) = 0 THEN line::json #>> '{spec,task}' END FROM events WHERE job_id = jobs.id AND seq = 1) ILIKE ",
    );
    query.push_bind(pattern).push("))");
}

fn read_summary(row: &PgRow) -> Result<JobSummary, StoreError> {
    Ok(JobSummary {
        id: row.try_get::<Uuid, _>(0)?.into(),
        name: row.try_get(1)?,
        title: row.try_get(2)?,
        status: status(row.try_get(3)?)?,
        priority: row.try_get(4)?,
        scheduled_at: moment(row.try_get(5)?)?,
        started_at: row.try_get::<Option<i64>, _>(6)?.map(moment).transpose()?,
        finished_at: row.try_get::<Option<i64>, _>(7)?.map(moment).transpose()?,
        steps_done: small(row.try_get(8)?)?,
        steps_total: row.try_get::<Option<i64>, _>(9)?.map(small).transpose()?,
        owner: row.try_get(10)?,
    })
}

/// Every status is in the answer, those that no job has with 0.
pub(super) async fn count_by_status(readers: &PgPool) -> Result<Vec<(JobStatus, u64)>, StoreError> {
    let mut counts = JobStatus::ALL.map(|status| (status, 0));
    let rows =
        sqlx::query("SELECT status, COUNT(*) FROM jobs GROUP BY status").fetch_all(readers).await?;
    for row in &rows {
        let counted = status(row.try_get(0)?)?;
        for (status, count) in &mut counts {
            if *status == counted {
                *count = natural(row.try_get(1)?)?;
            }
        }
    }
    Ok(counts.into())
}

/// Every job that may have changed since a moment, as news.
pub(super) async fn changed_since(
    readers: &PgPool,
    since: Timestamp,
) -> Result<Vec<Change>, StoreError> {
    let mut rows = sqlx::query(rows::CHANGED_SINCE).bind(since.as_microsecond()).fetch(readers);
    let mut changes = Vec::new();
    while let Some(row) = rows.try_next().await? {
        // Whether the network changed is not in the row, so it may have.
        changes.push(Change { network_changed: true, ..rows::read_row(&row)?.change() });
    }
    Ok(changes)
}
