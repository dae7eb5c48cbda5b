//! The writer's connection: made anew when it is lost, and asked afterwards what became of a
//! transaction whose end was not heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

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
    pub(super) fn new(options: PgConnectOptions, connection: PgConnection) -> Self {
        Self { options, connection: Some(connection), again_since: None }
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
    pub(super) async fn outcome_of(&mut self, transaction: &str) -> Result<Outcome, sqlx::Error> {
        let connection = self.get().await?;
        let status: Option<String> = sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
            .bind(transaction)
            .fetch_one(connection)
            .await?;
        Ok(match status.as_deref() {
            Some("committed") => Outcome::Committed,
            Some("in progress") => Outcome::Open,
            // Of what is too old to be known nothing was committed: we ask within seconds.
            _ => Outcome::RolledBack,
        })
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
