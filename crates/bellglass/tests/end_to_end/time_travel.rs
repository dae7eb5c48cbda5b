//! Earlier workspaces of a job: seen as diffs, fetched, restored, and gone on from in forks.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::{Value, json};

use crate::levels::has_gvisor;
use crate::scripted::{Reply, Said, Scripted};
use crate::support::{
    Options, TestServer, archive, bellglass, host, shell, step, text, wait_for_go,
};

/// Everything about the workspace that must come back, as one text.
const LOOK: &str = "find . -mindepth 1 -printf '%P|%y|%m|%l|%T@\\n' | sed '/|[dl]|/s/|[0-9.]*$//' \
                    | LC_ALL=C sort; find . -type f -exec sha256sum {} + | LC_ALL=C sort";

/// Each changes something of another kind.
const CHANGES: [&str; 7] = [
    "mkdir -p src/deep empty-folder; echo one > src/a; printf 'x\\0y\\377' > src/deep/binary; : > zero",
    "chmod 700 src/a; ln -s src/a link; ln -s /nowhere/at/all dangling; chmod 1750 src/deep",
    "printf odd > \"$(printf 'not\\377utf8')\"; printf 'new\\nline' > \"$(printf 'with\\nbreak')\"",
    "rm -r src/deep; echo two >> src/a; cp src/a copy",
    "rm link; mkdir link; echo inside > link/file; mv zero moved; chmod 500 link",
    "true",
    "chmod 700 link; rm -rf src link; head -c 300000 /dev/urandom > large; touch -d 2001-02-03 copy",
];

async fn post(server: &TestServer, job: &str, what: &str, body: Value) -> (u16, Value) {
    let response = server.post(&format!("/jobs/{job}/{what}"), body.to_string()).await;
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn fork(server: &TestServer, job: &str, body: Value) -> String {
    let (status, answer) = post(server, job, "fork", body).await;
    assert_eq!(status, 202, "{answer:#}");
    text(&answer, "job_id").to_owned()
}

async fn get_text(server: &TestServer, path: &str) -> (u16, String) {
    let response = server.get(path).await;
    (response.status().as_u16(), response.text().await.unwrap())
}

/// A job whose steps make changes and show what there is then.
async fn changed(server: &TestServer) -> (String, Value) {
    let steps = CHANGES.map(|change| shell(&format!("{change}; {LOOK}")));
    let files = json!([{ "path": "given", "content": "at the start", "executable": true }]);
    let job = server.run(&json!({ "steps": steps, "files": files })).await;
    assert_eq!((text(&job, "status"), &job["failed_steps"]), ("completed", &json!([])), "{job:#}");
    (text(&job, "job_id").to_owned(), job)
}

#[tokio::test]
async fn a_fork_at_any_step_has_exactly_the_files_of_that_step() {
    let server = TestServer::start();
    let (job, parent) = changed(&server).await;
    let mut forks = Vec::new();
    for n in 0..=CHANGES.len() {
        forks.push(fork(&server, &job, json!({ "step": n, "steps": [shell(LOOK)] })).await);
    }
    for (n, id) in forks.iter().enumerate() {
        let ended = server.wait_for_end(id).await;
        assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
        assert_eq!(ended["spec"]["fork"]["job"], json!(job));
        let seen = text(step(&ended, 1), "stdout");
        match n {
            0 => assert!(seen.starts_with("given|f|755||"), "{seen}"),
            n => assert_eq!(seen, text(step(&parent, n), "stdout"), "step {n}"),
        }
    }
    // A fork of a fork, which stands on its own checkpoints.
    let again = fork(&server, &forks[3], json!({ "step": 0, "steps": [shell(LOOK)] })).await;
    let ended = server.wait_for_end(&again).await;
    assert_eq!(step(&ended, 1)["stdout"], step(&parent, 3)["stdout"]);
    // Without new steps those that are left are run.
    let rest = fork(&server, &job, json!({ "step": 5, "name": "the rest" })).await;
    let ended = server.wait_for_end(&rest).await;
    assert_eq!((text(&ended["spec"], "name"), &ended["steps_total"]), ("the rest", &json!(2)));
    let lines = |step: &Value| text(step, "stdout").lines().count();
    assert_eq!(lines(step(&ended, 2)), lines(step(&parent, 7)));
}

/// Its kernel lacks calls that the others use.
#[tokio::test]
async fn a_fork_on_gvisors_kernel_has_the_same_files_too() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let steps = CHANGES.map(|change| shell(&format!("{change}; {LOOK}")));
    let parent = server.run(&json!({ "steps": steps, "isolation": "gvisor" })).await;
    let id = text(&parent, "job_id");
    for n in [2, 5] {
        let forked = fork(&server, id, json!({ "step": n, "steps": [shell(LOOK)] })).await;
        let ended = server.wait_for_end(&forked).await;
        assert_eq!(step(&ended, 1)["stdout"], step(&parent, n)["stdout"], "{:#}", ended["error"]);
    }
}

