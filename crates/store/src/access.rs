//! Who may use the server, whose the jobs are, and how much a user has used: what is kept about it.
//!
//! Knows neither HTTP nor how a token looks: it keeps hashes, and keys that others made. Who changes
//! something stands in the audit log, which is written together with the change.

use std::fmt;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;

use crate::{LogEnd, Memory, StoreError};

/// The part of a store that knows people.
#[async_trait]
pub trait Access: Send + Sync {
    /// Keeps a token. Durable when this returns.
    async fn add_token(&self, token: Token, hash: TokenHash, by: &str) -> Result<(), StoreError>;

    /// The tokens that were given to people, oldest first, also those that have run out; no sessions.
    async fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// Takes a token away, and with it every session that was begun with it. `false` if there is none.
    async fn revoke_token(&self, id: &str, by: &str) -> Result<bool, StoreError>;

    /// The token or session of this hash, if it still holds at this moment.
    async fn find_token(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<Token>, StoreError>;

    /// Whose job it is; `None` if it is nobody's. [`StoreError::NotFound`] if there is no such job.
    async fn owner(&self, job: JobId) -> Result<Option<String>, StoreError>;

    /// What a user has used of the server since a moment.
    async fn usage(
        &self,
        owner: &str,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Usage, StoreError>;

    /// What the share links of a job are sealed with, if there may be any.
    async fn share_key(&self, job: JobId) -> Result<Option<ShareKey>, StoreError>;

    /// Gives the job this key if it has none yet, and returns the one that it then has.
    async fn keep_share_key(
        &self,
        job: JobId,
        key: ShareKey,
        by: &str,
    ) -> Result<ShareKey, StoreError>;

    /// Takes the key away: no link that was sealed with it opens anything from now on.
    async fn drop_share_key(&self, job: JobId, by: &str) -> Result<(), StoreError>;

    /// One memory, whoever it belongs to.
    async fn memory(&self, id: i64) -> Result<Option<Memory>, StoreError>;

    /// Lines of the audit log after number `after`, at most `limit`; none only at the end.
    async fn audit_after(&self, after: u64, limit: u32) -> Result<Vec<String>, StoreError>;

    /// Where the audit log ends, which is kept beside its lines.
    async fn end_of_audit(&self) -> Result<LogEnd, StoreError>;
}

/// What is known about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// A short name by which it is listed and revoked. No secret.
    pub id: String,
    /// The token that a browser's session was begun with; none for a token that somebody was given.
    pub parent: Option<String>,
    /// Whose token it is, and whose the jobs are that are scheduled with it.
    pub user: String,
    pub role: Role,
    /// What its owner calls it.
    pub name: String,
    pub created_at: Timestamp,
    /// `None` if it holds until it is revoked.
    pub expires_at: Option<Timestamp>,
}

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything, with everybody's jobs.
    Admin,
    /// Work with one's own jobs.
    User,
    /// Look at one's own jobs.
    Viewer,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Admin, Self::User, Self::Viewer];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::User => "user",
            Self::Viewer => "viewer",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// The SHA-256 of a token. Tokens are long and random, so nothing slower is needed.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

/// What the share links of one job are sealed with.
#[derive(Clone, PartialEq, Eq)]
pub struct ShareKey(pub [u8; 32]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShareKey(…)")
    }
}

/// What may happen to tokens and keys. The answer says whether anything did; a job that has a key
/// already keeps it, and that counts.
#[derive(Debug)]
pub(crate) enum AccessChange {
    AddToken(Token, TokenHash),
    RevokeToken { id: String },
    KeepShareKey(JobId, ShareKey),
    DropShareKey(JobId),
}

/// What a user has used of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Jobs that are not at their end: those that wait, run or are paused.
    pub unfinished: u64,
    /// Jobs that were scheduled since the moment asked for.
    pub scheduled: u64,
    /// Milliseconds in which jobs were in a worker's hands since then, those of all jobs together.
    pub running_ms: u64,
}
