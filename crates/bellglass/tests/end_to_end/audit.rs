//! Who did what through the API stands in logs that can be proven: in a job's own what was done in its
//! sandbox, in the audit log what was done to the server.

use std::process::Output;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::crash::verified_kinds;
use crate::support::{TestServer, bellglass, host, text};

/// A session whose sandbox takes files.
async fn session(server: &TestServer) -> String {
    let session = server.submit(&json!({ "session": {} })).await;
    server.wait_for(&session, "sandbox.ready").await;
    // It can be reached a moment after that.
    while server.get(&format!("/jobs/{session}/files")).await.status() != 200 {
        tokio::task::yield_now().await;
    }
    session
}

#[tokio::test]
async fn what_people_do_to_files_is_written_down_and_outlives_the_sandbox() {
    let mut server = TestServer::start();
    let job = session(&server).await;
    let mut events = server.events(&job).await;
    for path in ["conf/a.env", "b"] {
        assert_eq!(server.put_file(&job, path, "a=1\n").await.status(), 204);
        events.until(|event| event["type"] == "checkpoint.stored").await;
    }
    let gone = server.request(Method::DELETE, &format!("/jobs/{job}/files/b")).send().await;
    assert_eq!(gone.unwrap().status(), 204);
    events.until(|event| event["type"] == "checkpoint.stored").await;
    // What was refused is not there to be written down.
    let refused = server.request(Method::DELETE, &format!("/jobs/{job}/files/no")).send().await;
    assert_eq!(refused.unwrap().status(), 404);

    let guest = server.guest_pid(&job);
    server.kill();
    host::kill_and_wait(guest);
    server.start_again();
    server.events(&job).await.until(|event| event["type"] == "workspace.restored").await;
    let kept = loop {
        let read = server.get(&format!("/jobs/{job}/files/conf/a.env")).await;
        if read.status() == 200 {
            break read.text().await.unwrap();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(kept, "a=1\n");
    assert_eq!(server.get(&format!("/jobs/{job}/files/b")).await.status(), 404);

    let log = server.log(&job).await;
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let written: Vec<&Value> = events.iter().filter(|e| e["type"] == "file.written").collect();
    assert_eq!(written.len(), 2, "{log}");
    assert_eq!((text(written[0], "by"), text(written[0], "path")), ("user", "conf/a.env"));
    assert_eq!(written[0]["bytes"], 4);
    assert_eq!(
        written[0]["sha256"],
        "fe3209d6d4f51935b391288a43df48d9ddece1a992597ae53387ca16611a9179"
    );
    let deleted: Vec<&Value> = events.iter().filter(|e| e["type"] == "file.deleted").collect();
    assert_eq!(deleted.len(), 1, "{log}");
    assert_eq!((text(deleted[0], "by"), text(deleted[0], "path")), ("user", "b"));
    verified_kinds(&server, &job).await;
}

#[tokio::test]
async fn a_call_is_written_down_though_whoever_made_it_is_gone() {
    let server = TestServer::start();
    let job = session(&server).await;
    let command = "touch begun; while [ ! -e go ]; do sleep 0.02; done; echo all of it > whole";
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "shell", "arguments": { "command": command } },
    });
    let request = server.request(Method::POST, &format!("/jobs/{job}/mcp"));
    let request = request.header("content-type", "application/json").body(message.to_string());
    let asking = tokio::spawn(request.send());
    while server.get(&format!("/jobs/{job}/files/begun")).await.status() != 200 {
        tokio::task::yield_now().await;
    }
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    server.let_go(&job).await;
    let used = server.wait_for(&job, "tool.used").await;
    assert_eq!(used["call"]["command"], command);
    assert_eq!(used["outcome"]["status"], "succeeded", "{used:#}");
    assert_eq!(
        server.get(&format!("/jobs/{job}/files/whole")).await.text().await.unwrap(),
        "all of it\n"
    );
}

/// A job that is cancelled takes the call with it, and still says that there was one.
#[tokio::test]
async fn a_call_that_the_jobs_end_cut_short_is_written_down_before_it() {
    let server = TestServer::start();
    let job = session(&server).await;
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "shell", "arguments": { "command": "touch begun; sleep 600" } },
    });
    let request = server.request(Method::POST, &format!("/jobs/{job}/mcp"));
    let request = request.header("content-type", "application/json").body(message.to_string());
    let asking = tokio::spawn(request.send());
    while server.get(&format!("/jobs/{job}/files/begun")).await.status() != 200 {
        tokio::task::yield_now().await;
    }
    server.cancel(&job).await;
    server.wait_for_end(&job).await;
    let kinds = verified_kinds(&server, &job).await;
    assert!(kinds.contains(&"tool.used".to_owned()), "{kinds:?}");
    assert_eq!(kinds.last().map(String::as_str), Some("finished"));
    asking.await.unwrap().unwrap();
}

fn verify_audit(server: &TestServer, file: Option<&str>) -> Output {
    let mut command = bellglass(server.folder());
    command.args(["verify", "--audit", "--json"]).args(file).arg("--data").arg(server.data());
    command.output().unwrap()
}

fn said(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn what_is_done_to_the_server_stands_in_a_chain_of_its_own() {
    let mut server = TestServer::start();
    let made = server.post("/tokens", json!({ "user": "anna" }).to_string()).await;
    assert_eq!(made.status(), 201);
    let made: Value = made.json().await.unwrap();
    let memory = json!({ "project": "shop", "text": "The door is blue." });
    assert_eq!(server.post("/memories", memory.to_string()).await.status(), 201);

    // Whoever is no administrator does not see it.
    let request = reqwest::Client::new().get(server.url("/audit"));
    let refused = request.bearer_auth(text(&made, "token")).send().await.unwrap();
    assert_eq!(refused.status(), 403);

    let audit = server.get("/audit").await;
    assert_eq!(audit.headers()["content-type"], "application/x-ndjson");
    let audit = audit.text().await.unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| text(line, "type")).collect();
    assert_eq!(kinds, ["token.created", "memory.added"]);
    assert_eq!((text(&lines[0], "by"), text(&lines[0], "user")), ("user", "anna"));
    assert!(!audit.contains(text(&made, "token")), "no secret is in it");
    let later = server.get("/audit?after=1").await.text().await.unwrap();
    assert_eq!(later.lines().count(), 1);

    std::fs::write(server.folder().join("audit.jsonl"), &audit).unwrap();
    for whole in [verify_audit(&server, None), verify_audit(&server, Some("audit.jsonl"))] {
        assert_eq!((&said(&whole)["valid"], &said(&whole)["entries"]), (&json!(true), &json!(2)));
        assert_eq!(whole.status.code(), Some(0));
    }
    std::fs::write(server.folder().join("audit.jsonl"), audit.replace("anna", "bert")).unwrap();
    assert_eq!(verify_audit(&server, Some("audit.jsonl")).status.code(), Some(3));

    assert!(server.stop().success());
    let options = SqliteConnectOptions::new().filename(server.data().join("bellglass.db"));
    let mut database = options.connect().await.unwrap();
    sqlx::query("DELETE FROM audit WHERE seq = 2").execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    let shortened = verify_audit(&server, None);
    assert_eq!(said(&shortened)["valid"], false);
    assert_eq!(shortened.status.code(), Some(3));
}
