//! A job from the request to its end: what a newcomer types, and what a failing step does.

use serde_json::{Value, json};

use crate::support::{TestServer, archive, shell, step, text};

/// The bodies of the README, byte for byte.
const TASK: &str = r#"{"task":"Build me a todo app in React"}"#;
const STEPS: &str = r#"{"steps":[{"tool":"shell","command":"ls -la /app"},{"tool":"python","code":"with open(\"hello.txt\", \"w\") as f: f.write(\"Hello from the agent!\")"},{"tool":"shell","command":"cat hello.txt"}]}"#;

#[tokio::test]
async fn the_steps_of_the_readme_run() {
    let server = TestServer::start();
    for path in ["/schedule", "/submit"] {
        let response = server.post(path, STEPS).await;
        assert_eq!(response.status(), 202);
        let accepted: Value = response.json().await.unwrap();
        let id = text(&accepted, "task_id");
        assert_eq!(accepted["job_id"], id);
        let job = server.wait_for_end(id).await;

        let by_query = server.json(&format!("/status?task_id={id}")).await;
        let by_path = server.json(&format!("/status/{id}")).await;
        assert_eq!(by_query, by_path);
        assert_eq!(by_path["status"], "completed");
        assert_eq!(by_path["failed_steps"], json!([1]));
        assert_eq!((&by_path["steps_done"], &by_path["steps_total"]), (&json!(3), &json!(3)));
        assert_eq!(by_path["result"], by_path["download_url"]);

        let failed = step(&job, 1);
        assert_eq!((&failed["status"], &failed["exit_code"]), (&json!("failed"), &json!(2)));
        assert!(text(failed, "stderr").contains("No such file or directory"), "{failed:#}");
        assert_eq!(step(&job, 3)["stdout"], "Hello from the agent!");

        assert_eq!(server.get(text(&by_path, "download_url")).await.status(), 200);
        let mut result = server.archive(id).await;
        assert_eq!(archive::text(&mut result, "hello.txt"), "Hello from the agent!");
    }
}

#[tokio::test]
async fn a_task_without_a_model_is_refused_and_nothing_is_enqueued() {
    let server = TestServer::start();
    for body in [TASK, r#"{"prompt":"Build me a todo app in React"}"#] {
        let response = server.post("/schedule", body).await;
        assert_eq!(response.status(), 422);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], "no_model_configured");
        assert!(text(&problem, "detail").contains("OPENAI_API_KEY"), "{problem:#}");
    }
    assert_eq!(server.json("/jobs").await["jobs"], json!([]));
}

#[tokio::test]
async fn the_job_says_whether_it_goes_on_after_a_failure() {
    let server = TestServer::start();
    let steps = || vec![shell("exit 3"), shell("echo on"), shell("exit 4"), shell("echo end")];

    let goes_on = server.run(&json!({ "steps": steps(), "on_error": "continue" })).await;
    assert_eq!(goes_on["status"], "completed");
    assert_eq!(goes_on["failed_steps"], json!([1, 3]));
    assert_eq!(goes_on["steps"].as_array().unwrap().len(), 4);
    assert_eq!(goes_on["error"], Value::Null);

    let stops = server.run(&json!({ "steps": steps(), "on_error": "stop" })).await;
    assert_eq!(stops["status"], "failed");
    assert_eq!(stops["failed_steps"], json!([1]));
    assert_eq!(stops["steps"].as_array().unwrap().len(), 1);
    assert_eq!(stops["error"]["code"], "step_failed");
    // What there is can still be taken home.
    server.archive(text(&stops, "job_id")).await;
}

#[tokio::test]
async fn every_step_has_all_its_fields() {
    let server = TestServer::start();
    let command = "echo out; echo err >&2; exit 7";
    let before = jiff::Timestamp::now();
    let steps = vec![shell(command), json!({ "tool": "write_file", "path": "a", "content": "" })];
    let job = server.run(&json!({ "steps": steps, "name": "fields" })).await;

    let first = step(&job, 1);
    assert_eq!(first["tool"], "shell");
    assert_eq!(first["arguments"], json!({ "command": command }));
    assert_eq!(first["status"], "failed");
    assert_eq!(first["exit_code"], 7);
    assert_eq!((text(first, "stdout"), text(first, "stderr")), ("out\n", "err\n"));
    for part in ["out\n", "err\n", "[exit code 7]"] {
        assert!(text(first, "output").contains(part), "{first:#}");
    }
    let started: jiff::Timestamp = text(first, "started_at").parse().unwrap();
    assert!(started >= before && started <= jiff::Timestamp::now());
    assert!(first["duration_ms"].is_u64());

    let second = step(&job, 2);
    assert_eq!((&second["tool"], &second["status"]), (&json!("write_file"), &json!("succeeded")));
    assert_eq!((text(second, "stdout"), text(second, "stderr")), ("", ""));
    assert!(!text(second, "output").is_empty() && second["duration_ms"].is_u64());
    assert_eq!(job["spec"]["name"], "fields");
}

#[tokio::test]
async fn files_of_the_request_lie_in_the_workspace() {
    let server = TestServer::start();
    let files = json!([
        { "path": "notes/héllo.txt", "content": "text\n" },
        { "path": "/workspace/data.bin", "content": "/wABAg==", "encoding": "base64" },
        { "path": "run.sh", "content": "#!/bin/sh\necho ran\n", "executable": true },
    ]);
    let steps = [shell("cat notes/héllo.txt; od -An -tx1 data.bin; ./run.sh; stat -c %U run.sh")];
    let job = server.run(&json!({ "steps": steps, "files": files })).await;
    assert_eq!(step(&job, 1)["stdout"], "text\n ff 00 01 02\nran\nagent\n", "{job:#}");
    let mut result = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::content(&mut result, "data.bin"), [0xff, 0, 1, 2]);
    assert_eq!(archive::mode(&mut result, "run.sh"), 0o755);
}

#[tokio::test]
async fn jobs_are_listed_and_found() {
    let server = TestServer::start();
    for name in ["first of all", "second"] {
        let body = json!({ "name": name, "steps": [shell("true")] });
        assert_eq!(server.run(&body).await["status"], "completed");
    }
    let names = |page: &Value| -> Vec<String> {
        let jobs = page["jobs"].as_array().unwrap();
        jobs.iter().map(|job| text(job, "name").to_owned()).collect()
    };
    assert_eq!(names(&server.json("/jobs").await), ["second", "first of all"]);
    let page = server.json("/jobs?limit=1").await;
    assert_eq!(names(&page), ["second"]);
    assert_eq!(names(&server.json(text(&page, "next")).await), ["first of all"]);
    assert_eq!(names(&server.json("/jobs?search=of%20all").await), ["first of all"]);
    assert_eq!(names(&server.json("/jobs?status=failed").await), Vec::<String>::new());
}

#[tokio::test]
async fn the_server_tells_operators_how_it_is() {
    let server = TestServer::start();
    server.run(&json!({ "steps": [shell("true")] })).await;
    assert_eq!(server.json("/healthz").await["status"], "ok");
    assert_eq!(server.json("/readyz").await["ready"], true);
    let metrics = server.get("/metrics").await.text().await.unwrap();
    for line in [
        "bellglass_jobs{status=\"completed\"} 1",
        "bellglass_jobs_scheduled_total 1",
        "bellglass_steps_total{tool=\"shell\"} 1",
        "bellglass_jobs_finished_total{status=\"completed\"} 1",
        "bellglass_sandboxes_running 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(server.json("/openapi.json").await["paths"]["/schedule"].is_object());
    assert_eq!(server.get("/docs").await.status(), 200);
}
