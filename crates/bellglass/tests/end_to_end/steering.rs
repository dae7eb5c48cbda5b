//! What a user can do to a job that runs: say something, pause it, let it go on.

use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, shell, text, wait_for_go};

fn server_with(model: &Scripted) -> TestServer {
    let environment = vec![("OPENAI_BASE_URL", model.base_url())];
    TestServer::with(Options { environment, ..Options::default() })
}

async fn post(server: &TestServer, job: &str, what: &str, body: &str) -> (u16, Value) {
    let response = server.post(&format!("/jobs/{job}/{what}"), body.to_owned()).await;
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_question_pauses_the_job_until_it_is_answered() {
    let ask = Said::call("ask_user", json!({ "question": "Red or blue?" }));
    let model = Scripted::start([Reply::Say(ask), Reply::Say(Said::finish("Blue it is."))]).await;
    let mut server = server_with(&model);
    let job = server.submit(&json!({ "task": "Paint." })).await;
    server.wait_for(&job, "paused").await;
    // Also a server that starts again keeps waiting.
    server.kill();
    server.start_again();
    server.events(&job).await.until(|event| event["generation"] == 2).await;
    let view = server.job(&job).await;
    assert_eq!((text(&view, "status"), text(&view, "question")), ("paused", "Red or blue?"));
    let (status, answer) = post(&server, &job, "messages", r#"{"text":"Blue."}"#).await;
    assert_eq!((status, text(&answer, "status")), (200, "paused"));
    let ended = server.wait_for_end(&job).await;
    assert_eq!((text(&ended, "status"), text(&ended, "summary")), ("completed", "Blue it is."));
    let heard = model.asked()[1].body["messages"][3].clone();
    assert_eq!(
        (text(&heard, "role"), text(&heard, "content")),
        ("tool", "The user answers: Blue.")
    );
}

#[tokio::test]
async fn a_message_is_heard_before_the_next_answer() {
    let wait = json!({ "command": "echo waiting; until [ -e go ]; do sleep 0.02; done" });
    let script = [Reply::Say(Said::call("shell", wait)), Reply::Say(Said::finish("ok"))];
    let model = Scripted::start(script).await;
    let server = server_with(&model);
    let job = server.submit(&json!({ "task": "Wait." })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let (status, _) = post(&server, &job, "messages", r#"{"text":"Hurry up!"}"#).await;
    assert_eq!(status, 200);
    server.let_go(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "completed");
    let messages = model.asked()[1].body["messages"].clone();
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|message| text(message, "role")).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    assert!(text(&messages[4], "content").ends_with("Hurry up!"));
}

#[tokio::test]
async fn a_paused_job_does_nothing_and_then_goes_on() {
    let server = TestServer::start();
    let steps = json!([wait_for_go(), shell("echo on"), shell("echo end")]);
    // Less time than it is paused for.
    let job = server.submit(&json!({ "steps": steps, "limits": { "time": 20 } })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    for _ in 0..2 {
        let (status, answer) = post(&server, &job, "pause", "").await;
        assert_eq!((status, text(&answer, "status")), (200, "paused"));
    }
    server.let_go(&job).await;
    server.wait_for_step(&job, "step.finished", 1).await;
    assert_eq!(server.json(&format!("/status/{job}")).await["status"], "paused");
    let (status, answer) = post(&server, &job, "resume", "").await;
    assert_eq!((status, text(&answer, "status")), (200, "running"));
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    // Nothing was done between the two.
    let log = server.log(&job).await;
    let kinds: Vec<String> = log
        .lines()
        .map(|line| text(&serde_json::from_str(line).unwrap(), "type").to_owned())
        .collect();
    let at = |kind: &str| kinds.iter().position(|each| each == kind).unwrap();
    let between = &kinds[at("paused")..at("resumed")];
    assert!(!between.contains(&"step.started".to_owned()), "{between:?}");
}

#[tokio::test]
async fn a_paused_job_can_be_cancelled() {
    let ask = Said::call("ask_user", json!({ "question": "May I?" }));
    let model = Scripted::start([Reply::Say(ask)]).await;
    let server = server_with(&model);
    let job = server.submit(&json!({ "task": "Ask." })).await;
    server.wait_for(&job, "paused").await;
    server.cancel(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "cancelled");
    let (status, problem) = post(&server, &job, "messages", r#"{"text":"Yes."}"#).await;
    assert_eq!((status, text(&problem, "code")), (409, "job_ended"));
}

#[tokio::test]
async fn what_cannot_be_said_is_refused() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    for (body, status, code) in [
        (r#"{"text":"x"}"#, 422, "invalid_request"),
        (r#"{"text":" "}"#, 422, "invalid_request"),
        (r#"{"txt":"x"}"#, 422, "invalid_request"),
        ("{", 400, "invalid_json"),
    ] {
        let (got, problem) = post(&server, &job, "messages", body).await;
        assert_eq!((got, text(&problem, "code")), (status, code), "{body}");
    }
    server.wait_for_step(&job, "step.output", 1).await;
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
    let (status, problem) = post(&server, &job, "pause", "").await;
    assert_eq!((status, text(&problem, "code")), (409, "job_ended"));
}

#[tokio::test]
async fn a_plan_waits_for_approval_where_the_user_wants_that() {
    let plan = json!({ "steps": [{ "title": "make it", "status": "pending" }] });
    let make = json!({ "command": "echo made > it.txt" });
    let script = [
        Reply::Say(Said::call("shell", make.clone())),
        Reply::Say(Said::call("plan", plan)),
        Reply::Say(Said::call("shell", make)),
        Reply::Say(Said::finish("Made.")),
    ];
    let model = Scripted::start(script).await;
    let server = server_with(&model);
    let job = server.submit(&json!({ "task": "Make it.", "plan": "review" })).await;
    server.wait_for(&job, "paused").await;
    let view = server.job(&job).await;
    assert_eq!((&view["plan"][0]["title"], &view["steps"]), (&json!("make it"), &json!([])));
    assert_eq!(post(&server, &job, "resume", "").await.0, 200);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["steps"].as_array().unwrap().len(), 1);
}
