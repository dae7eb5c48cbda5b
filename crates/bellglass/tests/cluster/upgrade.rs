//! An upgrade in which a newer program is at work already, and the servers and workers of this one still are.

use serde_json::{Value, json};

use crate::deployment::{Deployment, until};
use crate::newer::{NewerProgram, verified};
use crate::support::{Client, archive, shell, text, wait_for_go};
use crate::verdict::{judge, judge_job};

fn weather() -> Value {
    json!({ "type": "weather.changed", "to": { "sky": ["rain", 0.5, null] }, "by": "ada" })
}

/// What every server says of a job that has ended in whose log these lines of a newer program are.
async fn is_told_whole(deployment: &Deployment, job: &str, lines: &[String]) {
    for server in &deployment.servers {
        let client = &server.client;
        let status = client.json(&format!("/status/{job}")).await;
        assert_eq!(status["status"], "completed", "{status:#}");
        let view = client.job(job).await;
        assert_eq!((&view["status"], &view["error"]), (&json!("completed"), &Value::Null));
        let log = client.log(job).await;
        let streamed = client.get(&format!("/jobs/{job}/events")).await.text().await.unwrap();
        for line in lines {
            assert!(log.lines().any(|found| found == line), "{line} is not in {log}");
            assert!(streamed.contains(&format!("data: {line}\n")), "{line} is not in {streamed}");
        }
        assert_eq!(client.json("/jobs").await["jobs"][0]["status"], "completed");
        let output = client.get(&format!("/jobs/{job}/steps/1/output")).await;
        assert_eq!(output.text().await.unwrap(), "once\n");
        assert_eq!(archive::text(&mut client.archive(job).await, "count"), "once\n");
    }
    let found = verified(deployment, Some(job));
    assert_eq!((&found["valid"], &found["status"]), (&json!(true), &json!("completed")));
}

#[tokio::test]
async fn events_of_a_newer_program_stand_in_nobodys_way() {
    let mut deployment = Deployment::start(2, 2, "");
    let client = deployment.servers[0].client.clone();
    let count = || shell("echo once | tee -a count");
    let over = client.run(&json!({ "steps": [count()] })).await;
    let over = text(&over, "job_id").to_owned();
    let mut newer = NewerProgram::start(&deployment).await;
    let after_the_end = newer.write(&over, weather()).await;
    is_told_whole(&deployment, &over, &[after_the_end]).await;

    let steps = [count(), wait_for_go(), wait_for_go(), shell("cat count")];
    let job = client.submit(&json!({ "steps": steps })).await;
    client.wait_for_step(&job, "step.started", 2).await;
    let first = text(&client.wait_for(&job, "claimed").await, "worker").to_owned();
    let mut lines = vec![newer.write(&job, weather()).await];
    // A kind that is known, said in a way that is not.
    let place = json!({ "type": "live.opened", "by": "ada", "place": { "moon": "far side" } });
    lines.push(newer.write(&job, place).await);
    assert_eq!(client.job(&job).await["status"], "running");

    let dead = deployment.worker_named(&first);
    deployment.workers[dead].kill();
    let mut events = client.events(&job).await;
    events.until(|event| event["type"] == "weather.changed").await;
    events.until(|event| event["type"] == "claimed" && event["worker"] != first.as_str()).await;
    events.until(|event| event["type"] == "step.started" && event["n"] == 3).await;
    lines.push(newer.write(&job, weather()).await);
    until("the job is at its end", async || {
        client.put_file(&job, "go", "").await;
        client.job(&job).await["finished_at"].is_string()
    })
    .await;
    is_told_whole(&deployment, &job, &lines).await;
    let recorded = archive::text(&mut client.archive(&job).await, "agent.log");
    assert!(lines.iter().all(|line| recorded.lines().any(|found| found == line)), "{recorded}");

    let noted = newer.note(json!({ "type": "moon.moved", "to": "there" })).await;
    let memory = json!({ "project": "shop", "text": "the till is in the cellar" }).to_string();
    assert_eq!(client.post("/memories", memory).await.status(), 201);
    let audit = client.get("/audit").await.text().await.unwrap();
    assert_eq!(audit.lines().next(), Some(noted.as_str()));
    assert_eq!(verified(&deployment, None)["entries"], 2);

    deployment.start_worker(dead);
    deployment.until_nothing_is_left(std::slice::from_ref(&job)).await;
    deployment.stop();
    // Not the other, behind whose end something stands.
    judge_job(&deployment.store().await, job.parse().unwrap()).await;
}

/// A job of a newer program, with what this one does not know at every place where there may be something.
fn newer_job() -> Value {
    json!({
        "steps": [
            { "tool": "teleport", "to": "moon" },
            shell("echo here"),
            { "tool": "shell", "command": "echo there", "gravity": 0.16 },
        ],
        "on_error": "continue", "priority": 50, "image": "base", "network": "none",
        "isolation": "namespace", "limits": { "photons": 7 }, "weather": "fine",
    })
}

