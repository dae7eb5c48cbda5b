//! A job's log: complete, chained, and any change to it is found.

use std::fs;
use std::process::Output;

use bellglass_protocol::chain::Verifier;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::support::{TestServer, archive, bellglass, shell, text};

fn verify(server: &TestServer, what: &str) -> Output {
    let mut command = bellglass(server.folder());
    command.args(["verify", "--json", what, "--data"]).arg(server.data());
    command.output().unwrap()
}

#[track_caller]
fn assert_valid(output: &Output, events: usize) {
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["valid"], true, "{found:#}");
    assert_eq!(found["events"], events);
    assert_eq!(output.status.code(), Some(0));
}

#[track_caller]
fn assert_broken(output: &Output) {
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["valid"], false, "{found:#}");
    assert_eq!(output.status.code(), Some(3));
}

async fn finished_job(server: &TestServer) -> String {
    let steps = [shell("echo these are the true words"), shell("sleep 0.2; echo more; exit 2")];
    let job = server.run(&json!({ "steps": steps })).await;
    text(&job, "job_id").to_owned()
}

#[tokio::test]
async fn the_log_is_one_chain_from_scheduled_to_finished() {
    let mut server = TestServer::start();
    let job = finished_job(&server).await;
    let log = server.log(&job).await;
    let mut verifier = Verifier::new(Some(job.parse().unwrap()));
    let kind = |line| verifier.line(line).unwrap().body.kind().to_owned();
    let kinds: Vec<String> = log.lines().map(kind).collect();
    assert_eq!(verifier.finish().unwrap().0, kinds.len() as u64);
    let without_output: Vec<&str> =
        kinds.iter().map(String::as_str).filter(|kind| *kind != "step.output").collect();
    assert_eq!(
        without_output,
        [
            "scheduled",
            "claimed",
            "sandbox.ready",
            "step.started",
            "step.finished",
            "step.started",
            "step.finished",
            "result.stored",
            "concluded",
            "finished",
        ]
    );

    assert_valid(&verify(&server, &job), kinds.len());
    assert!(server.stop().success());
    assert_valid(&verify(&server, &job), kinds.len());
}

#[tokio::test]
async fn server_sent_events_carry_the_same_lines_and_can_be_resumed() {
    let server = TestServer::start();
    let job = finished_job(&server).await;
    let log = server.log(&job).await;
    let sse = async |after: Option<u64>| {
        let mut request = server.request(reqwest::Method::GET, &format!("/jobs/{job}/events"));
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = response.text().await.unwrap();
        let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(String::from).collect::<Vec<_>>()
    };
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(sse(None).await, lines);
    assert_eq!(sse(Some(4)).await, lines[4..]);
}

#[tokio::test]
async fn the_zip_holds_the_log_and_the_memory() {
    let server = TestServer::start();
    let job = finished_job(&server).await;
    let mut result = server.archive(&job).await;

    let agent_log = archive::text(&mut result, "agent.log");
    let whole = server.log(&job).await;
    assert!(whole.starts_with(&agent_log), "it is the log up to the moment of packing");
    assert!(agent_log.contains("\"type\":\"step.finished\""));
    let file = server.folder().join("agent.log");
    fs::write(&file, &agent_log).unwrap();
    assert_valid(&verify(&server, "agent.log"), agent_log.lines().count());

    let memory: Value = serde_json::from_str(&archive::text(&mut result, "memory.json")).unwrap();
    assert_eq!(memory["job_id"], job);
    assert_eq!(memory["failed_steps"], json!([2]));
    let history = memory["history"].as_array().unwrap();
    assert_eq!(history.len(), 2);
    assert_eq!(history[0]["arguments"]["command"], "echo these are the true words");
    assert_eq!(history[0]["result"], "these are the true words\n");
    assert_eq!(history[1]["exit_code"], 2);
    let served = server.json(&format!("/jobs/{job}/memory.json")).await;
    assert_eq!(served["history"], memory["history"]);
}

#[tokio::test]
async fn a_changed_file_is_found() {
    let server = TestServer::start();
    let job = finished_job(&server).await;
    let honest = server.log(&job).await;
    let file = server.folder().join("log.jsonl");
    let lines: Vec<&str> = honest.lines().collect();
    let without = |n: usize| {
        let kept = lines.iter().enumerate().filter(|(at, _)| *at != n);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    for tampered in [
        honest.replacen("true words", "false word", 1),
        honest.replacen("\"seq\":2", "\"seq\":3", 1),
        honest.replacen("\"status\":\"failed\"", "\"status\":\"succeeded\"", 1),
        without(0),
        without(3),
        String::new(),
        "not a log\n".into(),
    ] {
        assert_ne!(tampered, honest);
        fs::write(&file, &tampered).unwrap();
        assert_broken(&verify(&server, "log.jsonl"));
    }
    fs::write(&file, &honest).unwrap();
    assert_valid(&verify(&server, "log.jsonl"), lines.len());
}

/// Runs a statement as somebody who has the database file.
async fn meddle(server: &TestServer, statement: &'static str) {
    let options = SqliteConnectOptions::new().filename(server.data().join("bellglass.db"));
    let mut connection = options.connect().await.unwrap();
    let done = sqlx::query(statement).execute(&mut connection).await.unwrap();
    assert!(done.rows_affected() > 0);
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_changed_database_is_found_whether_the_server_runs_or_not() {
    let mut server = TestServer::start();
    let (changed, shortened) = (finished_job(&server).await, finished_job(&server).await);
    meddle(
        &server,
        "UPDATE events SET line = replace(line, 'true words', 'fake words') \
         WHERE job_id = (SELECT MIN(job_id) FROM events)",
    )
    .await;
    let delete = "DELETE FROM events WHERE seq = 5 \
                  AND job_id = (SELECT MAX(job_id) FROM events)";
    meddle(&server, delete).await;
    assert_broken(&verify(&server, &changed));
    assert_broken(&verify(&server, &shortened));
    assert!(server.stop().success());
    assert_broken(&verify(&server, &changed));
    assert_broken(&verify(&server, &shortened));
}

#[tokio::test]
async fn an_end_that_was_cut_off_is_missed() {
    let server = TestServer::start();
    let job = finished_job(&server).await;
    meddle(&server, "DELETE FROM events WHERE seq > 5").await;
    assert_broken(&verify(&server, &job));
}

#[tokio::test]
async fn a_line_that_is_no_event_is_a_broken_log() {
    let server = TestServer::start();
    let job = finished_job(&server).await;
    meddle(&server, "UPDATE events SET line = 'x' WHERE seq = 3").await;
    assert_broken(&verify(&server, &job));
}

#[tokio::test]
async fn what_cannot_be_verified_is_said() {
    let server = TestServer::start();
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (what, words) in [(unknown, "there is no job"), ("nothing-like-it", "is not a job id")] {
        let output = verify(&server, what);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(words), "{said}");
    }
}
