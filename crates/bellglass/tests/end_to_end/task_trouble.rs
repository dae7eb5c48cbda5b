//! Tasks that do not go straight on: cancelled while the model speaks or rests, left by their model, going
//! round in circles of every kind, or out of time.

use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::text;
use crate::tasks::{events, finish, run, say, server_with, server_with_fallback, shell};

#[tokio::test]
async fn a_task_can_be_cancelled_while_its_model_speaks() {
    let words = Said::text("This is a long answer of which you will hear the first half only.");
    let model = Scripted::start([Reply::SayInHalves(words)]).await;
    let server = server_with(&model, "");
    let job = server.submit(&json!({ "task": "Speak." })).await;
    server.wait_for(&job, "model.said").await;
    server.cancel(&job).await;
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "cancelled");
    assert_eq!(model.asked().len(), 1);
    assert_eq!(events(&server, &ended, "model.answered").await.len(), 0);
}

#[tokio::test]
async fn a_task_can_be_cancelled_while_its_model_rests() {
    let busy = Reply::Fail { status: 429, body: "{}".into(), header: Some(("retry-after", "50")) };
    let model = Scripted::start([busy, finish()]).await;
    let server = server_with(&model, "");
    let job = server.submit(&json!({ "task": "Wait." })).await;
    server.wait_for(&job, "model.failed").await;
    server.cancel(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "cancelled");
    // It was not asked again.
    assert_eq!((model.asked().len(), model.left()), (1, 1));
}

#[tokio::test]
async fn a_model_that_stays_busy_leaves_the_task_to_the_fallback() {
    let busy =
        |_| Reply::Fail { status: 429, body: "{}".into(), header: Some(("retry-after-ms", "1")) };
    let first = Scripted::start((0..50).map(busy)).await;
    let second = Scripted::start([shell("echo done"), finish()]).await;
    let server = server_with_fallback(&first, &second);
    let job = server.run(&json!({ "task": "Do it." })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(job["steps"][0]["output"], "done\n", "{job:#}");
    let answers = events(&server, &job, "model.answered").await;
    assert!(answers.iter().all(|event| event["answer"]["model"] == "local/b"));
    let failures = events(&server, &job, "model.failed").await;
    assert_eq!(failures.len(), first.asked().len());
    // It was given more than one chance, and not all there are.
    assert!(first.asked().len() > 1 && first.left() > 0, "{}", first.asked().len());
}

#[tokio::test]
async fn a_plan_is_changed_by_words_and_shown_again() {
    let plan =
        |title: &str| say("plan", json!({ "steps": [{ "title": title, "status": "pending" }] }));
    let script = [plan("use blue"), plan("use red"), shell("echo red > it.txt"), finish()];
    let model = Scripted::start(script).await;
    let server = server_with(&model, "");
    let job = server.submit(&json!({ "task": "Paint.", "plan": "review" })).await;
    let mut log = server.events(&job).await;
    let is_pause = |event: &Value| event["type"] == "paused";
    log.until(is_pause).await;
    assert_eq!(server.job(&job).await["plan"][0]["title"], "use blue");
    let body = json!({ "text": "Red, please." }).to_string();
    assert_eq!(server.post(&format!("/jobs/{job}/messages"), body).await.status(), 200);
    log.until(is_pause).await;
    let view = server.job(&job).await;
    assert_eq!((&view["plan"][0]["title"], &view["steps"]), (&json!("use red"), &json!([])));
    let heard = model.asked()[1].body["messages"].to_string();
    assert!(heard.contains("Red, please."), "{heard}");
    assert_eq!(server.post(&format!("/jobs/{job}/resume"), "").await.status(), 200);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["steps"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn every_kind_of_circle_ends_after_one_warning() {
    let in_turn = |n: usize| shell(if n.is_multiple_of(2) { "echo left" } else { "echo right" });
    let wrong = |_| say("shell", json!({ "comand": "ls" }));
    let wrong_in_turn =
        |n: usize| if n.is_multiple_of(2) { wrong(n) } else { shell("echo between") };
    let wrong_differently = |n: usize| match n % 3 {
        0 => wrong(n),
        1 => say("teleport", json!({ "to": "the moon" })),
        _ => say("read_file", json!({ "file": "a" })),
    };
    // Nothing changes but the time.
    let timed = |_| shell("echo passed in 0.$(date +%N)s");
    let silent = |_| Reply::Say(Said::text(""));
    let sorry = |_| Reply::Say(Said::text("I am sorry, I apologize. Let me try that again."));
    let scripts: [(&str, Vec<Reply>); 7] = [
        ("alternating", (0..40).map(in_turn).collect()),
        ("wrong arguments", (0..40).map(wrong).collect()),
        ("wrong in turn", (0..40).map(wrong_in_turn).collect()),
        ("wrong differently", (0..40).map(wrong_differently).collect()),
        ("another time", (0..60).map(timed).collect()),
        ("nothing said", (0..40).map(silent).collect()),
        ("apologies", (0..40).map(sorry).collect()),
    ];
    for (what, script) in scripts {
        let (job, server, model) = run(script, json!({})).await;
        assert_eq!(job["status"], "failed", "{what}");
        assert_eq!(job["error"]["code"], "stuck", "{what}: {:#}", job["error"]);
        assert!(!text(&job["error"], "message").is_empty());
        let nudges = events(&server, &job, "model.nudged").await;
        assert_eq!(nudges.len(), 1, "{what}: {nudges:#?}");
        assert!(model.left() > 20, "{what}: it was let go on for {} turns", model.asked().len());
    }
}

#[tokio::test]
async fn time_that_runs_out_in_the_middle_ends_the_task_with_its_work_kept() {
    let script = [
        shell("echo first > first.txt"),
        shell("echo second > second.txt; sleep 19"),
        shell("echo third > third.txt"),
        finish(),
    ];
    let (job, server, _) = run(script, json!({ "budget": { "time": "18s" } })).await;
    assert_eq!(job["error"]["code"], "budget_exhausted", "{job:#}");
    let names = crate::support::archive::names(&server.archive(text(&job, "job_id")).await);
    let has = |name: &str| names.iter().any(|each| each.ends_with(name));
    assert!(has("first.txt") && has("second.txt") && !has("third.txt"), "{names:?}");
}

#[tokio::test]
async fn a_call_that_fails_leaves_those_beside_it_alone() {
    let both = Said::call("shell", json!({ "command": "echo no >&2; exit 3" }))
        .and_call("shell", json!({ "command": "echo yes" }))
        .and_call("read_file", json!({ "path": "nowhere.txt" }));
    let (job, _, model) = run([Reply::Say(both), finish()], json!({})).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let statuses: Vec<&str> =
        job["steps"].as_array().unwrap().iter().map(|step| text(step, "status")).collect();
    assert_eq!(statuses, ["failed", "succeeded", "failed"]);
    // Each is told under its own call, in the order in which they were made.
    let messages = model.asked()[1].body["messages"].clone();
    let told: Vec<&Value> =
        messages.as_array().unwrap().iter().filter(|message| message["role"] == "tool").collect();
    let calls = messages[2]["tool_calls"].as_array().unwrap();
    assert_eq!((told.len(), calls.len()), (3, 3));
    for ((told, call), part) in told.iter().zip(calls).zip(["3", "yes", "nowhere.txt"]) {
        assert_eq!(told["tool_call_id"], call["id"]);
        assert!(text(told, "content").contains(part), "{told:#}");
    }
}