#[tokio::test]
async fn what_each_step_did_can_be_seen_and_fetched() {
    let server = TestServer::start();
    let (job, parent) = changed(&server).await;
    let diff = async |n: usize| get_text(&server, &format!("/jobs/{job}/steps/{n}/diff")).await.1;
    let first = diff(1).await;
    assert!(
        first.contains("new file mode 100644\n--- /dev/null\n+++ b/src/a\n@@ -0,0 +1 @@\n+one")
    );
    assert!(first.contains("Binary files /dev/null and b/src/deep/binary differ"), "{first}");
    assert!(!first.contains("given"), "{first}");
    let second = diff(2).await;
    assert!(second.contains("old mode 100644\nnew mode 100700\n"), "{second}");
    assert!(second.contains("new file mode 120000\n"), "{second}");
    let fourth = diff(4).await;
    assert!(fourth.contains("@@ -1 +1,2 @@\n one\n+two\n"), "{fourth}");
    assert!(fourth.contains("deleted file mode"), "{fourth}");
    assert_eq!(diff(6).await, "");
    assert!(step(&parent, 6)["changes"].is_null());
    assert_eq!(step(&parent, 4)["changes"], json!({ "added": 1, "changed": 1, "deleted": 2 }));
    let (status, problem) = get_text(&server, &format!("/jobs/{job}/steps/8/diff")).await;
    assert_eq!(status, 404, "{problem}");

    let response = server.get(&format!("/jobs/{job}/steps/4/files.tar")).await;
    assert_eq!(response.status(), 200);
    let bytes = response.bytes().await.unwrap();
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path_bytes().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let link = entry.link_name_bytes().map(|link| link.into_owned());
        found.insert(name, (entry.header().mode().unwrap(), link, content));
    }
    assert_eq!(found[&b"src/a"[..]], (0o700, None, b"one\ntwo\n".to_vec()));
    assert_eq!(found[&b"not\xffutf8"[..]].2, b"odd");
    assert_eq!(found[&b"dangling"[..]].1.as_deref(), Some(&b"/nowhere/at/all"[..]));
    assert_eq!(found[&b"given"[..]].0, 0o755);
    assert!(!found.contains_key(&b"moved"[..]));

    let mut command = bellglass(server.folder());
    command.args(["diff", &job, "4"]).env("BELLGLASS_SERVER", server.url(""));
    let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), fourth);
}

#[tokio::test]
async fn a_paused_job_goes_back_to_an_earlier_workspace() {
    let server = TestServer::start();
    let steps = [
        shell("echo 1 > a"),
        shell("echo 2 > a; echo 2 > b"),
        wait_for_go(),
        shell("cat a; ls"),
        shell("echo 5 >> a; cat a"),
    ];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 3).await;
    assert_eq!(post(&server, &job, "pause", json!({})).await.0, 200);
    server.let_go(&job).await;
    server.wait_for_step(&job, "step.finished", 3).await;
    assert_eq!(post(&server, &job, "restore", json!({ "step": 9 })).await.0, 404);
    assert_eq!(post(&server, &job, "restore", json!({ "step": "x" })).await.0, 422);
    assert_eq!(post(&server, &job, "restore", json!({ "step": 1 })).await.0, 200);
    let restored = server.wait_for(&job, "workspace.restored").await;
    assert_eq!((&restored["step"], &restored["entries"]), (&json!(1), &json!(1)));
    assert_eq!(post(&server, &job, "resume", json!({})).await.0, 200);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(step(&ended, 4)["stdout"], "1\na\n");
    assert_eq!(step(&ended, 5)["stdout"], "1\n5\n");
    // What came after is told from there.
    let (_, diff) = get_text(&server, &format!("/jobs/{job}/steps/5/diff")).await;
    assert!(diff.ends_with("@@ -1 +1,2 @@\n 1\n+5\n"), "{diff}");
    assert_eq!(post(&server, &job, "restore", json!({ "step": 1 })).await.0, 409);
    let late = fork(&server, &job, json!({ "step": 2, "steps": [shell("cat a b")] })).await;
    assert_eq!(step(&server.wait_for_end(&late).await, 1)["stdout"], "2\n2\n");
}

