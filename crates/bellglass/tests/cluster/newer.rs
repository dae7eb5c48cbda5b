//! A program that is newer than this one, played on the database that both use: it follows the rules of
//! migrations, and writes what this one cannot know.

use std::process::Output;

use bellglass_protocol::audit::{self, AuditEntry, Deed};
use bellglass_protocol::chain::{LinkHash, seal};
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::unknown::UnknownRecord;
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgTransaction, Row as _};

use crate::deployment::Deployment;
use crate::support::bellglass;

pub(crate) struct NewerProgram(PgConnection);

impl NewerProgram {
    /// Starts on the database of others, and makes the schema newer as it does.
    pub(crate) async fn start(deployment: &Deployment) -> Self {
        let url: PgConnectOptions = deployment.database.url.parse().unwrap();
        let mut connection = url.connect().await.unwrap();
        for statement in [
            "ALTER TABLE jobs ADD COLUMN weather TEXT",
            "ALTER TABLE events ADD COLUMN weather TEXT",
            "CREATE TABLE forecasts (job_id UUID REFERENCES jobs (id), text TEXT)",
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES (999, 'weather', TRUE, ''::bytea, 0)",
        ] {
            sqlx::query(statement).execute(&mut connection).await.unwrap();
        }
        Self(connection)
    }

    /// Adds an event to the log of a job, whoever holds it and whether it has ended. Returns its line.
    pub(crate) async fn write(&mut self, job: &str, fields: Value) -> String {
        let job: JobId = job.parse().unwrap();
        let mut transaction = self.0.begin().await.unwrap();
        let row = sqlx::query(
            "SELECT last_seq, last_hash, status FROM jobs WHERE id = $1 FOR NO KEY UPDATE",
        )
        .bind(job.uuid())
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
        let end = (row.get::<i64, _>(0) as u64, LinkHash::from_bytes(row.get(1)).unwrap());
        let line = add_line(&mut transaction, job, end, fields).await;
        let (seq, status) = (end.0 + 1, row.get::<&str, _>(2));
        tell(&mut transaction, job, seq, status).await;
        transaction.commit().await.unwrap();
        line
    }

    /// Accepts a job that needs a worker which is able to do so much.
    pub(crate) async fn schedule(&mut self, spec: Value, needs: i32) -> String {
        let (job, now) = (JobId::generate(), Timestamp::now().as_microsecond());
        let mut transaction = self.0.begin().await.unwrap();
        sqlx::query(
            "INSERT INTO jobs (id, status, priority, title, scheduled_at, generation, \
             cancel_requested, last_seq, last_at, last_hash, steps_total, needs, weather) \
             VALUES ($1, 'scheduled', $2, 'weather', $3, 0, FALSE, 0, $3, ''::bytea, $4, $5, 'fine')",
        )
        .bind(job.uuid())
        .bind(spec["priority"].as_i64().unwrap() as i32)
        .bind(now)
        .bind(spec["steps"].as_array().unwrap().len() as i64)
        .bind(needs)
        .execute(&mut *transaction)
        .await
        .unwrap();
        let scheduled = json!({ "type": "scheduled", "spec": spec });
        add_line(&mut transaction, job, (0, LinkHash::root(job)), scheduled).await;
        tell(&mut transaction, job, 1, "scheduled").await;
        transaction.commit().await.unwrap();
        job.to_string()
    }

    /// Says that any worker can carry the job out.
    pub(crate) async fn needs_nothing_new(&mut self, job: &str) {
        let job: JobId = job.parse().unwrap();
        sqlx::query("UPDATE jobs SET needs = NULL WHERE id = $1")
            .bind(job.uuid())
            .execute(&mut self.0)
            .await
            .unwrap();
    }

    /// How much a worker must be able to do that takes the job up.
    pub(crate) async fn needed(&mut self, job: &str) -> Option<i32> {
        let job: JobId = job.parse().unwrap();
        sqlx::query_scalar("SELECT needs FROM jobs WHERE id = $1")
            .bind(job.uuid())
            .fetch_one(&mut self.0)
            .await
            .unwrap()
    }

    /// Makes the job nobody's, as if much time had gone by.
    pub(crate) async fn let_lease_run_out(&mut self, job: &str) {
        let job: JobId = job.parse().unwrap();
        sqlx::query("UPDATE jobs SET lease_until = 0 WHERE id = $1")
            .bind(job.uuid())
            .execute(&mut self.0)
            .await
            .unwrap();
    }

    /// Adds something to the audit log. Returns its line.
    pub(crate) async fn note(&mut self, fields: Value) -> String {
        let mut transaction = self.0.begin().await.unwrap();
        let row = sqlx::query("SELECT seq, hash FROM audit_end FOR UPDATE")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        let hash: Option<&[u8]> = row.get(1);
        let previous = hash.map_or_else(audit::root, |hash| LinkHash::from_bytes(hash).unwrap());
        let (seq, at) = (row.get::<i64, _>(0) + 1, Timestamp::now());
        let deed = Deed::Unknown(record(fields));
        let entry = AuditEntry { seq: seq as u64, at, by: "newer".into(), deed };
        let (line, hash) = audit::seal(&entry, previous);
        sqlx::query("INSERT INTO audit (seq, line) VALUES ($1, $2)")
            .bind(seq)
            .bind(&line)
            .execute(&mut *transaction)
            .await
            .unwrap();
        sqlx::query("UPDATE audit_end SET seq = $1, hash = $2")
            .bind(seq)
            .bind(hash.as_bytes().as_slice())
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        line
    }
}

fn record(fields: Value) -> UnknownRecord {
    UnknownRecord::new(fields.as_object().unwrap().clone()).unwrap()
}

async fn add_line(
    transaction: &mut PgTransaction<'_>,
    job: JobId,
    (last, hash): (u64, LinkHash),
    fields: Value,
) -> String {
    let body = EventBody::Unknown(record(fields));
    let event = Event { seq: last + 1, at: Timestamp::now(), job, body };
    let sealed = seal(event, hash);
    let seq = sealed.event.seq as i64;
    sqlx::query("INSERT INTO events (job_id, seq, line, weather) VALUES ($1, $2, $3, 'rain')")
        .bind(job.uuid())
        .bind(seq)
        .bind(&sealed.line)
        .execute(&mut **transaction)
        .await
        .unwrap();
    sqlx::query("UPDATE jobs SET last_seq = $2, last_hash = $3, last_at = $4 WHERE id = $1")
        .bind(job.uuid())
        .bind(seq)
        .bind(sealed.hash.as_bytes().as_slice())
        .bind(sealed.event.at.as_microsecond())
        .execute(&mut **transaction)
        .await
        .unwrap();
    sealed.line
}

async fn tell(transaction: &mut PgTransaction<'_>, job: JobId, seq: u64, status: &str) {
    sqlx::query("SELECT pg_notify('bellglass_changes', $1)")
        .bind(format!("newer\n{job} {seq} {status} rain"))
        .execute(&mut **transaction)
        .await
        .unwrap();
}

/// What `bellglass verify` says of a job, or of the audit log if none is named.
pub(crate) fn verified(deployment: &Deployment, job: Option<&str>) -> Value {
    let mut command = bellglass(deployment.folder());
    command.args(["verify", "--json", job.unwrap_or("--audit"), "--data"]);
    let output: Output = command.arg(deployment.folder().join("verifier")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
