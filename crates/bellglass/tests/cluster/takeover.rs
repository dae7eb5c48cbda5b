//! What happens to jobs whose worker dies, stands still, or is told to stop.

use std::collections::HashSet;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::deployment::{Deployment, until};
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
    let mut events = client.events(job).await;
    let is_taken = |event: &Value| event["type"] == "claimed" && event["worker"] != before;
    text(&events.until(is_taken).await, "worker").to_owned()
}

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
    deployment.workers[dead].kill();
    let killed = Instant::now();
    taken_from(&client, &job, &first).await;
    // How soon depends on the machine too; what the times add up to is tested beside the defaults.
    eprintln!("taken over after {:?}", killed.elapsed());
    let mut events = client.events(&job).await;
    events.until(|event| event["type"] == "sandbox.lost").await;
    events.until(|event| event["type"] == "workspace.restored").await;
    events.until(|event| event["type"] == "step.started" && event["n"] == 3).await;
    // Its old sandbox ends by itself.
    one_sandbox_is_left(&job).await;
    eprintln!("the old sandbox was gone after {:?}", killed.elapsed());
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
