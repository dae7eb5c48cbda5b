//! What happens to jobs whose worker dies, stands still, or is told to stop.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use reqwest::{Response, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::deployment::{Deployment, Detour, until};
use crate::support::host;
use crate::support::{Client, archive, shell, text, wait_for_go};
use crate::verdict::judge;

/// It waits twice: a step that was interrupted is not run again, and the next one still waits.
fn waiting_job() -> Value {
    let steps = [shell("echo once >> count"), wait_for_go(), wait_for_go(), shell("cat count")];
    json!({ "steps": steps })
}

/// Waits until another worker than `before` has claimed the job; says which.
async fn taken_from(client: &Client, job: &str, before: &str) -> String {
    text(&claim_after(client, job, before).await, "worker").to_owned()
}

/// The event by which another worker than `before` claimed the job.
async fn claim_after(client: &Client, job: &str, before: &str) -> Value {
    let mut events = client.events(job).await;
    events.until(|event| event["type"] == "claimed" && event["worker"] != before).await
}

/// What is promised with the usual settings, and what a machine that is busy with other tests may add to it.
const TAKEN_OVER_WITHIN: SignedDuration = SignedDuration::from_secs(10);
const GONE_WITHIN: SignedDuration = SignedDuration::from_secs(30);
const BUSY_WITH_OTHERS: [SignedDuration; 2] =
    [SignedDuration::from_secs(5), SignedDuration::from_secs(10)];

/// Lets a job go on that waits, wherever its sandbox is by then, and waits for its end.
async fn let_go(client: &Client, job: &str) -> Value {
    until("the job is at its end", async || {
        client.put_file(job, "go", "").await;
        client.job(job).await["finished_at"].is_string()
    })
    .await;
    client.job(job).await
}

/// Waits until the job has no more than one sandbox.
async fn one_sandbox_is_left(job: &str) {
    until("only one sandbox is left", async || sandboxes_of(job) <= 1).await;
}

/// How many sandboxes of the job have processes: each is a pid namespace of its own.
fn sandboxes_of(job: &str) -> usize {
    let guests = host::guests_of(job).into_iter();
    guests.filter_map(host::pid_namespace).map(|space| space.name).collect::<HashSet<_>>().len()
}

async fn holder(client: &Client, job: &str) -> String {
    text(&client.wait_for(job, "claimed").await, "worker").to_owned()
}

#[tokio::test]
async fn a_job_of_a_dead_worker_goes_on_with_another_from_its_last_checkpoint() {
    let mut deployment = Deployment::start(1, 2, "");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = holder(&client, &job).await;
    let dead = deployment.worker_named(&first);
    let killed = Timestamp::now();
    deployment.workers[dead].kill();
    let claimed = claim_after(&client, &job, &first).await;
    let claimed: Timestamp = text(&claimed, "at").parse().unwrap();
    let taken_after = claimed.duration_since(killed);
    assert!(taken_after <= TAKEN_OVER_WITHIN + BUSY_WITH_OTHERS[0], "{taken_after:?}");
    let mut events = client.events(&job).await;
    events.until(|event| event["type"] == "sandbox.lost").await;
    events.until(|event| event["type"] == "workspace.restored").await;
    events.until(|event| event["type"] == "step.started" && event["n"] == 3).await;
    // Its old sandbox ends by itself.
    one_sandbox_is_left(&job).await;
    let gone_after = Timestamp::now().duration_since(killed);
    assert!(gone_after <= GONE_WITHIN + BUSY_WITH_OTHERS[1], "{gone_after:?}");
    eprintln!("taken over after {taken_after:?}; the old sandbox was gone after {gone_after:?}");
    let ended = let_go(&client, &job).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    assert_eq!(archive::text(&mut client.archive(&job).await, "count"), "once\n");
    deployment.start_worker(dead);
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    judge(&deployment, &[job]).await;
}

#[tokio::test]
async fn a_worker_that_stood_still_does_no_harm_when_it_wakes_up() {
    let mut deployment = Deployment::start(1, 2, "lease = 5\n");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = holder(&client, &job).await;
    let still = deployment.worker_named(&first);
    deployment.workers[still].signal(Signal::STOP);
    let second = taken_from(&client, &job, &first).await;
    let mut events = client.events(&job).await;
    events.until(|event| event["type"] == "claimed" && event["worker"] == second.as_str()).await;
    events.until(|event| event["type"] == "step.started" && event["n"] == 3).await;
    deployment.workers[still].signal(Signal::CONT);
    // The awakened one lets go of its sandbox; the other one's job goes on.
    one_sandbox_is_left(&job).await;
    let ended = let_go(&client, &job).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    assert_eq!(archive::text(&mut client.archive(&job).await, "count"), "once\n");
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    judge(&deployment, &[job]).await;
}

