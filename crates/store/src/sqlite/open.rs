//! Opens a database file: whose it is, who else uses it, and which schema it has.
//!
//! A file is looked at before it is touched: somebody else's database is left exactly as it was.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqlStr, SqliteConnection, SqlitePool};

use crate::StoreError;
use crate::private_dir::create_private_dir;

/// A database that is ready to be written to.
pub(super) struct Opened {
    pub(super) connection: SqliteConnection,
    pub(super) readers: Readers,
    /// The file is ours for as long as this lives.
    pub(super) lock: File,
}

pub(super) async fn for_writing(path: &Path) -> Result<Opened, StoreError> {
    if let Some(dir) = path.parent() {
        create_private_dir(dir).map_err(file_error("create the folder", dir))?;
    }
    let lock = take_lock(path)?;
    if identify(path)? == Identity::New {
        make_ours(path).await?;
    }
    let mut connection = options(path)
        .journal_mode(SqliteJournalMode::Wal)
        // FULL and not NORMAL: in WAL mode only FULL syncs at each commit.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // Fewer checkpoints than the default; each one stalls the writer for two more syncs.
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
        .pragma("cache_size", "-16384")
        // A statement of many rows keeps what would undo it; that need not be a file.
        .pragma("temp_store", "MEMORY")
        .connect()
        .await?;
    migrations().run(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => newer_schema(path, found),
        error => StoreError::Migration(error),
    })?;
    Ok(Opened { connection, readers: Readers::of(path), lock })
}

pub(super) async fn for_reading(path: &Path) -> Result<Readers, StoreError> {
    let missing = io::Error::from(io::ErrorKind::NotFound);
    if identify(path)? == Identity::New {
        return Err(file_error("find a database in", path)(missing));
    }
    let readers = Readers::of(path);
    let found: Option<i64> =
        sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations WHERE success")
            .fetch_one(&readers.short)
            .await?;
    match found.cmp(&Some(newest_schema())) {
        std::cmp::Ordering::Less => Err(StoreError::OlderSchema(path.into())),
        std::cmp::Ordering::Equal => Ok(readers),
        std::cmp::Ordering::Greater => Err(newer_schema(path, found.unwrap_or_default())),
    }
}

/// The schema's history, oldest first. Written out, because the macro that reads a folder brings
/// the whole machinery of compile-time queries and a second SQLite into the build.
fn migrations() -> Migrator {
    const FILES: [(i64, &str, &str); 6] = [
        (1, "jobs and events", include_str!("../../migrations/sqlite/0001_jobs_and_events.sql")),
        (2, "outlines", include_str!("../../migrations/sqlite/0002_outlines.sql")),
        (3, "memories", include_str!("../../migrations/sqlite/0003_memories.sql")),
        (5, "access", include_str!("../../migrations/sqlite/0005_access.sql")),
        (6, "forks", include_str!("../../migrations/sqlite/0006_forks.sql")),
        (7, "audit", include_str!("../../migrations/sqlite/0007_audit.sql")),
    ];
    let migrations = FILES.map(|(version, description, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, description.into(), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(migrations.into())
}

fn newest_schema() -> i64 {
    migrations().iter().map(|migration| migration.version).max().unwrap_or_default()
}

fn newer_schema(path: &Path, found: i64) -> StoreError {
    StoreError::NewerSchema { place: path.display().to_string(), found, known: newest_schema() }
}

#[derive(PartialEq)]
enum Identity {
    /// There is no file, or an empty one.
    New,
    Ours,
}

/// "BELG", where SQLite keeps a number for the application that a file belongs to.
const APPLICATION_ID: u32 = 0x4245_4c47;

/// Reads the file's header: the magic text, and the application's number at offset 68.
fn identify(path: &Path) -> Result<Identity, StoreError> {
    let mut header = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Identity::New),
        Err(error) => return Err(file_error("open", path)(error)),
        Ok(file) => file.take(100).read_to_end(&mut header).map_err(file_error("read", path))?,
    };
    match (header.len(), header.starts_with(b"SQLite format 3\0"), header.get(68..72)) {
        (0, ..) => Ok(Identity::New),
        (100, true, Some(id)) if id == APPLICATION_ID.to_be_bytes() => Ok(Identity::Ours),
        _ => Err(StoreError::NotOurs(path.into())),
    }
}

/// Makes an empty database that says whose it is, before anything else is in it and while the
/// header still lies in the file itself and not in the write-ahead log.
async fn make_ours(path: &Path) -> Result<(), StoreError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(file_error("create", path))?;
    let application_id = APPLICATION_ID.to_string();
    // Pages of twice the usual size: a commit of long lines writes fewer of them.
    let options = options(path).page_size(8192).pragma("application_id", application_id);
    options.connect().await?.close().await?;
    Ok(())
}

/// How long whoever is about to start another program may hold the lock of one that was killed meanwhile.
const LET_GO: Duration = Duration::from_millis(500);

/// Takes the lock file beside the database. The system lets go of it when the process ends,
/// however it ends, and a moment later if it was just starting another program.
fn take_lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = beside(path, ".lock");
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(file_error("create", &lock_path))?;
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if began.elapsed() < LET_GO => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(lock_path)),
            Err(TryLockError::Error(error)) => return Err(file_error("lock", &lock_path)(error)),
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Connections that cannot write, made as they are needed. Each kind of reader has its own, so
/// that many of one kind do not hold up the others.
#[derive(Debug)]
pub(super) struct Readers {
    /// For what reads a bounded part of the database.
    pub(super) short: SqlitePool,
    /// For what reads a job's whole log, or searches all jobs.
    pub(super) long: SqlitePool,
    /// For the worker's claims.
    pub(super) claims: SqlitePool,
    /// For the question whether the database answers.
    pub(super) ping: SqlitePool,
}

impl Readers {
    fn of(path: &Path) -> Self {
        let readers = |count| readers(path, count);
        Self { short: readers(3), long: readers(3), claims: readers(1), ping: readers(1) }
    }

    pub(super) async fn close(&self) {
        for pool in [&self.short, &self.long, &self.claims, &self.ping] {
            pool.close().await;
        }
    }
}

fn readers(path: &Path, count: u32) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(count)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options(path).read_only(true))
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(10))
        .disable_statement_logging()
}

fn file_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::File { action, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_let_go_in_a_moment_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let held = take_lock(&path).unwrap();
        assert!(matches!(take_lock(&path), Err(StoreError::InUse(_))));
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        take_lock(&path).unwrap();
        letting_go.join().unwrap();
    }
}
