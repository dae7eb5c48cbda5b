//! Three servers, three workers and a PostgreSQL, while whatever can go wrong does, at random.
//!
//! `make chaos` runs it with hundreds of jobs and a seed of its own, which is printed; the run among the
//! other tests is short and always the same. What the dice decide is the same for one seed; when the
//! processes are hit by it is not.

use std::time::Duration;

use bellglass_store::{JobFilter, Store as _};
use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};
use tokio::time::sleep;

use crate::deployment::{Deployment, until};
use crate::support::{Client, archive, host, shell};
use crate::verdict::judge;

/// Numbers that are the same for the same seed (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// With the seed that a variable names; otherwise always the same.
    pub(crate) fn thrown(variable: &str) -> Self {
        let seed = std::env::var(variable).ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        eprintln!("the seed is {seed}; {variable}={seed} throws the same dice again");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Blow {
    KillWorker,
    KillServer,
    KillSandbox,
    StopWorker,
    StopServer,
    CrashDatabase,
    RestartDatabase,
    CutConnections,
}

const BLOWS: [Blow; 12] = [
    Blow::KillWorker,
    Blow::KillWorker,
    Blow::KillWorker,
    Blow::KillServer,
    Blow::KillSandbox,
    Blow::KillSandbox,
    Blow::StopWorker,
    Blow::StopServer,
    Blow::CrashDatabase,
    Blow::RestartDatabase,
    Blow::CutConnections,
    Blow::CutConnections,
];

const COUNT: u32 = 6;

/// What a job is meant to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Counts,
    /// The same on a disk of its own, where this host gives one.
    CountsOnADisk,
    FillsItsDisk,
    IsCancelled,
}

/// More than are interrupted before the job is cancelled.
const SLEEPS: usize = 12;

