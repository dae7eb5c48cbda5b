//! Looking at jobs: status, list, one whole, memory, steps, cancelling.

use std::collections::HashSet;

use axum::http::StatusCode;
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::{OutputStream, StepOutcome, StepStatus};
use bellglass_protocol::tool::{Shell, ToolCall};
use bellglass_store::artifacts::ArtifactKey;

use crate::harness::{HELLO, Harness};

fn step_started(n: u32) -> EventBody {
    let shell = Shell { command: "ls -la /app".into(), ..Default::default() };
    EventBody::StepStarted { n, call: ToolCall::Shell(shell) }
}

fn step_finished(n: u32, full_output: Option<String>) -> EventBody {
    let outcome = StepOutcome {
        status: StepStatus::Failed,
        exit_code: Some(2),
        signal: None,
        stdout: "out\n".into(),
        stderr: "ls: cannot access '/app'\n".into(),
        output: "ls: cannot access '/app'\nexit code 2".into(),
        output_bytes: 30,
        unkept_bytes: 0,
        dropped_bytes: 0,
        full_output,
        attachments: Vec::new(),
        error: None,
        duration_ms: 4,
    };
    EventBody::StepFinished { n, outcome: Box::new(outcome) }
}

#[tokio::test]
async fn both_forms_of_the_status_follow_a_job_to_its_end() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let by_path = format!("/status/{job}");
    let status = server.get(&by_path).await.json();
    assert_eq!(status["status"], "scheduled");
    assert_eq!((&status["steps_done"], &status["steps_total"]), (&0.into(), &1.into()));
    assert!(status["result"].is_null() && status["download_url"].is_null());
    assert!(status["error"].is_null() && status["started_at"].is_null());

    let claim = server.claim().await;
    server.append(claim, step_started(1)).await;
    server.append(claim, step_finished(1, None)).await;
    assert_eq!(server.get(&by_path).await.json()["status"], "running");
    server.store_result(claim, b"PK".to_vec()).await;
    server.finish(claim, EndStatus::Failed).await;

    let status = server.get(&by_path).await.json();
    assert_eq!(status["status"], "failed");
    assert_eq!(status["failed_steps"], serde_json::json!([1]));
    assert_eq!(status["steps_done"], 1);
    assert_eq!(status["error"]["code"], "time_limit");
    assert_eq!(status["result"], format!("/jobs/{job}/output.zip"));
    assert_eq!(status["download_url"], status["result"]);
    for query in [format!("task_id={job}"), format!("job_id={job}&unknown=1")] {
        assert_eq!(server.get(&format!("/status?{query}")).await.json(), status);
    }
}

#[tokio::test]
async fn wrong_ids_are_told_apart() {
    let server = Harness::new().await;
    let unknown = JobId::generate();
    let upper = unknown.to_string().to_uppercase();
    for (path, status, code) in [
        (format!("/status/{unknown}"), 404, "job_not_found"),
        (format!("/status?task_id={unknown}"), 404, "job_not_found"),
        (format!("/jobs/{unknown}"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/events"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/events?format=jsonl"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/output.zip"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/memory.json"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/steps/1/output"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/files"), 404, "job_not_found"),
        (format!("/jobs/{unknown}/files/a"), 404, "job_not_found"),
        (format!("/status/{upper}"), 400, "invalid_job_id"),
        ("/status/1".into(), 400, "invalid_job_id"),
        ("/status/%ff".into(), 400, "invalid_job_id"),
        ("/status/..%2f..%2fetc".into(), 400, "invalid_job_id"),
        ("/jobs/x/events".into(), 400, "invalid_job_id"),
        ("/status?task_id=x".into(), 400, "invalid_job_id"),
        ("/status?task_id=".into(), 400, "invalid_job_id"),
        ("/status".into(), 400, "invalid_query"),
        (format!("/status?task_id={unknown}&job_id={}", JobId::generate()), 400, "invalid_query"),
        (format!("/status?task_id={unknown}&task_id={unknown}"), 400, "invalid_query"),
        (format!("/jobs/{unknown}/events?after=x"), 400, "invalid_query"),
        (format!("/jobs/{unknown}/events?after=-1"), 400, "invalid_query"),
        (format!("/jobs/{unknown}/events?format=xml"), 400, "invalid_query"),
        (format!("/jobs/{unknown}/events?follow=maybe"), 400, "invalid_query"),
        (format!("/jobs/{unknown}/steps/0/output"), 400, "invalid_step"),
        (format!("/jobs/{unknown}/steps/+1/output"), 400, "invalid_step"),
        (format!("/jobs/{unknown}/steps/99999999999/output"), 400, "invalid_step"),
        ("/jobs?limit=0".into(), 400, "invalid_query"),
        ("/jobs?limit=201".into(), 400, "invalid_query"),
        ("/jobs?limit=many".into(), 400, "invalid_query"),
        ("/jobs?before=x".into(), 400, "invalid_query"),
        ("/jobs?status=asleep".into(), 400, "invalid_query"),
        ("/jobs?search=%00".into(), 400, "invalid_query"),
    ] {
        assert_eq!(server.get(&path).await.problem(), (status, code.into()), "{path}");
    }
    let cancel = server.post(&format!("/jobs/{unknown}/cancel"), "").await;
    assert_eq!(cancel.problem(), (404, "job_not_found".into()));
}