async fn is_shown(client: &Client, job: &str, status: &str) -> Value {
    let view = client.job(job).await;
    assert_eq!((&view["status"], &view["steps_total"]), (&json!(status), &json!(3)), "{view:#}");
    assert_eq!(view["spec"]["steps"], newer_job()["steps"]);
    assert_eq!(client.json(&format!("/status/{job}")).await["status"], status);
    view
}

#[tokio::test]
async fn a_job_that_asks_for_something_new_waits_for_a_newer_worker() {
    let mut deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let mut newer = NewerProgram::start(&deployment).await;
    let job = newer.schedule(newer_job(), 1).await;
    // Whoever claims takes the best job first, and that would have been the other.
    let later = client.run(&json!({ "steps": [shell("true")] })).await;
    assert_eq!(later["status"], "completed", "{later:#}");
    is_shown(&client, &job, "scheduled").await;

    // A worker that takes it up all the same does what it can, and says what it cannot.
    newer.needs_nothing_new(&job).await;
    let ended = client.wait_for_end(&job).await;
    assert_eq!(ended, is_shown(&client, &job, "completed").await);
    assert_eq!(ended["failed_steps"], json!([1, 3]));
    assert_eq!(ended["steps"][0]["tool"], "teleport");
    assert_eq!(ended["steps"][0]["error"]["code"], "invalid_argument");
    assert_eq!(ended["steps"][1]["stdout"], "here\n");
    assert_eq!(verified(&deployment, Some(&job))["valid"], true);
    deployment.stop();
    judge(&deployment, &[job, text(&later, "job_id").to_owned()]).await;
}

#[tokio::test]
async fn a_worker_that_cannot_read_where_a_job_stands_hands_it_back() {
    let deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let mut newer = NewerProgram::start(&deployment).await;
    let job = newer.schedule(newer_job(), 1).await;
    let ready =
        newer.write(&job, json!({ "type": "sandbox.ready", "report": "on the moon" })).await;
    newer.needs_nothing_new(&job).await;
    let released = client.wait_for(&job, "released").await;
    assert_eq!(released["generation"], 1);
    is_left_to_newer(&client, &mut newer, &job).await;
    let log = client.log(&job).await;
    let known = log.lines().filter(|line| *line != ready);
    let kinds: Vec<Value> = known.map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = kinds.iter().map(|event| text(event, "type")).collect();
    assert_eq!(kinds, ["scheduled", "claimed", "released"]);
    is_shown(&client, &job, "running").await;
}

/// Though nobody said that it needs something new, nor can anybody here see what it is.
#[tokio::test]
async fn a_job_that_cannot_be_read_is_handed_back_once_and_can_be_cancelled() {
    let deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let mut newer = NewerProgram::start(&deployment).await;
    let mut spec = newer_job();
    spec["isolation"] = json!("far side of the moon");
    let job = newer.schedule(spec, 0).await;
    assert_eq!(client.wait_for(&job, "released").await["generation"], 1);
    is_left_to_newer(&client, &mut newer, &job).await;
    assert_eq!(client.cancel(&job).await["status"], "cancelled");
    let kinds: Vec<Value> =
        client.log(&job).await.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = kinds.iter().map(|event| text(event, "type")).collect();
    assert_eq!(kinds, ["scheduled", "claimed", "released", "cancel.requested", "finished"]);
}

/// Whether no worker of this version takes a job up that it let go of, though it is nobody's.
async fn is_left_to_newer(client: &Client, newer: &mut NewerProgram, job: &str) {
    assert_eq!(newer.needed(job).await, Some(1));
    let log = client.log(job).await;
    newer.let_lease_run_out(job).await;
    // Whoever claims takes the best job first, and that would have been the other.
    let later = client.run(&json!({ "steps": [shell("true")] })).await;
    assert_eq!(later["status"], "completed", "{later:#}");
    assert_eq!(client.log(job).await, log);
}

#[tokio::test]
async fn a_worker_that_meets_something_new_about_its_own_job_goes_no_further() {
    let deployment = Deployment::start(1, 1, "");
    let client = deployment.servers[0].client.clone();
    let mut newer = NewerProgram::start(&deployment).await;
    let steps = [wait_for_go(), shell("true")];
    let job = client.submit(&json!({ "steps": steps, "priority": 50 })).await;
    client.wait_for_step(&job, "step.started", 1).await;
    newer.write(&job, json!({ "type": "network.changed", "network": "the moon's" })).await;
    client.put_file(&job, "go", "").await;
    client.wait_for(&job, "released").await;
    is_left_to_newer(&client, &mut newer, &job).await;
    let log = client.log(&job).await;
    assert_eq!(log.matches("\"type\":\"step.started\"").count(), 1, "{log}");
    assert_eq!(client.job(&job).await["status"], "running");
}
