//! The policy by which old jobs are removed, and what it leaves alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Options, TestServer, shell, step, text, wait_for_go};

/// A server looks for old jobs when it starts.
async fn until_forgotten(server: &TestServer, job: &str) {
    let began = Instant::now();
    while server.get(&format!("/jobs/{job}")).await.status() != 404 {
        assert!(began.elapsed() < Duration::from_secs(60), "the old job is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn old_jobs_are_forgotten_but_not_what_another_goes_on_from() {
    // Everything that has ended is old.
    let config = "[worker]\nkeep_days = 0\n";
    let mut server = TestServer::with(Options { config, slots: Some(2), ..Options::default() });
    let parent = server.run(&json!({ "steps": [shell("echo kept > file")] })).await;
    let parent = text(&parent, "job_id").to_owned();
    let steps = json!([wait_for_go(), shell("cat file")]);
    let fork = json!({ "step": 1, "steps": steps });
    let accepted = server.post(&format!("/jobs/{parent}/fork"), fork.to_string()).await;
    assert_eq!(accepted.status(), 202);
    let accepted: Value = accepted.json().await.unwrap();
    let fork = text(&accepted, "job_id").to_owned();
    server.wait_for_step(&fork, "step.output", 1).await;
    let other = server.run(&json!({ "steps": [shell("echo gone > file")] })).await;
    let other = text(&other, "job_id").to_owned();
    let has_result = |server: &TestServer, job: &str| {
        server.data().join("artifacts/jobs").join(job).join("g1/output.zip").exists()
    };
    assert!(has_result(&server, &parent) && has_result(&server, &other));

    assert!(server.stop().success());
    server.start_again();
    // It ended after the parent, so by then that was passed over.
    until_forgotten(&server, &other).await;
    assert!(has_result(&server, &parent) && !has_result(&server, &other));
    assert_eq!(server.job(&parent).await["status"], "completed");
    server.let_go_under_successor(&fork).await;
    let ended = server.wait_for_end(&fork).await;
    assert_eq!(step(&ended, 2)["stdout"], "kept\n", "{ended:#}");

    // Nothing goes on from it now.
    assert!(server.stop().success());
    server.start_again();
    for job in [&parent, &fork] {
        until_forgotten(&server, job).await;
        assert!(!has_result(&server, job));
    }
}