fn body(kind: Kind) -> Value {
    let count = |n: u32| shell(&format!("echo {n} >> count; sleep 0.1"));
    match kind {
        Kind::Counts => json!({ "steps": (1..=COUNT).map(count).collect::<Vec<_>>() }),
        Kind::CountsOnADisk => json!({
            "steps": (1..=COUNT).map(count).collect::<Vec<_>>(),
            "limits": { "memory": "128MiB", "disk": "128MiB" },
        }),
        Kind::FillsItsDisk => json!({
            "steps": [count(1), shell("dd if=/dev/zero of=big bs=1M || { rm -f big; exit 1; }"), count(3)],
            "limits": { "disk": "8MiB" },
        }),
        Kind::IsCancelled => json!({ "steps": vec![shell("sleep 600"); SLEEPS] }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_loses_nothing_repeats_nothing_and_leaves_nothing() {
    let number =
        |name, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (jobs, blows): (usize, usize) = (number("CHAOS_JOBS", 16), number("CHAOS_BLOWS", 10));
    let mut deployment = Deployment::start(3, 3, "lease = 4\nsweep = 2\ngrace = 2\n");
    // Less than nextest waits, so that a run that hangs tells why and cleans up.
    let longest = Duration::from_secs(200 + 20 * jobs.saturating_sub(16) as u64);
    let ran = tokio::time::timeout(longest, unleash(&mut deployment, jobs, blows)).await;
    assert!(ran.is_ok(), "chaos is not over after {longest:?}");
}

async fn unleash(deployment: &mut Deployment, jobs: usize, blows: usize) {
    let mut dice = Dice::thrown("CHAOS_SEED");
    let mut accepted: Vec<(String, Kind)> = Vec::new();
    // Those that are to be cancelled and were not so far.
    let mut asleep: Vec<String> = Vec::new();
    let mut done = 0;
    while accepted.len() < jobs || done < blows {
        let mut fell_asleep = Vec::new();
        if accepted.len() < jobs {
            for _ in 0..=dice.below(4) {
                let kind = match dice.below(8) {
                    0 => Kind::FillsItsDisk,
                    1 => Kind::IsCancelled,
                    2 => Kind::CountsOnADisk,
                    _ => Kind::Counts,
                };
                let server = dice.below(3) as usize;
                let client = deployment.servers[server].client.clone();
                let request = client.request(reqwest::Method::POST, "/schedule");
                let request = request.header("content-type", "application/json");
                // Whoever got no answer was promised nothing.
                let Ok(answer) = request.body(body(kind).to_string()).send().await else {
                    continue;
                };
                if answer.status() == StatusCode::ACCEPTED {
                    let answer: Value = answer.json().await.unwrap();
                    let job = answer["job_id"].as_str().unwrap().to_owned();
                    fell_asleep.extend((kind == Kind::IsCancelled).then(|| job.clone()));
                    accepted.push((job, kind));
                }
            }
        }
        if done < blows {
            let blow = BLOWS[dice.below(BLOWS.len() as u32) as usize];
            strike(deployment, blow, &mut dice).await;
            done += 1;
        }
        // Not all at the end: sleepers in every slot would keep the blows from the others.
        if dice.below(2) == 0 {
            let server = dice.below(3) as usize;
            cancel_all(&deployment.servers[server].client, &mut asleep).await;
        }
        asleep.append(&mut fell_asleep);
        sleep(Duration::from_millis(u64::from(dice.below(1500)))).await;
    }
    let client = deployment.servers[0].client.clone();
    until("all that are to be cancelled are told so", async || {
        cancel_all(&client, &mut asleep).await;
        asleep.is_empty()
    })
    .await;
    for (job, kind) in &accepted {
        let ended = client.wait_for_end(job).await;
        check(deployment, &ended, job, *kind);
        // It is given up after so many sandboxes and not before, whether or not a step was begun in each.
        if ended["error"]["code"] == "sandbox_lost" {
            let lost = client.log(job).await.matches("\"type\":\"sandbox.lost\"").count();
            assert!(lost >= 3, "{lost} were lost: {ended:#}");
        }
    }
    let jobs: Vec<String> = accepted.into_iter().map(|(job, _)| job).collect();
    // Those of which nobody was told, because the answer was lost, come to their ends too.
    let all = all_when_over(deployment).await;
    let left_for = deployment.until_nothing_is_left(&all).await;
    deployment.stop();
    let counts = judge(deployment, &jobs).await;
    eprintln!("{} jobs, {done} blows: {counts:?}; nothing left after {left_for:?}", jobs.len());
}

/// Asks for the end of these jobs; those for which that was not heard stay.
async fn cancel_all(client: &Client, jobs: &mut Vec<String>) {
    let mut unheard = Vec::new();
    for job in jobs.drain(..) {
        let request = client.request(reqwest::Method::POST, &format!("/jobs/{job}/cancel"));
        match request.send().await {
            Ok(answer) if !answer.status().is_server_error() => {
                assert_ne!(answer.status(), StatusCode::NOT_FOUND, "{job} is lost");
            }
            _ => unheard.push(job),
        }
    }
    *jobs = unheard;
}

async fn strike(deployment: &mut Deployment, blow: Blow, dice: &mut Dice) {
    let n = dice.below(3) as usize;
    let away = Duration::from_millis(u64::from(dice.below(3000)));
    eprintln!("{blow:?} {n}");
    match blow {
        Blow::KillWorker => {
            deployment.workers[n].kill();
            sleep(away).await;
            deployment.start_worker(n);
        }
        Blow::KillServer => {
            deployment.servers[n].kill();
            deployment.start_server(n);
        }
        Blow::KillSandbox => kill_sandbox(deployment, dice).await,
        Blow::StopServer => {
            deployment.servers[n].signal(Signal::STOP);
            sleep(away).await;
            deployment.servers[n].signal(Signal::CONT);
        }
        Blow::StopWorker => {
            deployment.workers[n].signal(Signal::STOP);
            // Sometimes shorter than a lease, sometimes longer.
            sleep(away * 3).await;
            deployment.workers[n].signal(Signal::CONT);
        }
        Blow::CrashDatabase => deployment.database.restart("immediate"),
        Blow::RestartDatabase => deployment.database.restart("fast"),
        Blow::CutConnections => {
            let options: PgConnectOptions = deployment.database.url.parse().unwrap();
            let mut connection = options.connect().await.unwrap();
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE application_name = 'bellglass' AND random() < 0.5";
            sqlx::query(cut).execute(&mut connection).await.unwrap();
        }
    }
}

/// Kills a sandbox in which a job is at work, and nothing else. One that is only being made is passed over: a host
/// on which none can be made fails the job.
async fn kill_sandbox(deployment: &Deployment, dice: &mut Dice) {
    let guests = deployment.guests();
    if guests.is_empty() {
        return;
    }
    let (job, pid) = &guests[dice.below(guests.len() as u32) as usize];
    let store = deployment.store().await;
    if store.job(job.parse().unwrap()).await.is_ok_and(|job| job.sandbox.is_some()) {
        host::kill_and_wait(*pid);
    }
}

/// The steps that ended with one of these.
fn steps_that(ended: &Value, statuses: &[&str]) -> Vec<u64> {
    let steps = ended["steps"].as_array().unwrap().iter();
    let those = steps.filter(|step| statuses.iter().any(|status| step["status"] == *status));
    those.map(|step| step["n"].as_u64().unwrap()).collect()
}

/// Every step did what it is meant to do, once, or was interrupted when its sandbox was lost, and then
/// nothing of it is left.
fn check(deployment: &Deployment, ended: &Value, job: &str, kind: Kind) {
    let interrupted = steps_that(ended, &["interrupted"]);
    let counted = |numbers: &[u64]| {
        let zip = std::io::Cursor::new(bytes::Bytes::from(deployment.result(ended)));
        let mut zip = zip::ZipArchive::new(zip).unwrap();
        let whole = numbers.iter().filter(|n| !interrupted.contains(n));
        let expected: String = whole.map(|n| format!("{n}\n")).collect();
        match expected.is_empty() {
            true => assert!(!archive::names(&zip).contains(&"count".to_owned()), "{job}"),
            false => assert_eq!(archive::text(&mut zip, "count"), expected, "{job}"),
        }
    };
    match kind {
        Kind::Counts | Kind::CountsOnADisk => {
            assert_eq!(ended["status"], "completed", "{ended:#}");
            assert_eq!(ended["failed_steps"], json!(interrupted), "{ended:#}");
            counted(&(1..=COUNT.into()).collect::<Vec<_>>());
        }
        // A full disk fails the step, not the job's worker, and the rest of the job goes on.
        Kind::FillsItsDisk => {
            assert_eq!(ended["status"], "completed", "{ended:#}");
            let failed = steps_that(ended, &["failed", "interrupted"]);
            assert!(failed.contains(&2), "{ended:#}");
            assert_eq!(ended["failed_steps"], json!(failed), "{ended:#}");
            assert!(failed.iter().all(|n| *n == 2 || interrupted.contains(n)), "{ended:#}");
            counted(&[1, 3]);
        }
        // None of its steps ends by itself: each one that is over was interrupted.
        Kind::IsCancelled if interrupted.len() == SLEEPS => {
            assert_eq!(ended["status"], "completed", "{ended:#}");
        }
        // Nor does it get any further in between, so that it may be given up.
        Kind::IsCancelled if ended["error"]["code"] == "sandbox_lost" => {
            assert_eq!(ended["status"], "failed", "{ended:#}");
        }
        Kind::IsCancelled => assert_eq!(ended["status"], "cancelled", "{ended:#}"),
    }
}

/// Waits until every job that the store knows is at its end; says which these are.
async fn all_when_over(deployment: &Deployment) -> Vec<String> {
    let store = deployment.store().await;
    let filter = JobFilter { limit: u32::MAX - 1, ..Default::default() };
    let mut all = Vec::new();
    until("all jobs are at their ends", async || {
        let jobs = store.jobs(&filter).await.unwrap().jobs;
        let open = jobs.iter().filter(|job| !job.status.is_terminal());
        let mut is_over = true;
        for job in open {
            is_over = false;
            // A job that is to be cancelled but whose answer was lost would sleep on.
            if job.steps_total == Some(SLEEPS as u32) {
                store.request_cancel(job.id, "chaos").await.unwrap();
            }
        }
        all = jobs.iter().map(|job| job.id.to_string()).collect();
        is_over
    })
    .await;
    all
}
