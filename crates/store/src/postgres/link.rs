//! The writer's connection: made anew when it is lost, and asked afterwards what became of a
//! transaction whose end was not heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use super::batch::Ready;
use super::open;
use crate::index::now;

/// A connection that comes back.
pub(super) struct Link {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    /// When a lost connection was made anew.
    again_since: Option<Instant>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    RolledBack,
    /// The server does not know yet that we are gone.
    Open,
}

impl Link {
    /// `was_away`: the database was waited for, and so is about to be found again by others too.
    pub(super) fn new(options: PgConnectOptions, connection: PgConnection, was_away: bool) -> Self {
        let again_since = was_away.then(Instant::now);
        Self { options, connection: Some(connection), again_since }
    }

    /// The connection, made anew where it was lost.
    pub(super) async fn get(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if self.connection.is_none() {
            let connection = open::connect(&self.options).await?;
            tracing::info!("the database answers again");
            self.connection = Some(connection);
            self.again_since = Some(Instant::now());
        }
        self.connection.as_mut().ok_or(sqlx::Error::PoolTimedOut)
    }

    /// Lets go of a connection that is of no use any more.
    pub(super) fn cut(&mut self) {
        self.connection = None;
    }

    /// Ends a transaction that failed.
    pub(super) async fn roll_back(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if let Err(error) = sqlx::raw_sql("ROLLBACK").execute(connection).await {
            tracing::debug!(%error, "a transaction ends with its connection");
            self.cut();
        }
    }

    /// Whether the database was away until less than `time` ago. Others who hold jobs were cut off
    /// too then, and get so long to renew their leases before these count as run out.
    pub(super) fn was_away_within(&self, time: Duration) -> bool {
        self.again_since.is_some_and(|since| since.elapsed() < time)
    }

    /// What became of a transaction whose commit was not answered.
    pub(super) async fn outcome_of(
        &mut self,
        teller: &str,
        ready: &Ready,
    ) -> Result<Outcome, sqlx::Error> {
        let connection = self.get().await?;
        // Only whether it is still open, and before the mark is looked at: what ends in between is seen there.
        // After a crash the number may be another's, or nobody's yet, which is an error.
        let status = sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
            .bind(&ready.transaction)
            .fetch_one(&mut *connection)
            .await;
        let status: Option<String> = match status {
            Err(sqlx::Error::Database(_)) => None,
            status => status?,
        };
        if status.as_deref() == Some("in progress") {
            return Ok(Outcome::Open);
        }
        let is_marked: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM written WHERE teller = $1 AND batch = $2)",
        )
        .bind(teller)
        .bind(ready.number)
        .fetch_one(connection)
        .await?;
        Ok(if is_marked { Outcome::Committed } else { Outcome::RolledBack })
    }

    pub(super) async fn close(self) -> Result<(), sqlx::Error> {
        match self.connection {
            Some(connection) => sqlx::Connection::close(connection).await,
            None => Ok(()),
        }
    }
}

/// The database's clock, by which leases are measured: the machines' own may differ.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseClock {
    /// How many microseconds it is ahead of ours.
    ahead: Arc<AtomicI64>,
}

impl DatabaseClock {
    /// Takes in what the database says the time is.
    pub(super) fn set(&self, microseconds: i64) -> Timestamp {
        let ahead = microseconds.saturating_sub(now().as_microsecond());
        self.ahead.store(ahead, Ordering::Relaxed);
        Timestamp::from_microsecond(microseconds).unwrap_or_else(|_| now())
    }

    pub(super) fn now(&self) -> Timestamp {
        let (now, ahead) = (now(), self.ahead.load(Ordering::Relaxed));
        Timestamp::from_microsecond(now.as_microsecond().saturating_add(ahead)).unwrap_or(now)
    }
}
