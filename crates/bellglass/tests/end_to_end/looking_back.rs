//! A model that looks back: what it reads again of its history is only read.

use serde_json::json;

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{step, text};
use crate::tasks::{events, finish, say, server_with, shell};

/// How many events a worker reads at once.
const PAGE: u64 = 200;

#[tokio::test]
async fn a_wish_that_is_read_again_is_not_fulfilled_again() {
    // Enough to fill a page of the log.
    let plan = json!({ "steps": [{ "title": "wait", "status": "pending" }] });
    let plans = (0..PAGE / 2).fold(Said::default(), |said, _| said.and_call("plan", plan.clone()));
    let wait = "echo two > a; echo waiting; until [ -e go ]; do sleep 0.02; done";
    let last = Said::call("shell", json!({ "command": "cat a; echo three > a" }));
    let script = [shell("echo one > a"), Reply::Say(plans), shell(wait), Reply::SayLater(last)];
    let model = Scripted::start(script).await;
    let server = server_with(&model, "");
    let id = server.submit(&json!({ "task": "Look back." })).await;
    server.wait_for_step(&id, "step.output", 2).await;
    let restore = server.post(&format!("/jobs/{id}/restore"), r#"{"step":1}"#).await;
    assert_eq!(restore.status(), 200);
    server.let_go(&id).await;

    // A page that ends between the wish and what came of it.
    let wanted = server.wait_for(&id, "restore.requested").await["seq"].as_u64().unwrap();
    let restored = server.wait_for(&id, "workspace.restored").await["seq"].as_u64().unwrap();
    assert!(restored > PAGE && restored - wanted < PAGE, "{wanted} {restored}");
    model.then(say("read_history", json!({ "from": restored - PAGE, "to": wanted })));
    model.then(shell("cat a"));
    model.then(finish());
    model.go_on();
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(text(step(&job, 3), "stdout"), "one\n");
    assert_eq!(text(step(&job, 4), "stdout"), "three\n");
    assert_eq!(events(&server, &job, "workspace.restored").await.len(), 1);
}
