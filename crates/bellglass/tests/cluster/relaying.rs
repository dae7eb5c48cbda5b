//! Any server answers for any job, wherever its sandbox is.

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::deployment::Deployment;
use crate::support::{archive, shell, text, wait_for_go};

#[tokio::test]
async fn every_server_reaches_the_sandbox_of_every_job() {
    let mut deployment = Deployment::start(2, 2, "");
    let steps = json!({ "steps": [shell("echo one > made"), wait_for_go(), shell("cat note")] });
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(deployment.servers[0].client.submit(&steps).await);
    }
    let other = &deployment.servers[1].client;
    for job in &jobs {
        other.wait_for_step(job, "step.started", 2).await;
        assert_eq!(
            other.get(&format!("/jobs/{job}/files/made")).await.text().await.unwrap(),
            "one\n"
        );
        other.put_file(job, "note", "from afar").await;
        let folder = other.json(&format!("/jobs/{job}/files")).await;
        let names: Vec<_> =
            folder["entries"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
        assert_eq!(names, ["made", "note"]);
        let missing = other.get(&format!("/jobs/{job}/files/none")).await;
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
        other.let_go(job).await;
    }
    for job in &jobs {
        let ended = deployment.servers[0].client.wait_for_end(job).await;
        assert_eq!(ended["status"], "completed", "{ended:#}");
        assert_eq!(ended["steps"][2]["stdout"], "from afar");
        let mut zip = deployment.servers[1].client.archive(job).await;
        assert_eq!(archive::text(&mut zip, "note"), "from afar");
    }
    deployment.stop();
    deployment.until_nothing_is_left(&jobs).await;
}

/// Whoever asked is answered when the job has gone elsewhere, and not when the worker wakes up.
#[tokio::test]
async fn a_worker_that_stands_still_holds_up_no_request_for_ever() {
    let mut deployment = Deployment::start(1, 2, "lease = 2\n");
    let client = deployment.servers[0].client.clone();
    let steps = [shell("echo one > made"), wait_for_go(), wait_for_go(), wait_for_go()];
    let job = client.submit(&json!({ "steps": steps })).await;
    client.wait_for_step(&job, "step.output", 2).await;
    let first = text(&client.wait_for(&job, "claimed").await, "worker").to_owned();
    let still = deployment.worker_named(&first);
    deployment.workers[still].signal(Signal::STOP);
    let files = format!("/jobs/{job}/files/made");
    let answer = client.get(&files).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json::<Value>().await.unwrap()["code"], "sandbox_unreachable");
    client.wait_for_step(&job, "step.output", 3).await;
    assert_eq!(client.get(&files).await.text().await.unwrap(), "one\n");
    deployment.workers[still].signal(Signal::CONT);
    client.cancel(&job).await;
    client.wait_for_end(&job).await;
    deployment.until_nothing_is_left(&[job]).await;
    deployment.stop();
}

/// The port that workers have for servers gives nothing to those who do not know the secret.
#[tokio::test]
async fn a_worker_answers_nobody_but_its_servers() {
    let deployment = Deployment::start(1, 1, "");
    let client = &deployment.servers[0].client;
    let job = client.submit(&json!({ "steps": [wait_for_go()] })).await;
    client.wait_for_step(&job, "step.started", 1).await;
    let store = deployment.store().await;
    let address = bellglass_store::Store::address_of_holder(&store, job.parse().unwrap());
    let address = address.await.unwrap().unwrap();
    for path in ["/", "/healthz", "/jobs", &format!("/jobs/{job}/files")] {
        let answer = reqwest::get(format!("http://{address}{path}")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let forged = reqwest::Client::new()
        .get(format!("http://{address}/jobs/{job}/files"))
        .header("bellglass-relay", format!("v1 {} 1 - {}", 1_800_000_000, "00".repeat(32)));
    assert_eq!(forged.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    client.let_go(&job).await;
    client.wait_for_end(&job).await;
}
