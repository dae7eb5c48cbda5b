//! The audit log in PostgreSQL.

use jiff::Timestamp;
use sqlx::{PgConnection, PgPool, Row as _};

use super::rows::{integer, natural};
use crate::StoreError;
use crate::audit::{AuditEnd, Done};

/// Adds what this transaction did. The last thing before the commit: whoever waits here for another
/// process holds nothing that it could still want.
pub(super) async fn append(
    connection: &mut PgConnection,
    done: Vec<Done>,
    now: Timestamp,
) -> Result<(), StoreError> {
    if done.is_empty() {
        return Ok(());
    }
    let row = sqlx::query("SELECT seq, hash FROM audit_end FOR UPDATE")
        .fetch_one(&mut *connection)
        .await?;
    let mut end = AuditEnd::read(natural(row.try_get(0)?)?, row.try_get(1)?)?;
    for (seq, line) in end.extend(done, now) {
        sqlx::query("INSERT INTO audit (seq, line) VALUES ($1, $2)")
            .bind(integer(seq)?)
            .bind(line)
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query("UPDATE audit_end SET seq = $1, hash = $2")
        .bind(integer(end.seq)?)
        .bind(end.hash.as_bytes().as_slice())
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn end(readers: &PgPool) -> Result<AuditEnd, StoreError> {
    let row = sqlx::query("SELECT seq, hash FROM audit_end").fetch_one(readers).await?;
    AuditEnd::read(natural(row.try_get(0)?)?, row.try_get(1)?)
}

pub(super) async fn lines_after(
    readers: &PgPool,
    after: u64,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let lines = sqlx::query_scalar("SELECT line FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2")
        .bind(integer(after)?)
        .bind(i64::from(limit))
        .fetch_all(readers)
        .await?;
    Ok(lines)
}
