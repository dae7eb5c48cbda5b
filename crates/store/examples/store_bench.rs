//! Measures a store: durable events and claims in a second, and what a job costs as the table grows.
//!
//! `store_bench sqlite FILE` or `store_bench postgres URL`, with the sizes on standard input as JSON; the
//! figures go to standard output. Driven by `bench/store`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellglass_protocol::event::{EndStatus, EventBody, JobEnd};
use bellglass_protocol::id::{JobId, WorkerId};
use bellglass_protocol::job::{Budget, DEFAULT_IMAGE, IsolationLevel, JobSpec, Limits, OnError};
use bellglass_protocol::job::{Priority, Work};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::step::OutputStream;
use bellglass_protocol::tool::{Shell, ToolCall};
use bellglass_store::{PostgresStore, SqliteStore, Store};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(3600);

/// Who appends and claims at once.
const CALLERS: usize = 64;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, kind, place] = arguments.as_slice() else {
        panic!("store_bench sqlite|postgres PLACE")
    };
    let plan: Value = serde_json::from_reader(std::io::stdin()).expect("a plan as JSON");
    let size = |name: &str| plan[name].as_u64().expect("a number");
    let store = open(kind, place).await;
    let events = events_per_second(&store, Duration::from_millis(size("milliseconds"))).await;
    let claims = claims_per_second(&store, size("claims")).await;
    let mut jobs = serde_json::Map::new();
    let mut filled = 0;
    for wanted in plan["jobs"].as_array().expect("a list").iter().filter_map(Value::as_u64) {
        fill(kind, place, filled, wanted).await;
        filled = wanted;
        let times = per_job(&*store, size("samples")).await;
        jobs.insert(wanted.to_string(), json!(times));
    }
    store.close().await;
    let figures =
        json!({ "events_per_second": events, "claims_per_second": claims, "job_ms": jobs });
    println!("{figures}");
}

async fn open(kind: &str, place: &str) -> Arc<dyn Store> {
    match kind {
        "sqlite" => Arc::new(SqliteStore::open(place.as_ref()).await.expect("a database file")),
        "postgres" => Arc::new(PostgresStore::open(place, None).await.expect("a database")),
        other => panic!("`{other}` is no database"),
    }
}

/// Many jobs at work, each of which waits for an event to be durable before it writes the next.
async fn events_per_second(store: &Arc<dyn Store>, time: Duration) -> f64 {
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for _ in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let (job, generation) = begin(&*store).await;
            let mut written = 0_u64;
            while began.elapsed() < time {
                let text = "a line of output, as long as they usually are".into();
                let body = EventBody::StepOutput { n: 1, stream: OutputStream::Stdout, text };
                store.append(job, generation, vec![body]).await.expect("appended");
                written += 1;
            }
            store.append(job, generation, vec![end()]).await.expect("ended");
            written
        });
    }
    let written: u64 = callers.join_all().await.iter().sum();
    written as f64 / began.elapsed().as_secs_f64()
}

/// Many workers that take jobs from one full queue.
async fn claims_per_second(store: &Arc<dyn Store>, jobs: u64) -> f64 {
    let mut scheduling = JoinSet::new();
    for _ in 0..jobs {
        let store = store.clone();
        scheduling.spawn(async move { store.schedule(spec()).await.expect("scheduled") });
    }
    scheduling.join_all().await;
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for n in 0..CALLERS {
        let store = store.clone();
        callers.spawn(async move {
            let me = WorkerId::new(format!("w{n}"));
            let mut mine = Vec::new();
            while let Some(job) = store.claim_next_job(&me, LEASE).await.expect("claimed") {
                mine.push((job.view.job_id, job.generation));
            }
            mine
        });
    }
    let claimed = callers.join_all().await.concat();
    let elapsed = began.elapsed();
    assert_eq!(claimed.len() as u64, jobs, "every job is claimed once");
    for (job, generation) in claimed {
        store.append(job, generation, vec![end()]).await.expect("ended");
    }
    jobs as f64 / elapsed.as_secs_f64()
}

