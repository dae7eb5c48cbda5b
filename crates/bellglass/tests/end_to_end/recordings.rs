//! Recordings: what models were asked and answered, played again without any model.
//!
//! The recordings in `examples/` are made here too, by a scripted model: `scripts/record-examples.sh`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, archive, text};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap()
}

fn read_json(path: &Path) -> Value {
    let content =
        fs::read_to_string(path).unwrap_or_else(|_| panic!("{} is there", path.display()));
    serde_json::from_str(&content).unwrap()
}

/// What the scripted model says in an example. Long texts stand in files of their own.
fn script(name: &str) -> Vec<Reply> {
    let folder = examples().join("scripted");
    let turns = read_json(&folder.join(format!("{name}.json")));
    let files = folder.join(name);
    let turns = turns.as_array().unwrap().iter().map(|turn| {
        let mut said = Said::text(turn["text"].as_str().unwrap_or_default());
        for call in turn["calls"].as_array().unwrap() {
            said = said.and_call(call[0].as_str().unwrap(), with_files(&call[1], &files));
        }
        Reply::Say(said)
    });
    turns.collect()
}

fn with_files(arguments: &Value, folder: &Path) -> Value {
    let mut arguments = arguments.clone();
    for argument in arguments.as_object_mut().unwrap().values_mut() {
        if let Some(file) = argument["$file"].as_str() {
            let mut content = fs::read_to_string(folder.join(file)).unwrap();
            if let (Some(old), Some(new)) =
                (argument["replace"][0].as_str(), argument["replace"][1].as_str())
            {
                assert!(content.contains(old), "{file} does not hold {old}");
                content = content.replace(old, new);
            }
            *argument = content.into();
        }
    }
    arguments
}

/// A server that records what the model says.
fn recording_server(model: &Scripted, folder: &Path) -> TestServer {
    TestServer::with(Options {
        environment: vec![
            ("OPENAI_BASE_URL", model.base_url()),
            ("BELLGLASS_RECORD", "1".into()),
            ("BELLGLASS_RECORDINGS", folder.display().to_string()),
        ],
        ..Options::default()
    })
}

/// A server without any model.
fn replaying_server(folder: &Path) -> TestServer {
    let environment = vec![("BELLGLASS_RECORDINGS", folder.display().to_string())];
    TestServer::with(Options { environment, ..Options::default() })
}

/// Records an example anew where that is wanted, and plays it again.
async fn example(name: &str) -> (Value, TestServer) {
    let mut body = read_json(&examples().join(format!("{name}.json")));
    let recordings = examples().join("recordings");
    if std::env::var_os("UPDATE_RECORDINGS").is_some() {
        let model = Scripted::start(script(name)).await;
        let folder = tempfile::tempdir().unwrap();
        let server = recording_server(&model, folder.path());
        let job = server.run(&body).await;
        assert_eq!(job["status"], "completed", "{:#}", job["error"]);
        assert_eq!(model.left(), 0, "the whole script was used");
        let recorded = folder.path().join(format!("{}.jsonl", text(&job, "job_id")));
        fs::copy(recorded, recordings.join(format!("{name}.jsonl"))).unwrap();
    }
    let server = replaying_server(&recordings);
    body["model"] = format!("replay/{name}").into();
    let job = server.run(&body).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    (job, server)
}

#[tokio::test]
async fn the_example_that_fixes_a_failing_test_plays_again() {
    let (job, server) = example("fix-failing-test").await;
    assert!(text(&job, "summary").contains("All 7 tests pass"), "{:#}", job["summary"]);
    let mut zip = server.archive(text(&job, "job_id")).await;
    assert!(archive::text(&mut zip, "basket.py").contains(">= DISCOUNT_FROM"));
}

/// Installs packages from the registries that this host itself is configured for.
#[tokio::test]
async fn the_example_that_builds_a_react_app_plays_again() {
    let (job, server) = example("react-todo-app").await;
    let tests: Vec<&Value> = job["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["arguments"]["command"] == "npm test --silent")
        .collect();
    // The first run finds the fault, the second one finds none.
    assert_eq!(tests.len(), 2);
    assert!(text(tests[0], "stdout").contains("fail 1"), "{:#}", tests[0]);
    assert!(text(tests[1], "stdout").contains("pass 6"), "{:#}", tests[1]);
    assert_eq!(job["failed_steps"], json!([tests[0]["n"]]));
    let names = archive::names(&server.archive(text(&job, "job_id")).await);
    for file in ["dist/app.js", "dist/index.html", "src/App.jsx", "test/todos.test.jsx"] {
        assert!(names.iter().any(|name| name == file), "{file} is not in {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with("node_modules/")), "{names:?}");
}

fn shell(command: &str) -> Reply {
    Reply::Say(Said::call("shell", json!({ "command": command })))
}

#[tokio::test]
async fn a_replay_ends_where_the_world_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let busy = Reply::Fail {
        status: 429,
        body: r#"{"error":{"message":"slow down"}}"#.into(),
        header: Some(("retry-after", "0")),
    };
    let wait = "echo waiting; until grep -q ready go; do sleep 0.02; done";
    let script = [shell("cat word; date +%s%N"), busy, shell(wait), Reply::Say(Said::finish("ok"))];
    let model = Scripted::start(script).await;
    let server = recording_server(&model, folder.path());
    let body = |word: &str, go: &str| {
        let files = json!([{ "path": "word", "content": word }, { "path": "go", "content": go }]);
        json!({ "task": "Read it.", "files": files })
    };
    let job = server.run(&body("apple ", "ready")).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let recording = text(&job, "job_id");

    let mut server = replaying_server(folder.path());
    let replay = |word: &str, go: &str| {
        let mut body = body(word, go);
        body["model"] = format!("replay/{recording}").into();
        body
    };
    // The same but for the time of day.
    let same = server.run(&replay("apple ", "ready")).await;
    assert_eq!(same["status"], "completed", "{:#}", same["error"]);
    assert_eq!(same["usage"], job["usage"]);

    let other = server.run(&replay("pear ", "ready")).await;
    assert_eq!(other["status"], "failed");
    assert_eq!(other["error"]["code"], "replay_diverged");
    let message = text(&other["error"], "message");
    assert!(message.contains("message 3 before answer 2"), "{message}");
    assert!(message.contains("apple") && message.contains("pear"), "{message}");

    // A server that is killed in the middle finds its place again.
    let id = server.submit(&replay("apple ", "")).await;
    server.wait_for_step(&id, "step.output", 2).await;
    server.kill();
    server.start_again();
    server.events(&id).await.until(|event| event["generation"] == 2).await;
    while server.put_file(&id, "go", "ready").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    let ended = server.wait_for_end(&id).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);

    let absent = server.run(&json!({ "task": "x", "model": "replay/absent" })).await;
    assert_eq!(absent["error"]["code"], "model_refused");
    assert!(text(&absent["error"], "message").contains("absent.jsonl"), "{absent:#}");
}