#[tokio::test]
async fn the_list_pages_through_all_jobs_once() {
    let server = Harness::new().await;
    let mut expected = HashSet::new();
    for n in 0..7 {
        let body =
            format!(r#"{{"name":"a & b {n}","steps":[{{"tool":"shell","command":"echo {n}"}}]}}"#);
        expected.insert(server.schedule(&body).await.to_string());
    }
    server.schedule(HELLO).await;
    let mut seen = Vec::new();
    let mut next = Some("/jobs?limit=3&search=a+%26+b&status=scheduled&unknown=x".to_string());
    while let Some(path) = next {
        let page = server.get(&path).await.json();
        let jobs = page["jobs"].as_array().unwrap();
        assert!((1..=3).contains(&jobs.len()));
        seen.extend(jobs.iter().map(|job| job["job_id"].as_str().unwrap().to_owned()));
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(seen.len(), 7);
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), expected);
    assert_eq!(server.get("/jobs?status=failed").await.json()["jobs"], serde_json::json!([]));
}

#[tokio::test]
async fn a_job_whole_carries_its_steps() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    server.append(claim, step_started(1)).await;
    let text = "out\n".to_string();
    let output = EventBody::StepOutput { n: 1, stream: OutputStream::Stdout, text };
    server.append(claim, output).await;
    let running = server.get(&format!("/jobs/{job}/steps/1/output")).await;
    assert_eq!(running.text(), "out\n");
    server.append(claim, step_finished(1, None)).await;

    let body = server.get(&format!("/jobs/{job}")).await.json();
    assert_eq!(body["task_id"], job.to_string());
    assert_eq!(body["logs_url"], format!("/jobs/{job}/events?format=jsonl"));
    let step = &body["steps"][0];
    assert_eq!(step["n"], 1);
    assert_eq!(step["tool"], "shell");
    assert_eq!(step["arguments"], serde_json::json!({"command": "ls -la /app"}));
    assert_eq!(step["status"], "failed");
    assert_eq!(step["exit_code"], 2);
    assert_eq!(step["stdout"], "out\n");
    assert_eq!(step["duration_ms"], 4);
    assert!(step["started_at"].is_string() && step["output"].is_string());

    let memory = server.get(&format!("/jobs/{job}/memory.json")).await.json();
    assert_eq!(memory["history"][0]["exit_code"], 2);
}

#[tokio::test]
async fn the_output_of_a_step_comes_in_full() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    for n in 1..=2 {
        server.append(claim, step_started(n)).await;
    }
    server.append(claim, step_finished(1, None)).await;
    let long = "<script>alert(1)</script>\n".repeat(10_000);
    let key = ArtifactKey::step_output(job, 2);
    server.artifacts.put(&key, long.clone().into()).await.unwrap();
    server.append(claim, step_finished(2, Some(key.to_string()))).await;

    let short = server.get(&format!("/jobs/{job}/steps/1/output")).await;
    assert_eq!(short.text(), "out\nls: cannot access '/app'\n");
    let full = server.get(&format!("/jobs/{job}/steps/2/output")).await;
    assert_eq!(full.text(), long);
    assert_eq!(full.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(full.header("x-content-type-options"), "nosniff");
    assert!(full.header("content-security-policy").starts_with("sandbox;"));
    let missing = server.get(&format!("/jobs/{job}/steps/3/output")).await;
    assert_eq!(missing.problem(), (404, "step_not_found".into()));
}

#[tokio::test]
async fn cancelling_is_idempotent_and_answers_the_status() {
    let server = Harness::new().await;
    let queued = server.schedule(HELLO).await;
    for _ in 0..2 {
        let answer = server.post(&format!("/jobs/{queued}/cancel"), "").await;
        assert_eq!(
            (answer.status, &answer.json()["status"]),
            (StatusCode::OK, &"cancelled".into())
        );
    }
    let running = server.schedule(HELLO).await;
    let claim = server.claim().await;
    for _ in 0..2 {
        let answer = server.post(&format!("/jobs/{running}/cancel"), "").await;
        assert_eq!(answer.json()["status"], "running");
    }
    assert_eq!(server.get(&format!("/status/{running}")).await.json()["cancel_requested"], true);
    server.finish(claim, EndStatus::Completed).await;
    let answer = server.post(&format!("/jobs/{running}/cancel"), "").await;
    assert_eq!(answer.json()["status"], "completed");
}

#[tokio::test]
async fn a_policy_is_changed_until_the_job_ends() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let change = async |job: JobId, body: &str| {
        let request = axum::http::Request::put(format!("/jobs/{job}/network"))
            .header("host", "localhost")
            .header("content-type", "application/json");
        server.send(request.body(body.to_owned().into()).unwrap()).await
    };
    let answer = change(job, r#"{"network": {"allow": ["*.example.com:443"]}}"#).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let allow = serde_json::json!({ "allow": ["*.example.com:443"] });
    assert_eq!(
        (&answer.json()["status"], &answer.json()["network"]),
        (&"scheduled".into(), &allow)
    );
    assert_eq!(server.get(&format!("/jobs/{job}")).await.json()["network"], allow);
    for (body, expected) in [
        (r#"{"network": "all"}"#, (422, "invalid_request")),
        (r#"{}"#, (422, "invalid_request")),
        (r#"["open"]"#, (422, "invalid_request")),
        ("{", (400, "invalid_json")),
    ] {
        let (status, code) = expected;
        assert_eq!(change(job, body).await.problem(), (status, code.into()), "{body}");
    }
    let unknown = change(JobId::generate(), r#"{"network": "none"}"#).await;
    assert_eq!(unknown.problem(), (404, "job_not_found".into()));
    let claim = server.claim().await;
    server.finish(claim, EndStatus::Completed).await;
    let late = change(job, r#"{"network": "none"}"#).await;
    assert_eq!(late.problem(), (409, "job_ended".into()));
}