/// Milliseconds of a job's whole way through the store, one after the other.
async fn per_job(store: &dyn Store, samples: u64) -> Vec<f64> {
    let mut times = Vec::new();
    for _ in 0..samples {
        let began = Instant::now();
        let (job, generation) = begin(store).await;
        store.append(job, generation, vec![end()]).await.expect("ended");
        store.outline(job).await.expect("there");
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    times
}

async fn begin(store: &dyn Store) -> (JobId, bellglass_protocol::id::Generation) {
    store.schedule(spec()).await.expect("scheduled");
    let claimed = store.claim_next_job(&WorkerId::new("w"), LEASE).await;
    let claimed = claimed.expect("claimed").expect("there is one");
    (claimed.view.job_id, claimed.generation)
}

/// Adds jobs that ended long ago, without the store: a million of them one by one would take hours.
async fn fill(kind: &str, place: &str, from: u64, to: u64) {
    let columns = "id, status, priority, title, scheduled_at, started_at, finished_at, generation, \
                   cancel_requested, last_seq, last_at, last_hash, steps_done, failed_steps";
    let values = "'completed', 0, 'shell: true', n, n, n, 1, FALSE, 4, n";
    match kind {
        "sqlite" => {
            let numbers = format!(
                "WITH RECURSIVE numbers (n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {to})"
            );
            let id = "printf('00000000-0000-7000-8000-%012x', n)";
            let options = SqliteConnectOptions::new().filename(place);
            let options = options.busy_timeout(Duration::from_secs(60));
            let mut connection = options.connect().await.expect("connected");
            for statement in [
                format!(
                    "INSERT INTO jobs ({columns}) {numbers} SELECT {id}, {values}, zeroblob(32), 1, '[]' FROM numbers"
                ),
                format!(
                    "INSERT INTO events (job_id, seq, line) {numbers} SELECT {id}, 1, '{{}}' FROM numbers"
                ),
            ] {
                sqlx::query(AssertSqlSafe(statement))
                    .execute(&mut connection)
                    .await
                    .expect("filled");
            }
        }
        _ => {
            let numbers = format!("generate_series({from}::bigint, {to}::bigint - 1) AS n");
            let id = "('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid";
            let options: PgConnectOptions = place.parse().expect("an address");
            let mut connection = options.connect().await.expect("connected");
            for statement in [
                format!(
                    "INSERT INTO jobs ({columns}) SELECT {id}, {values}, decode(repeat('00', 32), 'hex'), 1, '[]' FROM {numbers}"
                ),
                format!(
                    "INSERT INTO events (job_id, seq, line) SELECT {id}, 1, '{{}}' FROM {numbers}"
                ),
                "VACUUM ANALYZE".to_owned(),
            ] {
                sqlx::query(AssertSqlSafe(statement))
                    .execute(&mut connection)
                    .await
                    .expect("filled");
            }
        }
    }
}

fn end() -> EventBody {
    let end = JobEnd { status: EndStatus::Completed, failed_steps: Vec::new(), error: None };
    EventBody::Finished { end }
}

fn spec() -> JobSpec {
    let shell = Shell { command: "true".into(), ..Default::default() };
    JobSpec {
        name: None,
        work: Work::Steps(vec![ToolCall::Shell(shell)]),
        on_error: OnError::Continue,
        priority: Priority(0),
        image: DEFAULT_IMAGE.into(),
        limits: Limits::default(),
        network: NetworkPolicy::None,
        isolation: IsolationLevel::Namespace,
        nested_sandboxing: false,
        desktop: None,
        secrets: Default::default(),
        files: Vec::new(),
        model: None,
        budget: Budget::default(),
        plan: Default::default(),
        mcp: Default::default(),
        approve: Vec::new(),
        project: None,
        owner: None,
        fork: None,
    }
}
