//! What can go wrong with the database side of the store, whichever database it is.

use std::io;
use std::path::PathBuf;

use bellglass_protocol::id::JobId;

/// Why the store did not do what it was asked.
///
/// The first five are answers to the caller; the others say that something is wrong with the
/// installation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("there is no job {0}")]
    NotFound(JobId),
    #[error("the job is not in the hands of this claim any more")]
    StaleGeneration,
    #[error("the job is at its end, so nothing can be added to its history")]
    JobEnded,
    #[error("nobody works on the job yet, so it cannot be paused; cancel it instead")]
    NotStarted,
    #[error("nobody who holds a job writes `{0}` events")]
    ReservedEvent(String),

    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("the store is closed")]
    Closed,
    #[error("another bellglass process uses this data directory (it holds {})", .0.display())]
    InUse(PathBuf),
    #[error("{} is not a database of bellglass", .0.display())]
    NotOurs(PathBuf),
    #[error(
        "{place} was written by a newer bellglass (its schema is {found}, this one knows {known}); \
         use that version or a newer one"
    )]
    NewerSchema { place: String, found: i64, known: i64 },
    #[error("the database's address is not like postgres://USER@HOST:PORT/DATABASE")]
    InvalidUrl,
    #[error("the database does not answer; what was asked of it may be asked again")]
    Unavailable,
    #[error(
        "{} has the schema of an older bellglass; start the server once to bring it up to date",
        .0.display()
    )]
    OlderSchema(PathBuf),
    #[error("failed to bring the database's schema up to date")]
    Migration(#[source] sqlx::migrate::MigrateError),
    #[error("failed to {action} {}", .path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the database is corrupt: {0}")]
    Corrupt(String),
    #[error("there is no room left where the database is kept")]
    Full,
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
}

impl StoreError {
    /// Whether there was no room left where the database is kept.
    pub fn is_full(&self) -> bool {
        const SQLITE_FULL: &str = "13";
        const POSTGRES_DISK_FULL: &str = "53100";
        match self {
            Self::Full => true,
            Self::Database(error) => {
                let code = error.as_database_error().and_then(|error| error.code());
                code.is_some_and(|code| code == SQLITE_FULL || code == POSTGRES_DISK_FULL)
            }
            _ => false,
        }
    }
}
