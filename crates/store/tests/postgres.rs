//! What only a database that many share can do: be shared, go away, come back, and be upgraded.

mod support;
#[path = "support/postgres.rs"]
mod test_database;
#[path = "support/postgres_server.rs"]
mod test_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellglass_protocol::chain::{LinkHash, SealedEvent, seal};
use bellglass_protocol::event::{EndStatus, Event, EventBody};
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::unknown::UnknownRecord;
use bellglass_protocol::view::JobStatus;
use bellglass_store::access::{Access as _, Role, Token, TokenHash};
use bellglass_store::{PostgresStore, Store as _, StoreError};
use futures::FutureExt as _;
use jiff::Timestamp;
use support::{finished, output, step_finished, steps_job, verified_kinds, worker};
use test_database::TestDatabase;
use test_server::TestServer;

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn what_one_process_changes_another_hears() {
    let database = TestDatabase::create().await;
    let (one, other) = (database.open().await, database.open().await);
    let mut changes = other.changes();
    let job = one.schedule(steps_job("true")).await.unwrap();
    let heard = changes.recv().await.unwrap();
    assert_eq!((heard.job, heard.seq, heard.status), (job, 1, JobStatus::Scheduled));
    let claimed = other.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    assert_eq!(changes.recv().await.unwrap().status, JobStatus::Running);
    one.request_cancel(job, "me").await.unwrap();
    assert!(changes.recv().await.unwrap().cancel_requested);
    other.append(job, claimed.generation, vec![finished(EndStatus::Cancelled)]).await.unwrap();
    assert_eq!(verified_kinds(&one, job).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_claimed_twice_by_many_processes() {
    let database = TestDatabase::create().await;
    let first = database.open().await;
    for _ in 0..100 {
        first.schedule(steps_job("true")).await.unwrap();
    }
    let mut workers = tokio::task::JoinSet::new();
    for n in 0..4 {
        let store = database.open().await;
        workers.spawn(async move {
            let me = worker(&format!("w{n}"));
            let mut mine = Vec::new();
            // Jobs that another is about to claim are passed over, so none at all may be seen.
            while !store.count_by_status().await.unwrap().contains(&(JobStatus::Scheduled, 0)) {
                let claimed = store.claim_next_job(&me, LEASE).await.unwrap();
                mine.extend(claimed.map(|claimed| claimed.view.job_id));
            }
            mine
        });
    }
    let mut claimed = workers.join_all().await.concat();
    assert_eq!(claimed.len(), 100);
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_start_at_once_make_one_schema() {
    let database = TestDatabase::create().await;
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = database.url.clone();
        opening.spawn(async move { PostgresStore::open(&url, None).await.unwrap() });
    }
    let stores = opening.join_all().await;
    let job = stores[0].schedule(steps_job("true")).await.unwrap();
    for store in &stores {
        assert_eq!(verified_kinds(store, job).await, ["scheduled"]);
    }
}

/// What a newer program may do to the schema while older ones run.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_does_not_disturb_until_it_says_so() {
    let database = TestDatabase::create().await;
    let store = database.open().await;
    let mut newer = database.connect().await;
    for statement in [
        "ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",
        "ALTER TABLE events ADD COLUMN weight BIGINT",
        "CREATE TABLE later (job_id UUID REFERENCES jobs (id))",
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (999, 'from the future', TRUE, ''::bytea, 0)",
    ] {
        sqlx::query(statement).execute(&mut newer).await.unwrap();
    }
    let older = database.open().await;
    for store in [&store, &older] {
        let job = store.schedule(steps_job("true")).await.unwrap();
        let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
        store.append(job, claimed.generation, vec![output("1")]).await.unwrap();
        assert_eq!(verified_kinds(store, job).await.len(), 3);
    }
    sqlx::query("UPDATE bellglass_schema SET oldest = 999").execute(&mut newer).await.unwrap();
    let refused = PostgresStore::open(&database.url, None).await.unwrap_err();
    assert!(matches!(refused, StoreError::NewerSchema { found: 999, .. }), "{refused}");
}

/// What a newer program wants of workers that older ones cannot do.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_need_a_newer_program_are_left_to_it() {
    let database = TestDatabase::create().await;
    let (store, mut newer) = (database.open().await, database.connect().await);
    let mut needs = async |job: JobId, needs: Option<i32>| {
        let update = sqlx::query("UPDATE jobs SET needs = $2 WHERE id = $1");
        update.bind(job.uuid()).bind(needs).execute(&mut newer).await.unwrap();
    };
    let new = store.schedule(steps_job("true")).await.unwrap();
    needs(new, Some(1)).await;
    let old = store.schedule(steps_job("true")).await.unwrap();
    let w = worker("w");
    let claim = || store.claim_next_job(&w, Duration::ZERO);
    assert_eq!(claim().await.unwrap().unwrap().view.job_id, old);
    // Its lease has run out, and meanwhile something new was made of it.
    needs(old, Some(1)).await;
    assert!(claim().await.unwrap().is_none());
    assert_eq!(store.held_by(&worker("w")).await.unwrap(), []);
    // It can be seen and ended all the same.
    assert_eq!(store.job(new).await.unwrap().status, JobStatus::Scheduled);
    assert_eq!(store.request_cancel(new, "me").await.unwrap(), JobStatus::Cancelled);
    needs(old, Some(0)).await;
    assert_eq!(store.held_by(&worker("w")).await.unwrap(), [old]);
    let claimed = claim().await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, old);
    // Its holder finds that it is not for programs of this version, as far as it still is its holder.
    let before = Generation(claimed.generation.0 - 1);
    let refused = store.leave_to_newer(old, before).await.unwrap_err();
    assert!(matches!(refused, StoreError::StaleGeneration), "{refused}");
    store.leave_to_newer(old, claimed.generation).await.unwrap();
    assert!(claim().await.unwrap().is_none());
    // What is written about it afterwards does not take that back.
    let released = EventBody::Released { generation: claimed.generation };
    store.append(old, claimed.generation, vec![released]).await.unwrap();
    assert!(claim().await.unwrap().is_none());
    // Nor is what a job needs ever made less.
    needs(old, Some(7)).await;
    store.leave_to_newer(old, claimed.generation).await.unwrap();
    let question = "SELECT needs FROM jobs WHERE id = $1";
    let mut looker = database.connect().await;
    let found: Option<i32> =
        sqlx::query_scalar(question).bind(old.uuid()).fetch_one(&mut looker).await.unwrap();
    assert_eq!(found, Some(7));
    // Whom it is left to may never come. Nobody holds it, so whoever wants its end has it.
    assert_eq!(store.request_cancel(old, "me").await.unwrap(), JobStatus::Cancelled);
    let kinds = verified_kinds(&store, old).await;
    assert_eq!(kinds[kinds.len() - 2..], ["cancel.requested", "finished"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_left_to_newer_programs_is_its_holders_while_one_has_it() {
    let database = TestDatabase::create().await;
    let store = database.open().await;
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let failed = step_finished(1, StepStatus::Failed);
    store.append(job, claimed.generation, vec![failed]).await.unwrap();
    store.leave_to_newer(job, claimed.generation).await.unwrap();
    assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Running);
    // Who hears of the wish no more lets it come true.
    let released = EventBody::Released { generation: claimed.generation };
    store.append(job, claimed.generation, vec![released]).await.unwrap();
    let outline = store.outline(job).await.unwrap();
    assert_eq!((outline.status, outline.failed_steps), (JobStatus::Cancelled, vec![1]));
    let kinds = verified_kinds(&store, job).await;
    assert_eq!(kinds[kinds.len() - 3..], ["cancel.requested", "released", "finished"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_handed_back_to_newer_programs_can_be_cancelled_at_once() {
    let database = TestDatabase::create().await;
    let store = database.open().await;
    let job = store.schedule(steps_job("true")).await.unwrap();
    let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    store.leave_to_newer(job, claimed.generation).await.unwrap();
    let released = EventBody::Released { generation: claimed.generation };
    store.append(job, claimed.generation, vec![released]).await.unwrap();
    // A heartbeat that comes too late does not make it anybody's again.
    let held = [(job, claimed.generation)];
    assert_eq!(store.renew_leases(&worker("w"), &held, LEASE).await.unwrap(), [job]);
    assert_eq!(store.request_cancel(job, "me").await.unwrap(), JobStatus::Cancelled);
}

/// What is whole but cannot be read was written by a newer program, and is its own; what is not is nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_is_left_to_whoever_can_or_ends() {
    let database = TestDatabase::create().await;
    let (store, mut meddler) = (database.open().await, database.connect().await);
    // Who writes a line also says what the next one follows.
    let mut rewrite = async |job: JobId, line: &str, hash: Option<LinkHash>| {
        let update = sqlx::query("UPDATE events SET line = $2 WHERE job_id = $1 AND seq = 1");
        update.bind(job.uuid()).bind(line).execute(&mut meddler).await.unwrap();
        let Some(hash) = hash else { return };
        let update = sqlx::query("UPDATE jobs SET last_hash = $2 WHERE id = $1");
        update.bind(job.uuid()).bind(hash.as_bytes()).execute(&mut meddler).await.unwrap();
    };
    let moonshot = |job: JobId| {
        let fields = serde_json::json!({ "type": "scheduled", "spec": "on the moon" });
        let record = UnknownRecord::new(fields.as_object().unwrap().clone()).unwrap();
        let (seq, at, body) = (1, Timestamp::now(), EventBody::Unknown(record));
        seal(Event { seq, at, job, body }, LinkHash::root(job))
    };
    let newer = store.schedule(steps_job("true")).await.unwrap();
    let written = moonshot(newer);
    rewrite(newer, &written.line, Some(written.hash)).await;
    let mut damaged = Vec::new();
    for n in 0..4 {
        let job = store.schedule(steps_job("true")).await.unwrap();
        let SealedEvent { line, hash, .. } = moonshot(job);
        match n {
            0 => rewrite(job, "no json", None).await,
            1 => rewrite(job, &line.replace("moon", "sun"), Some(hash)).await,
            // Whole by itself, but not what stood there when the next was written.
            2 => rewrite(job, &line, None).await,
            // The beginning of another job.
            _ => rewrite(job, &written.line, Some(written.hash)).await,
        }
        damaged.push(job);
    }
    let readable = store.schedule(steps_job("true")).await.unwrap();
    let w = worker("w");
    // Whatever stands before it in the queue.
    let claimed = store.claim_next_job(&w, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, readable);
    for job in damaged {
        let outline = store.outline(job).await.unwrap();
        assert_eq!(outline.status, JobStatus::Failed);
        assert_eq!(outline.error.unwrap().code, "log_unreadable");
    }
    assert_eq!(store.outline(newer).await.unwrap().status, JobStatus::Running);
    let lines = store.lines_after(newer, 0, 10).await.unwrap();
    assert!(lines[2].contains("\"type\":\"released\""), "{lines:?}");
    store.release_leases(&w).await.unwrap();
    assert_eq!(store.held_by(&w).await.unwrap(), [readable]);
    let claimed = store.claim_next_job(&w, LEASE).await.unwrap().unwrap();
    assert_eq!(claimed.view.job_id, readable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_a_newer_program_opens_nothing_and_hides_no_other_token() {
    let database = TestDatabase::create().await;
    let (store, mut newer) = (database.open().await, database.connect().await);
    for (n, id) in [(1, "known"), (2, "wizard")] {
        let token = Token {
            id: id.into(),
            parent: None,
            user: "ada".into(),
            role: Role::User,
            name: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
        };
        store.add_token(token, TokenHash([n; 32]), "me").await.unwrap();
    }
    let update = "UPDATE tokens SET role = 'wizard' WHERE id = 'wizard'";
    sqlx::query(update).execute(&mut newer).await.unwrap();
    let listed = store.tokens().await.unwrap();
    assert_eq!(listed.iter().map(|token| token.id.as_str()).collect::<Vec<_>>(), ["known"]);
    for (n, is_found) in [(1, true), (2, false)] {
        let found = store.find_token(&TokenHash([n; 32]), Timestamp::now()).await.unwrap();
        assert_eq!(found.is_some(), is_found, "{found:?}");
    }
    assert!(store.revoke_token("wizard", "me").await.unwrap());
}

/// Connections that are cut in the middle of writes cost nobody an answer, and no line is written
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_lose_and_repeat_nothing() {
    let database = TestDatabase::create().await;
    let store = Arc::new(database.open().await);
    let mut meddler = database.connect().await;
    let mut held = Vec::new();
    for _ in 0..4 {
        store.schedule(steps_job("true")).await.unwrap();
        let claimed = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
        held.push((claimed.view.job_id, claimed.generation));
    }
    // They write for as long as it takes until a few times all connections were cut.
    let rounds = Arc::new(AtomicUsize::new(0));
    let mut writing = tokio::task::JoinSet::new();
    for (job, generation) in held {
        let (store, rounds) = (store.clone(), rounds.clone());
        writing.spawn(async move {
            let mut lines = 0;
            while lines < 60 || rounds.load(Ordering::Relaxed) < 3 {
                let body = vec![output(&lines.to_string())];
                store.append(job, generation, body).await.unwrap();
                lines += 1;
            }
            (job, lines)
        });
    }
    let (mut cuts, mut written) = (0, Vec::new());
    while !writing.is_empty() {
        tokio::select! {
            done = writing.join_next() => written.push(done.unwrap().unwrap()),
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                let cut = sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                );
                cuts += cut.fetch_all(&mut meddler).await.unwrap().len();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    assert!(cuts > 0, "nothing was cut");
    for (job, lines) in written {
        // It was scheduled and claimed before.
        assert_eq!(verified_kinds(&*store, job).await.len(), lines + 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_database_in_the_middle_of_jobs_is_survived() {
    let server = TestServer::start();
    let store = Arc::new(PostgresStore::open(&server.url, None).await.unwrap());
    let other = PostgresStore::open(&server.url, None).await.unwrap();
    let job = store.schedule(steps_job("true")).await.unwrap();
    let mine = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    let generation = mine.generation;

    for mode in ["immediate", "fast"] {
        let before = store.outline(job).await.unwrap().last_seq;
        let mut changes = other.changes();
        server.stop(mode);
        assert!(store.ping().await.is_err());
        // Asked for while there is no database, done when there is one.
        let appending = {
            let store = store.clone();
            tokio::spawn(async move { store.append(job, generation, vec![output("1")]).await })
        };
        let reading = {
            let store = store.clone();
            tokio::spawn(async move { store.outline(job).await })
        };
        server.start_again();
        assert_eq!(appending.await.unwrap().unwrap()[0].event.seq, before + 1);
        assert!(reading.await.unwrap().unwrap().last_seq >= before);
        // The other hears of it, whether by news or by looking what it missed.
        while changes.recv().await.unwrap().seq < before + 1 {}
        store.ping().await.unwrap();
    }
    assert_eq!(verified_kinds(&*store, job).await.len(), 4);
}

/// Those who hold jobs were cut off too, and get the time of a lease to say that they live.
#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ran_out_while_the_database_was_away_are_left_to_their_holders() {
    let server = TestServer::start();
    let holder = PostgresStore::open(&server.url, None).await.unwrap();
    let taker = PostgresStore::open(&server.url, None).await.unwrap();
    let job = holder.schedule(steps_job("true")).await.unwrap();
    let claimed =
        holder.claim_next_job(&worker("a"), Duration::from_millis(1)).await.unwrap().unwrap();
    server.stop("fast");
    server.start_again();
    assert!(taker.claim_next_job(&worker("b"), LEASE).await.unwrap().is_none());
    let held = [(job, claimed.generation)];
    assert!(holder.renew_leases(&worker("a"), &held, LEASE).await.unwrap().is_empty());
    // What was given back is free at once.
    holder.release_leases(&worker("a")).await.unwrap();
    assert!(taker.claim_next_job(&worker("b"), LEASE).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_starts_while_the_database_is_away_waits_for_it() {
    let server = TestServer::start();
    server.stop("fast");
    let mut opening = Box::pin(PostgresStore::open(&server.url, None));
    // Asked once, it has tried to connect, and was refused.
    assert!(opening.as_mut().now_or_never().is_none());
    server.start_again();
    opening.await.unwrap().ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stays_away_is_said_to_be_away() {
    let server = TestServer::start();
    let store = Arc::new(PostgresStore::open(&server.url, None).await.unwrap());
    let job = store.schedule(steps_job("true")).await.unwrap();
    let mine = store.claim_next_job(&worker("w"), LEASE).await.unwrap().unwrap();
    server.stop("fast");
    // A job's own line waits for as long as it takes, and all that is asked for later waits behind it.
    let appending = {
        let store = store.clone();
        tokio::spawn(async move { store.append(job, mine.generation, vec![output("1")]).await })
    };
    assert!(store.ping().await.is_err());
    let (scheduled, read) =
        tokio::join!(store.schedule(steps_job("true")), store.count_by_status());
    assert!(matches!(scheduled, Err(StoreError::Unavailable)), "{scheduled:?}");
    assert!(matches!(read, Err(StoreError::Unavailable)), "{read:?}");
    server.start_again();
    appending.await.unwrap().unwrap();
    // What nobody waits for any more is not done later.
    while store.ping().await.is_err() {}
    let counted = store.count_by_status().await.unwrap();
    assert!(counted.contains(&(JobStatus::Scheduled, 0)), "{counted:?}");
    store.close().await;
}
