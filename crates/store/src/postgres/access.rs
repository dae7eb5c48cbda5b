//! People in PostgreSQL: tokens, owners, what was used, keys of share links.

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row as _};

use super::rows::{moment, natural, text};
use super::{PostgresStore, audit, memories, patiently};
use crate::access::{Access, AccessChange, Role, ShareKey, Token, TokenHash, Usage};
use crate::audit::Wanted;
use crate::group::operation::Operation;
use crate::{LogEnd, Memory, StoreError};

pub(super) async fn change(
    connection: &mut PgConnection,
    change: &AccessChange,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let query = match change {
        AccessChange::AddToken(token, hash) => {
            // Sessions that have run out are of no use to anybody; a token is still listed.
            sqlx::query("DELETE FROM tokens WHERE parent IS NOT NULL AND expires_at <= $1")
                .bind(now.as_microsecond())
                .execute(&mut *connection)
                .await?;
            // A session of a token that was revoked in this moment must not outlive it.
            sqlx::query(
                "INSERT INTO tokens (id, parent, hash, holder, role, name, created_at, expires_at)
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8
                 WHERE $2::text IS NULL OR EXISTS (SELECT 1 FROM tokens WHERE id = $2 FOR SHARE)",
            )
            .bind(text(&token.id))
            .bind(token.parent.as_deref().map(text))
            .bind(hash.0.as_slice())
            .bind(text(&token.user))
            .bind(token.role.as_str())
            .bind(text(&token.name))
            .bind(token.created_at.as_microsecond())
            .bind(token.expires_at.map(Timestamp::as_microsecond))
        }
        AccessChange::RevokeToken { id } => {
            sqlx::query("DELETE FROM tokens WHERE id = $1 OR parent = $1").bind(text(id))
        }
        AccessChange::KeepShareKey(job, key) => sqlx::query(
            "INSERT INTO share_keys (job_id, key) SELECT id, $2::bytea FROM jobs WHERE id = $1
             ON CONFLICT (job_id) DO UPDATE SET key = share_keys.key",
        )
        .bind(job.uuid())
        .bind(key.0.as_slice()),
        AccessChange::DropShareKey(job) => {
            sqlx::query("DELETE FROM share_keys WHERE job_id = $1").bind(job.uuid())
        }
    };
    Ok(query.execute(connection).await?.rows_affected() > 0)
}

#[async_trait]
impl Access for PostgresStore {
    async fn add_token(&self, token: Token, hash: TokenHash, by: &str) -> Result<(), StoreError> {
        let wanted = Wanted::by(by, AccessChange::AddToken(token, hash));
        self.ask(Operation::Access, wanted).await.map(drop)
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let read = async || -> Result<Vec<Token>, StoreError> {
            let rows = sqlx::query(
                "SELECT id, parent, holder, role, name, created_at, expires_at FROM tokens \
                 WHERE parent IS NULL ORDER BY created_at, id",
            )
            .fetch_all(&self.readers.short)
            .await?;
            rows.iter().filter_map(|row| token(row).transpose()).collect()
        };
        patiently(read).await
    }

    async fn revoke_token(&self, id: &str, by: &str) -> Result<bool, StoreError> {
        let wanted = Wanted::by(by, AccessChange::RevokeToken { id: id.to_owned() });
        self.ask(Operation::Access, wanted).await
    }