/// It has a sandbox of the job's name, but that one lacks what another worker has done since.
#[tokio::test]
async fn a_worker_that_gets_its_job_back_goes_on_from_what_others_did_meanwhile() {
    let mut deployment = Deployment::start(1, 2, "lease = 2\nsweep = 60\ngrace = 1\n");
    let client = deployment.servers[0].client.clone();
    let steps =
        [shell("echo 1 > f1"), wait_for_go(), shell("echo 3 > f3"), wait_for_go(), shell("cat f*")];
    let job = client.submit(&json!({ "steps": steps })).await;
    client.wait_for_step(&job, "step.output", 2).await;
    let first = holder(&client, &job).await;
    let still = deployment.worker_named(&first);
    deployment.workers[still].signal(Signal::STOP);
    let second = taken_from(&client, &job, &first).await;
    client.wait_for_step(&job, "step.output", 4).await;
    let told = deployment.worker_named(&second);
    deployment.workers[told].stop();
    deployment.workers[still].signal(Signal::CONT);
    let ended = client.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    assert_eq!(ended["failed_steps"], json!([2, 4]), "{ended:#}");
    assert_eq!(ended["steps"][4]["stdout"], "1\n3\n", "{ended:#}");
    let mut zip = client.archive(&job).await;
    assert_eq!(["f1", "f3"].map(|name| archive::text(&mut zip, name)), ["1\n", "3\n"]);
    deployment.start_worker(told);
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    judge(&deployment, &[job]).await;
}

/// It cannot tell this from a database that is away, so it keeps its sandbox; but it writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_alone_is_cut_off_does_no_harm() {
    let mut deployment = Deployment::start(1, 0, "lease = 4\nsweep = 60\n");
    let way = Detour::to(&deployment.database);
    deployment.add_worker(Some(&way));
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.output", 2).await;
    let first = holder(&client, &job).await;
    deployment.add_worker(None);
    way.cut();
    taken_from(&client, &job, &first).await;
    client.wait_for_step(&job, "step.output", 3).await;
    way.mend();
    // It hears that the job is another's, and ends its sandbox at once.
    one_sandbox_is_left(&job).await;
    let ended = let_go(&client, &job).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    assert_eq!(ended["generation"], 2);
    assert_eq!(archive::text(&mut client.archive(&job).await, "count"), "once\n");
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    judge(&deployment, &[job]).await;
}