fn call(command: &str) -> Reply {
    Reply::Say(Said::call("shell", json!({ "command": command })))
}

fn server_with(model: &Scripted) -> TestServer {
    let environment = vec![("OPENAI_BASE_URL", model.base_url())];
    TestServer::with(Options { environment, ..Options::default() })
}

fn messages(model: &Scripted, at: usize) -> Vec<(String, String)> {
    let messages = model.asked()[at].body["messages"].as_array().unwrap().clone();
    let read = |message: &Value| {
        let content = message["content"].as_str().unwrap_or_default().to_owned();
        (text(message, "role").to_owned(), content)
    };
    messages.iter().map(read).collect()
}

#[tokio::test]
async fn a_forked_task_knows_what_was_said_until_then_and_hears_something_new() {
    let model = Scripted::start([
        call("echo first > a; echo THE-FIRST-OUTPUT"),
        Reply::Say(
            Said::call("shell", json!({ "command": "echo second > a" }))
                .and_call("shell", json!({ "command": "echo third > a" })),
        ),
        Reply::Say(Said::finish("Done.")),
        // The fork.
        call("cat a"),
        Reply::Say(Said::call("recall", json!({ "query": "THE-FIRST-OUTPUT" }))),
        Reply::Say(Said::call("read_output", json!({ "step": 1 }))),
        Reply::Say(Said::finish("Done differently.")),
    ])
    .await;
    let server = server_with(&model);
    let parent = server.run(&json!({ "task": "Count." })).await;
    assert_eq!(parent["status"], "completed", "{:#}", parent["error"]);
    let id = text(&parent, "job_id");
    let (status, problem) = post(&server, id, "fork", json!({ "step": 2 })).await;
    assert_eq!((status, text(&problem, "code")), (422, "invalid_request"));
    let forked = fork(&server, id, json!({ "step": 2, "message": "Count backwards." })).await;
    let ended = server.wait_for_end(&forked).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["summary"], "Done differently.");
    // Its steps count on from those that it knows.
    assert_eq!(
        (&ended["steps"][0]["n"], &ended["steps"][0]["stdout"]),
        (&json!(3), &json!("second\n"))
    );

    let heard = messages(&model, 3);
    let roles: Vec<&str> = heard.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "tool", "tool", "user"]);
    assert!(heard[1].1.starts_with("Count."));
    assert!(heard[3].1.starts_with("THE-FIRST-OUTPUT"));
    assert!(heard[6].1.starts_with("not done"), "{}", heard[6].1);
    let last = &heard[7].1;
    assert!(last.contains("as they were after step 2"), "{last}");
    assert!(last.contains("\nCount backwards.\n"), "{last}");
    // What was said in the other job is found under the numbers that the model knows.
    let found = messages(&model, 5).last().unwrap().1.clone();
    let entry = found.lines().find(|line| line.contains("THE-FIRST-OUTPUT")).unwrap().to_owned();
    assert!(entry.starts_with("entry "), "{found}");
    assert!(messages(&model, 6).last().unwrap().1.contains("THE-FIRST-OUTPUT"));
}

#[tokio::test]
async fn a_model_is_told_what_a_power_cut_took() {
    let model = Scripted::start([
        call("echo kept > a; sleep 1000 >/dev/null 2>&1 & echo started"),
        call("echo lost > b; echo waiting; until [ -e go ]; do sleep 0.02; done"),
        call("cat a; ls"),
        Reply::Say(Said::finish("Done.")),
    ])
    .await;
    let mut server = server_with(&model);
    let job = server.submit(&json!({ "task": "Go on." })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let guest = server.guest_pid(&job);
    server.kill();
    host::kill_and_wait(guest);
    server.start_again();
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let statuses = ["succeeded", "interrupted", "succeeded"];
    assert_eq!([1, 2, 3].map(|n| text(step(&ended, n), "status")), statuses);
    assert_eq!(step(&ended, 3)["stdout"], "kept\na\n");
    assert_eq!(archive::text(&mut server.archive(&job).await, "a"), "kept\n");
    let heard = messages(&model, 2);
    let (role, interrupted) = &heard[heard.len() - 2];
    assert_eq!(role, "tool");
    assert!(
        interrupted.contains("interrupted") && interrupted.contains("waiting"),
        "{interrupted}"
    );
    let (role, told) = heard.last().unwrap();
    assert_eq!(role, "user");
    assert!(
        told.contains("as they were after step 1") && told.contains("no running programs"),
        "{told}"
    );
}