    async fn find_token(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<Token>, StoreError> {
        patiently(|| find_token(&self.readers.short, hash, now)).await
    }

    async fn owner(&self, job: JobId) -> Result<Option<String>, StoreError> {
        patiently(|| owner(&self.readers.short, job)).await
    }

    async fn usage(
        &self,
        owner: &str,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Usage, StoreError> {
        patiently(|| usage(&self.readers.short, owner, since, now)).await
    }

    async fn share_key(&self, job: JobId) -> Result<Option<ShareKey>, StoreError> {
        patiently(|| share_key(&self.readers.short, job)).await
    }

    async fn keep_share_key(
        &self,
        job: JobId,
        key: ShareKey,
        by: &str,
    ) -> Result<ShareKey, StoreError> {
        let wanted = Wanted::by(by, AccessChange::KeepShareKey(job, key));
        self.ask(Operation::Access, wanted).await?;
        self.share_key(job).await?.ok_or(StoreError::NotFound(job))
    }

    async fn drop_share_key(&self, job: JobId, by: &str) -> Result<(), StoreError> {
        let wanted = Wanted::by(by, AccessChange::DropShareKey(job));
        self.ask(Operation::Access, wanted).await.map(drop)
    }

    async fn memory(&self, id: i64) -> Result<Option<Memory>, StoreError> {
        patiently(|| memories::one(&self.readers.short, id)).await
    }

    async fn audit_after(&self, after: u64, limit: u32) -> Result<Vec<String>, StoreError> {
        patiently(|| audit::lines_after(&self.readers.short, after, limit)).await
    }

    async fn end_of_audit(&self) -> Result<LogEnd, StoreError> {
        patiently(|| audit::end(&self.readers.short)).await.map(Into::into)
    }
}

async fn find_token(
    readers: &PgPool,
    hash: &TokenHash,
    now: Timestamp,
) -> Result<Option<Token>, StoreError> {
    let row = sqlx::query(
        "SELECT id, parent, holder, role, name, created_at, expires_at FROM tokens \
         WHERE hash = $1 AND (expires_at IS NULL OR expires_at > $2)",
    )
    .bind(hash.0.as_slice())
    .bind(now.as_microsecond())
    .fetch_optional(readers)
    .await?;
    row.as_ref().map_or(Ok(None), token)
}

async fn owner(readers: &PgPool, job: JobId) -> Result<Option<String>, StoreError> {
    let owner: Option<Option<String>> = sqlx::query_scalar("SELECT owner FROM jobs WHERE id = $1")
        .bind(job.uuid())
        .fetch_optional(readers)
        .await?;
    owner.ok_or(StoreError::NotFound(job))
}

async fn usage(
    readers: &PgPool,
    owner: &str,
    since: Timestamp,
    now: Timestamp,
) -> Result<Usage, StoreError> {
    // A job that was scheduled since then has not ended, or ended since then too.
    let row = sqlx::query(
        "SELECT COUNT(*) FILTER (WHERE finished_at IS NULL), \
                COUNT(*) FILTER (WHERE scheduled_at >= $2), \
                COALESCE(SUM(GREATEST(0, COALESCE(finished_at, $3) - GREATEST(started_at, $2))) \
                    FILTER (WHERE started_at IS NOT NULL), 0)::bigint \
         FROM jobs WHERE owner = $1 AND (finished_at IS NULL OR finished_at >= $2)",
    )
    .bind(text(owner))
    .bind(since.as_microsecond())
    .bind(now.as_microsecond())
    .fetch_one(readers)
    .await?;
    Ok(Usage {
        unfinished: natural(row.try_get(0)?)?,
        scheduled: natural(row.try_get(1)?)?,
        running_ms: natural(row.try_get(2)?)? / 1000,
    })
}

async fn share_key(readers: &PgPool, job: JobId) -> Result<Option<ShareKey>, StoreError> {
    let key: Option<Vec<u8>> = sqlx::query_scalar("SELECT key FROM share_keys WHERE job_id = $1")
        .bind(job.uuid())
        .fetch_optional(readers)
        .await?;
    let wrong = |_| StoreError::Corrupt(format!("the share key of job {job} is no key"));
    key.map(|key| key.try_into().map(ShareKey).map_err(wrong)).transpose()
}

/// `None` for a token whose role only a newer program knows: what it may do is known there alone, so here it
/// opens nothing.
fn token(row: &PgRow) -> Result<Option<Token>, StoreError> {
    let Some(role) = Role::parse(row.try_get(3)?) else { return Ok(None) };
    Ok(Some(Token {
        id: row.try_get(0)?,
        parent: row.try_get(1)?,
        user: row.try_get(2)?,
        role,
        name: row.try_get(4)?,
        created_at: moment(row.try_get(5)?)?,
        expires_at: row.try_get::<Option<i64>, _>(6)?.map(moment).transpose()?,
    }))
}
