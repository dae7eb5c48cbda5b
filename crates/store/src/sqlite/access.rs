//! People in SQLite: tokens, owners, what was used, keys of share links.

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::SqliteStore;
use super::rows::{moment, natural};
use super::{audit, memories};
use crate::access::{Access, AccessChange, Role, ShareKey, Token, TokenHash, Usage};
use crate::audit::Wanted;
use crate::group::operation::Operation;
use crate::{LogEnd, Memory, StoreError};

pub(super) async fn change(
    connection: &mut SqliteConnection,
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
                "INSERT INTO tokens (id, parent, hash, user, role, name, created_at, expires_at)
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8
                 WHERE $2 IS NULL OR EXISTS (SELECT 1 FROM tokens WHERE id = $2)",
            )
            .bind(&token.id)
            .bind(&token.parent)
            .bind(hash.0.as_slice())
            .bind(&token.user)
            .bind(token.role.as_str())
            .bind(&token.name)
            .bind(token.created_at.as_microsecond())
            .bind(token.expires_at.map(Timestamp::as_microsecond))
        }
        AccessChange::RevokeToken { id } => {
            sqlx::query("DELETE FROM tokens WHERE id = $1 OR parent = $1").bind(id)
        }
        AccessChange::KeepShareKey(job, key) => sqlx::query(
            "INSERT INTO share_keys (job_id, key) SELECT id, $2 FROM jobs WHERE id = $1
             ON CONFLICT (job_id) DO UPDATE SET key = share_keys.key",
        )
        .bind(job.to_string())
        .bind(key.0.as_slice()),
        AccessChange::DropShareKey(job) => {
            sqlx::query("DELETE FROM share_keys WHERE job_id = $1").bind(job.to_string())
        }
    };
    Ok(query.execute(connection).await?.rows_affected() > 0)
}

#[async_trait]
impl Access for SqliteStore {
    async fn add_token(&self, token: Token, hash: TokenHash, by: &str) -> Result<(), StoreError> {
        let wanted = Wanted::by(by, AccessChange::AddToken(token, hash));
        self.ask(Operation::Access, wanted).await.map(drop)
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, parent, user, role, name, created_at, expires_at FROM tokens
             WHERE parent IS NULL ORDER BY created_at, id",
        )
        .fetch_all(&self.readers.short)
        .await?;
        rows.iter().map(token).collect()
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
        let row = sqlx::query(
            "SELECT id, parent, user, role, name, created_at, expires_at FROM tokens
             WHERE hash = $1 AND (expires_at IS NULL OR expires_at > $2)",
        )
        .bind(hash.0.as_slice())
        .bind(now.as_microsecond())
        .fetch_optional(&self.readers.short)
        .await?;
        row.as_ref().map(token).transpose()
    }

    async fn owner(&self, job: JobId) -> Result<Option<String>, StoreError> {
        let owner = sqlx::query_scalar("SELECT owner FROM jobs WHERE id = $1")
            .bind(job.to_string())
            .fetch_optional(&self.readers.short)
            .await?;
        owner.ok_or(StoreError::NotFound(job))
    }

    async fn usage(
        &self,
        owner: &str,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Usage, StoreError> {
        // A job that was scheduled since then has not ended, or ended since then too.
        let row = sqlx::query(
            "SELECT COUNT(*) FILTER (WHERE finished_at IS NULL),
                    COUNT(*) FILTER (WHERE scheduled_at >= $2),
                    COALESCE(SUM(MAX(0, COALESCE(finished_at, $3) - MAX(started_at, $2)))
                        FILTER (WHERE started_at IS NOT NULL), 0)
             FROM jobs WHERE owner = $1 AND (finished_at IS NULL OR finished_at >= $2)",
        )
        .bind(owner)
        .bind(since.as_microsecond())
        .bind(now.as_microsecond())
        .fetch_one(&self.readers.short)
        .await?;
        Ok(Usage {
            unfinished: natural(row.try_get(0)?)?,
            scheduled: natural(row.try_get(1)?)?,
            running_ms: natural(row.try_get(2)?)? / 1000,
        })
    }

    async fn share_key(&self, job: JobId) -> Result<Option<ShareKey>, StoreError> {
        let key: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT key FROM share_keys WHERE job_id = $1")
                .bind(job.to_string())
                .fetch_optional(&self.readers.short)
                .await?;
        let wrong = |_| StoreError::Corrupt(format!("the share key of job {job} is no key"));
        key.map(|key| key.try_into().map(ShareKey).map_err(wrong)).transpose()
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
        memories::one(&self.readers.short, id).await
    }

    async fn audit_after(&self, after: u64, limit: u32) -> Result<Vec<String>, StoreError> {
        audit::lines_after(&self.readers.short, after, limit).await
    }

    async fn end_of_audit(&self) -> Result<LogEnd, StoreError> {
        audit::end(&self.readers.short).await.map(Into::into)
    }
}

fn token(row: &SqliteRow) -> Result<Token, StoreError> {
    let role: &str = row.try_get(3)?;
    Ok(Token {
        id: row.try_get(0)?,
        parent: row.try_get(1)?,
        user: row.try_get(2)?,
        role: Role::parse(role)
            .ok_or_else(|| StoreError::Corrupt(format!("`{role}` is not a role")))?,
        name: row.try_get(4)?,
        created_at: moment(row.try_get(5)?)?,
        expires_at: row.try_get::<Option<i64>, _>(6)?.map(moment).transpose()?,
    })
}
