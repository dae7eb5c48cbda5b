//! Commands that speak to a server: submit, status, logs, cancel, download, jobs.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Options, TestServer, bellglass, shell, text, wait_for_go};

/// Runs a client's command against a server, without holding up this thread's own requests.
async fn command(server: &TestServer, arguments: &[&str]) -> Output {
    let mut command = bellglass(server.folder());
    command.args(arguments).env("BELLGLASS_SERVER", server.url(""));
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", stdout(output), String::from_utf8_lossy(&output.stderr))
    })
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}{said}", stdout(output));
    assert!(said.contains(words), "{said}");
}

fn job_file(server: &TestServer, name: &str, job: &Value) {
    fs::write(server.folder().join(name), job.to_string()).unwrap();
}

#[tokio::test]
async fn a_job_from_submit_to_download() {
    let server = TestServer::start();
    let job = json!({ "name": "by hand", "steps": [shell("echo said; echo made > made.txt")] });
    job_file(&server, "job.json", &job);

    let followed = command(&server, &["submit", "job.json", "-f"]).await;
    assert_eq!(followed.status.code(), Some(0));
    assert!(stdout(&followed).contains("    said\n"), "{}", stdout(&followed));
    assert!(stdout(&followed).contains("job completed"));

    // The id alone is on standard output, for scripts.
    let submitted = command(&server, &["submit", "job.json"]).await;
    let id = stdout(&submitted).trim().to_owned();
    server.wait_for_end(&id).await;

    let status = command(&server, &["status", &id, "--json"]).await;
    assert_eq!((text(&parsed(&status), "status"), status.status.code()), ("completed", Some(0)));
    let status = stdout(&command(&server, &["status", &id]).await);
    assert!(status.contains("completed") && status.contains("steps done: 1 of 1"), "{status}");

    let logs = stdout(&command(&server, &["logs", &id, "--json"]).await);
    assert_eq!(logs, server.log(&id).await);
    let logs = command(&server, &["logs", "-f", &id]).await;
    assert_eq!(logs.status.code(), Some(0));
    assert!(stdout(&logs).contains("echo said"));

    let jobs = parsed(&command(&server, &["jobs", "--json"]).await);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2);
    let jobs = stdout(&command(&server, &["jobs", "--limit", "1"]).await);
    assert!(jobs.contains(&id) && jobs.contains("by hand") && jobs.contains("and more"), "{jobs}");
    assert_eq!(stdout(&command(&server, &["jobs", "--status", "failed"]).await), "no jobs\n");

    let download = parsed(&command(&server, &["download", &id, "--json"]).await);
    let zip = fs::read(server.folder().join(format!("{id}.zip"))).unwrap();
    assert_eq!(download["bytes"], zip.len());
    assert!(zip == server.download(&id).await);
    assert!(command(&server, &["download", &id, "-o", "-"]).await.stdout == zip);
    command(&server, &["download", &id, "-o", "other.zip"]).await;
    assert!(fs::read(server.folder().join("other.zip")).unwrap() == zip);
}

#[tokio::test]
async fn a_job_is_read_from_standard_input() {
    let server = TestServer::start();
    let mut command = bellglass(server.folder());
    command.args(["submit", "-", "--json", "--server", &server.url("")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let body = json!({ "steps": [shell("true")] }).to_string();
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    let id = text(&parsed(&output), "job_id").to_owned();
    assert_eq!(server.wait_for_end(&id).await["status"], "completed");
}

#[tokio::test]
async fn the_exit_code_tells_how_a_job_ended() {
    let server = TestServer::start();
    let failing = json!({ "steps": [shell("exit 1")], "on_error": "stop" });
    job_file(&server, "failing.json", &failing);
    let followed = command(&server, &["submit", "-f", "failing.json", "--json"]).await;
    assert_eq!(followed.status.code(), Some(3));
    let last: Value = serde_json::from_str(stdout(&followed).lines().last().unwrap()).unwrap();
    assert_eq!(last["end"]["status"], "failed");
    let id = text(&last, "job");
    assert_eq!(command(&server, &["status", id]).await.status.code(), Some(3));
    assert_eq!(command(&server, &["logs", "-f", id]).await.status.code(), Some(3));
}

#[tokio::test]
async fn cancel_ends_a_job_and_says_so() {
    let server = TestServer::with_slots(1);
    let running = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&running, "step.started", 1).await;
    let queued = server.submit(&json!({ "steps": [shell("true")] })).await;
    let said = stdout(&command(&server, &["cancel", &queued]).await);
    assert_eq!(said, format!("{queued}: cancelled\n"));
    let answer = parsed(&command(&server, &["cancel", &running, "--json"]).await);
    assert_eq!(answer["job_id"], running);
    let followed = command(&server, &["logs", "-f", &running]).await;
    assert_eq!(followed.status.code(), Some(3));
    assert!(stdout(&followed).contains("job cancelled"), "{}", stdout(&followed));
}

#[tokio::test]
async fn refusals_and_silence_have_their_own_exit_codes() {
    let server = TestServer::start();
    job_file(&server, "bad.json", &json!({ "steps": [] }));
    assert_fails(&command(&server, &["submit", "bad.json"]).await, 5, "invalid_request");
    assert_fails(&command(&server, &["submit", "write me a poem"]).await, 5, "no_model_configured");
    assert_fails(&command(&server, &["submit", "missing.json"]).await, 1, "there is no file");
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for name in ["status", "logs", "cancel", "download"] {
        assert_fails(&command(&server, &[name, unknown]).await, 5, "job_not_found");
        assert_fails(&command(&server, &[name, "not-an-id"]).await, 2, "is not a job id");
    }
    assert_eq!(server.json("/jobs").await["jobs"], json!([]));

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    job_file(&server, "good.json", &json!({ "steps": [shell("true")] }));
    for arguments in [
        vec!["jobs"],
        vec!["status", unknown],
        vec!["submit", "good.json"],
        vec!["logs", "-f", unknown],
    ] {
        let arguments = [&arguments[..], &["--server", &nobody]].concat();
        assert_fails(&command(&server, &arguments).await, 4, "no server answers");
    }
}

#[tokio::test]
async fn a_token_is_asked_for_where_one_is_set() {
    let token = "0123456789abcdef0123456789abcdef";
    let environment = vec![("BELLGLASS_TOKEN", token.to_owned())];
    let server = TestServer::with(Options { environment, ..Options::default() });
    assert_eq!(server.get("/jobs").await.status(), 401);
    assert_eq!(server.get("/healthz").await.status(), 200);
    assert_fails(&command(&server, &["jobs"]).await, 5, "unauthorized");
    assert_fails(&command(&server, &["jobs", "--token", "wrong"]).await, 5, "unauthorized");
    let jobs = command(&server, &["jobs", "--token", token, "--json"]).await;
    assert_eq!(parsed(&jobs)["jobs"], json!([]));
}
