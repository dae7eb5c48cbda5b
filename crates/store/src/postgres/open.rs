//! Opens a PostgreSQL database: how connections are made, and which schema it has.

use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool, SqlStr};

use super::fault::{Backoff, Fault};
use crate::StoreError;

/// Connecting takes no longer than this, or it is tried anew.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How connections are made. The password is in there, so it is never shown.
pub(super) fn options(url: &str, password: Option<&str>) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| StoreError::InvalidUrl)?;
    let options = match password {
        Some(password) => options.password(password),
        None => options,
    };
    Ok(options.application_name("bellglass").disable_statement_logging().options([
        // That something exists already is no news.
        ("client_min_messages", "warning"),
        // A process that stands still in the middle of a transaction holds up others for so long.
        ("idle_in_transaction_session_timeout", "3s"),
        ("lock_timeout", "5s"),
        // The server lets go of clients that were cut off.
        ("tcp_user_timeout", "10s"),
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "3"),
        ("tcp_keepalives_count", "3"),
    ]))
}

/// Where the database is, for people to read. Without the password.
pub(super) fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("PostgreSQL database {database} at {}", socket.display()),
        None => {
            let (host, port) = (options.get_host(), options.get_port());
            format!("PostgreSQL database {database} at {host}:{port}")
        }
    }
}

/// A new connection for writing, on which committed means durable.
pub(super) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let connecting = async {
        let mut connection = options.connect().await?;
        // An operator may ask for more than `on`, but not for less.
        sqlx::query(
            "SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') IN ('off', 'local')",
        )
        .execute(&mut connection)
        .await?;
        Ok(connection)
    };
    match tokio::time::timeout(CONNECT_TIME, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// How long somebody who starts waits for a database that is away.
const OPENS_WITHIN: Duration = Duration::from_secs(30);

/// Brings the schema up to date, and waits for a database that does not answer yet. Says whether it had to.
pub(super) async fn migrate_patiently(options: &PgConnectOptions) -> Result<bool, StoreError> {
    let (begun, mut backoff) = (Instant::now(), Backoff::default());
    let mut is_said = false;
    loop {
        match migrate(options).await {
            Err(error)
                if Fault::of(&error) == Fault::Connection && begun.elapsed() < OPENS_WITHIN =>
            {
                let seconds = OPENS_WITHIN.as_secs();
                if !std::mem::replace(&mut is_said, true) {
                    tracing::warn!(%error, seconds, "the database does not answer; waiting for it");
                }
            }
            migrated => return migrated.map(|()| is_said),
        }
        backoff.wait().await;
    }
}

/// Brings the schema up to date. Of many that start at once one does it, under an advisory lock.
async fn migrate(options: &PgConnectOptions) -> Result<(), StoreError> {
    // The wait for somebody else's migration is not cut short by our limits.
    let patient = options.clone().options([("lock_timeout", "0")]);
    let mut connection = connect(&patient).await?;
    let migrated = migrations().run_direct(None, &mut connection, false).await;
    migrated.map_err(|error| match error {
        MigrateError::Execute(error) => StoreError::Database(error),
        error => StoreError::Migration(error),
    })?;
    let oldest: i64 = sqlx::query_scalar("SELECT oldest FROM bellglass_schema")
        .fetch_one(&mut connection)
        .await?;
    // Nobody asks for so long what became of a write.
    sqlx::query("DELETE FROM written WHERE at < now() - interval '1 day'")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    let known = newest_schema();
    if oldest > known {
        return Err(StoreError::NewerSchema { place: place(options), found: oldest, known });
    }
    Ok(())
}

/// The schema's history, oldest first.
fn migrations() -> Migrator {
    const FILES: [(i64, &str, &str); 6] = [
        (
            1,
            "jobs, events, memories",
            include_str!("../../migrations/postgres/0001_jobs_events_memories.sql"),
        ),
        (2, "access", include_str!("../../migrations/postgres/0002_access.sql")),
        (3, "forks", include_str!("../../migrations/postgres/0003_forks.sql")),
        (4, "audit", include_str!("../../migrations/postgres/0004_audit.sql")),
        (5, "written", include_str!("../../migrations/postgres/0005_written.sql")),
        (6, "needs", include_str!("../../migrations/postgres/0006_needs.sql")),
    ];
    let migrations = FILES.map(|(version, description, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, description.into(), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    // A newer program may have been here already; what it added does not disturb us.
    migrator.set_ignore_missing(true);
    migrator
}

fn newest_schema() -> i64 {
    migrations().iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Connections beside the writer's, made as they are needed. Each kind of use has its own, so that many
/// of one kind do not hold up the others.
#[derive(Debug)]
pub(super) struct Pools {
    /// For what reads a bounded part of the database.
    pub(super) short: PgPool,
    /// For what reads a job's whole log, or searches all jobs.
    pub(super) long: PgPool,
    /// For the worker's claims.
    pub(super) claims: PgPool,
    /// For the question whether the database answers.
    pub(super) ping: PgPool,
    /// For small writes that add to no log.
    pub(super) asides: PgPool,
}

impl Pools {
    pub(super) fn of(options: &PgConnectOptions) -> Self {
        let read_only = options.clone().options([("default_transaction_read_only", "on")]);
        let pool = |count, options: &PgConnectOptions| {
            PgPoolOptions::new()
                .max_connections(count)
                .acquire_timeout(CONNECT_TIME)
                // Whoever meets a dead connection tries again with another.
                .test_before_acquire(false)
                .idle_timeout(Duration::from_secs(60))
                .connect_lazy_with(options.clone())
        };
        let readers = |count| pool(count, &read_only);
        Self {
            short: readers(4),
            long: readers(3),
            claims: readers(1),
            ping: readers(1),
            asides: pool(1, options),
        }
    }

    pub(super) async fn close(&self) {
        for pool in [&self.short, &self.long, &self.claims, &self.ping, &self.asides] {
            pool.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_only_add() {
        for migration in migrations().iter() {
            let sql = migration.sql.as_str().to_uppercase();
            let statements = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
            for line in statements {
                for word in ["DROP ", "RENAME ", "ALTER COLUMN", "TRUNCATE", "DELETE "] {
                    assert!(!line.contains(word), "migration {}: {line}", migration.version);
                }
            }
            // An older program writes rows without the column.
            let columns = sql.split(';').filter(|statement| statement.contains("ADD COLUMN"));
            for column in columns.flat_map(|statement| statement.split("ADD COLUMN").skip(1)) {
                let is_filled = !column.contains("NOT NULL") || column.contains("DEFAULT");
                assert!(is_filled, "migration {}: {column}", migration.version);
            }
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let options = options("postgres://me@db.example:5433/glass", Some("hush")).unwrap();
        assert_eq!(place(&options), "PostgreSQL database glass at db.example:5433");
        let wrong = super::options("postgres://me:hush@[broken", None).unwrap_err();
        assert!(!format!("{wrong} {wrong:?}").contains("hush"));
    }
}
