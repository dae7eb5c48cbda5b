//! Which workers there are, where they can be asked, and what they hold.

use bellglass_protocol::id::{Generation, JobId, WorkerId};
use jiff::Timestamp;
use sqlx::PgPool;
use uuid::Uuid;

use super::rows::{ABILITY, text};
use crate::StoreError;

/// What a newer program of this name began and this one cannot carry out is not among them.
pub(super) async fn held_by(readers: &PgPool, worker: &WorkerId) -> Result<Vec<JobId>, StoreError> {
    let jobs: Vec<Uuid> = sqlx::query_scalar(
        "SELECT id FROM jobs WHERE status IN ('running', 'paused') AND worker = $1 \
         AND coalesce(needs, 0) <= $2",
    )
    .bind(text(worker.as_str()))
    .bind(ABILITY)
    .fetch_all(readers)
    .await?;
    Ok(jobs.into_iter().map(JobId::from).collect())
}

/// Says that the job needs more than this program is able to do. The writer never writes this column, so the two
/// do not undo each other's work; asked twice, it is the same.
pub(super) async fn leave_to_newer(
    asides: &PgPool,
    job: JobId,
    generation: Generation,
) -> Result<(), StoreError> {
    let left = sqlx::query(
        "UPDATE jobs SET needs = greatest(coalesce(needs, 0), $3) \
         WHERE id = $1 AND generation = $2",
    )
    .bind(job.uuid())
    .bind(i64::from(generation.0))
    .bind(ABILITY + 1)
    .execute(asides)
    .await?;
    if left.rows_affected() == 0 { Err(StoreError::StaleGeneration) } else { Ok(()) }
}

pub(super) async fn announce(
    asides: &PgPool,
    worker: &WorkerId,
    address: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO workers (name, address, seen_at) VALUES ($1, $2, $3) \
         ON CONFLICT (name) DO UPDATE SET address = excluded.address, seen_at = excluded.seen_at",
    )
    .bind(text(worker.as_str()))
    .bind(address.map(text))
    .bind(now.as_microsecond())
    .execute(asides)
    .await?;
    Ok(())
}

pub(super) async fn address_of_holder(
    readers: &PgPool,
    job: JobId,
) -> Result<Option<String>, StoreError> {
    let address: Option<Option<String>> = sqlx::query_scalar(
        "SELECT address FROM jobs JOIN workers ON workers.name = jobs.worker WHERE jobs.id = $1",
    )
    .bind(job.uuid())
    .fetch_optional(readers)
    .await?;
    Ok(address.flatten())
}
