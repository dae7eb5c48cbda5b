//! A database of a test's own, on the PostgreSQL server that was started for the run.

use bellglass_store::PostgresStore;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};

/// Where the server is; `.config/nextest.toml` has it started.
const SERVER: &str = "BELLGLASS_TEST_POSTGRES";

/// An empty database. It goes with the server.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
}

impl TestDatabase {
    pub(crate) async fn create() -> Self {
        let server = std::env::var(SERVER).unwrap_or_else(|_| {
            panic!("{SERVER} is not set: run the tests with `cargo nextest run`")
        });
        let name = format!("test_{}", bellglass_protocol::id::JobId::generate()).replace('-', "_");
        let mut connection = connect(&server).await;
        // The files need no copy of their own to be safe.
        let create = format!("CREATE DATABASE {name} STRATEGY file_copy");
        sqlx::query(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        let (server, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{server}/{name}") }
    }

    pub(crate) async fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.url, None).await.unwrap()
    }

    /// A connection of somebody who has the database but not the store.
    #[allow(dead_code, reason = "not every test binary meddles")]
    pub(crate) async fn connect(&self) -> PgConnection {
        connect(&self.url).await
    }
}

async fn connect(url: &str) -> PgConnection {
    url.parse::<PgConnectOptions>().unwrap().connect().await.unwrap()
}