#[tokio::test]
async fn while_the_database_is_away_every_server_says_so_and_does_nothing_later() {
    let mut deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.output", 2).await;
    deployment.database.stop("fast");
    let late = json!({ "steps": [shell("true")] }).to_string();
    let (status, cancel) = (format!("/status/{job}"), format!("/jobs/{job}/cancel"));
    let answers =
        tokio::join!(client.get(&status), client.post("/schedule", late), client.post(&cancel, ""));
    for answer in <[Response; 3]>::from(answers) {
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(text(&problem, "code"), "store_unavailable", "{problem:#}");
    }
    deployment.database.start_again();
    let ended = let_go(&client, &job).await;
    assert_eq!(
        (&ended["status"], &ended["cancel_requested"]),
        (&json!("completed"), &json!(false))
    );
    assert_eq!(client.json("/jobs").await["jobs"].as_array().unwrap().len(), 1);
    deployment.stop();
    judge(&deployment, &[job]).await;
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_finishes_what_it_holds_and_claims_nothing() {
    let mut deployment = Deployment::start(1, 1, "grace = 60\n");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    deployment.workers[0].signal(Signal::TERM);
    deployment.workers[0].says("no more jobs are claimed", 1).await;
    let late = client.submit(&json!({ "steps": [shell("true")] })).await;
    client.let_go(&job).await;
    assert_eq!(client.wait_for_end(&job).await["status"], "completed");
    deployment.workers[0].wait();
    assert_eq!(client.job(&late).await["status"], "scheduled");
    deployment.start_worker(0);
    assert_eq!(client.wait_for_end(&late).await["status"], "completed");
    deployment.stop();
    judge(&deployment, &[job, late]).await;
}

#[tokio::test]
async fn a_worker_whose_grace_is_over_leaves_its_jobs_to_others() {
    let mut deployment = Deployment::start(1, 2, "grace = 1\n");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = holder(&client, &job).await;
    let told = deployment.worker_named(&first);
    deployment.workers[told].stop();
    taken_from(&client, &job, &first).await;
    assert_eq!(let_go(&client, &job).await["status"], "completed");
    deployment.start_worker(told);
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    judge(&deployment, &[job]).await;
}

/// What is not begun cannot be interrupted: the job changes hands between two steps.
#[tokio::test]
async fn a_worker_that_stops_hands_a_long_job_over_at_the_end_of_a_step() {
    let mut deployment = Deployment::start(1, 2, "grace = 10\n");
    let client = deployment.servers[0].client.clone();
    let count = |n: u32| shell(&format!("echo {n} >> count; sleep 1"));
    let job = client.submit(&json!({ "steps": (1..=15).map(count).collect::<Vec<_>>() })).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = holder(&client, &job).await;
    let told = deployment.worker_named(&first);
    deployment.workers[told].stop();
    taken_from(&client, &job, &first).await;
    let ended = client.wait_for_end(&job).await;
    assert_eq!((&ended["status"], &ended["failed_steps"]), (&json!("completed"), &json!([])));
    let expected: String = (1..=15).map(|n| format!("{n}\n")).collect();
    assert_eq!(archive::text(&mut client.archive(&job).await, "count"), expected);
    deployment.stop();
    judge(&deployment, &[job]).await;
}

/// The sandbox is where the worker is; another one would have to begin with a checkpoint.
#[tokio::test]
async fn a_worker_that_is_started_again_keeps_its_jobs() {
    let mut deployment = Deployment::start(1, 2, "lease = 60\n");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = holder(&client, &job).await;
    let own = deployment.worker_named(&first);
    for generation in 2..=4 {
        deployment.workers[own].kill();
        deployment.start_worker(own);
        let mut events = client.events(&job).await;
        let claimed = events.until(|event| event["generation"] == generation).await;
        assert_eq!(claimed["worker"], first.as_str());
    }
    let ended = let_go(&client, &job).await;
    assert_eq!((&ended["status"], &ended["failed_steps"]), (&json!("completed"), &json!([])));
    deployment.stop();
    judge(&deployment, &[job]).await;
}

/// Longer than anybody else waits for an answer, and longer than a sandbox waits for its worker.
#[tokio::test]
async fn a_database_that_is_away_for_long_costs_no_job_its_sandbox() {
    let mut deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let steps = [shell("echo begun; sleep 8; echo once >> count"), shell("cat count")];
    let job = client.submit(&json!({ "steps": steps })).await;
    client.wait_for_step(&job, "step.output", 1).await;
    // Another is done, and its result, which takes a while to pack, has the log as its last file.
    let much = [shell("head -c 64M /dev/urandom > much")];
    let packing = client.submit(&json!({ "steps": much })).await;
    client.wait_for_step(&packing, "step.finished", 1).await;
    deployment.database.stop("fast");
    // The step ends meanwhile, and cannot be written down.
    deployment.workers[0].says("cannot renew leases", 2).await;
    deployment.database.start_again();
    let ended = client.wait_for_end(&job).await;
    assert_eq!((&ended["status"], &ended["generation"]), (&json!("completed"), &json!(1)));
    assert_eq!(ended["failed_steps"], json!([]));
    assert_eq!(ended["steps"][1]["stdout"], "once\n");
    let packed = client.wait_for_end(&packing).await;
    assert_eq!((&packed["status"], &packed["generation"]), (&json!("completed"), &json!(1)));
    assert!(packed["result"]["bytes"].as_u64().unwrap() > 64 << 20, "{packed:#}");
    deployment.stop();
    judge(&deployment, &[job, packing]).await;
}

#[tokio::test]
async fn a_crash_of_the_database_costs_no_job_its_place() {
    let mut deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let job = client.submit(&waiting_job()).await;
    client.wait_for_step(&job, "step.started", 2).await;
    for mode in ["fast", "immediate"] {
        deployment.database.restart(mode);
    }
    let ended = let_go(&client, &job).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    assert_eq!(ended["generation"], 1, "nobody else took it up");
    deployment.stop();
    judge(&deployment, &[job]).await;
}
