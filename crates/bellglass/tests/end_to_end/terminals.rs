//! Terminal sessions as steps of real jobs, with the image's own programs.

use serde_json::{Value, json};

use crate::levels::has_gvisor;
use crate::support::{TestServer, archive, step, text};

fn typed(command: &str) -> Value {
    json!({ "tool": "shell", "session": "main", "command": command })
}

fn until(command: &str, until: Value) -> Value {
    json!({ "tool": "shell", "session": "main", "command": command, "wait_for": until })
}

fn input(text: &str, keys: &[&str]) -> Value {
    json!({ "tool": "send_input", "session": "main", "text": text, "keys": keys })
}

/// What a session is for, on any kernel: state, a prompt, an editor, a server, an interrupt.
fn steps() -> Vec<Value> {
    vec![
        typed("mkdir app; cd app; NAME=Ada; sleep 1000 &"),
        typed("pwd; echo $NAME; jobs -r | wc -l"),
        until(
            "read -p 'who? ' who; echo \"hello $who\" | tee greeting",
            json!({ "pattern": "who\\? " }),
        ),
        json!({ "tool": "send_input", "session": "main", "text": "Grace\n", "wait_for": { "exit": {} } }),
        until("vim -u NONE note.txt", json!({ "quiet": 0.7 })),
        input("ihello from vim", &["escape"]),
        json!({ "tool": "send_input", "session": "main", "text": ":wq\n", "wait_for": { "exit": {} } }),
        typed("cat note.txt"),
        json!({ "tool": "shell", "session": "main", "command": "cat; echo not reached", "timeout": 0.5 }),
        until("python3 -m http.server 8123", json!({ "port": 8123 })),
        json!({ "tool": "shell", "command": "curl -s -o /dev/null -w '%{http_code}' 127.0.0.1:8123" }),
        json!({ "tool": "send_input", "session": "main", "keys": ["ctrl-c"], "wait_for": { "exit": {} } }),
        typed("echo still here"),
        json!({ "tool": "close_session", "session": "main" }),
    ]
}

fn check(job: &Value) {
    assert_eq!(text(step(job, 2), "stdout"), "/workspace/app\nAda\n1\n", "{:#}", step(job, 2));
    assert_eq!(text(step(job, 3), "stdout"), "who? ", "{:#}", step(job, 3));
    assert!(text(step(job, 3), "output").contains("still runs in the session `main`]"));
    assert_eq!(step(job, 4)["exit_code"], 0, "{:#}", step(job, 4));
    assert!(text(step(job, 4), "stdout").ends_with("hello Grace\n"), "{:#}", step(job, 4));
    assert!(text(step(job, 5), "output").contains("note.txt"), "{:#}", step(job, 5));
    assert!(text(step(job, 6), "output").starts_with("hello from vim\n"), "{:#}", step(job, 6));
    assert_eq!(text(step(job, 8), "stdout"), "hello from vim\n", "{job:#}");
    let late = step(job, 9);
    assert_eq!((text(late, "status"), text(&late["error"], "code")), ("timed_out", "timed_out"));
    assert!(text(late, "output").contains("the session `main` goes on]"), "{late:#}");
    assert!(!text(late, "output").contains("killed: the time limit"), "{late:#}");
    assert_eq!(text(step(job, 11), "stdout"), "200", "{job:#}");
    assert_eq!(text(step(job, 13), "stdout"), "still here\n", "{job:#}");
    assert_eq!(text(step(job, 14), "status"), "succeeded");
}

#[tokio::test]
async fn a_session_lives_through_prompts_editors_servers_and_interrupts() {
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": steps() })).await;
    check(&job);
    let mut archive = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut archive, "app/note.txt"), "hello from vim\n");
}

#[tokio::test]
async fn a_pager_git_and_npm_work_as_for_a_person() {
    let server = TestServer::start();
    let send = |text: &str| json!({ "tool": "send_input", "session": "main", "text": text, "wait_for": { "quiet": 0.7 } });
    let job = server
        .run(&json!({ "steps": [
            typed("seq -f 'line %g' 1 500 > long.txt"),
            until("less long.txt", json!({ "pattern": "long.txt" })),
            send("/line 321\n"),
            json!({ "tool": "send_input", "session": "main", "text": "q", "wait_for": { "exit": {} } }),
            typed("git init -q repo && cd repo && git config user.email a@example.org && git config user.name Ada"),
            typed("echo one > file && git add file && git commit -qm 'The first' && echo two >> file"),
            typed("git diff --stat && git log --oneline | cut -d' ' -f2-"),
            until("LESS=R GIT_PAGER=less git log -p", json!({ "pattern": "The first" })),
            json!({ "tool": "send_input", "session": "main", "text": "q", "wait_for": { "exit": {} } }),
            // An editor that git opens by itself waits for its user.
            until("git commit -qa", json!({ "pattern": "Changes to be committed" })),
            input("The second", &[]),
            json!({ "tool": "send_input", "session": "main", "keys": ["ctrl-o", "enter", "ctrl-x"], "wait_for": { "exit": {} } }),
            typed("git log --format=%s"),
            typed("mkdir ../dep && cd ../dep && npm init -y >/dev/null && echo 'module.exports = 6 * 7' > index.js"),
            typed("mkdir ../app && cd ../app && npm init -y >/dev/null && npm install --offline ../dep 2>&1 | tail -n 1"),
            typed("npm pkg set scripts.start=\"node -p \\\"require('dep')\\\"\" && npm --silent start"),
        ]}))
        .await;
    for n in 1..=16 {
        assert_eq!(text(step(&job, n), "status"), "succeeded", "{n}: {:#}", step(&job, n));
    }
    assert!(text(step(&job, 3), "output").contains("line 321\nline 322\n"), "{:#}", step(&job, 3));
    assert_eq!(step(&job, 4)["exit_code"], 0, "{:#}", step(&job, 4));
    assert!(text(step(&job, 7), "stdout").ends_with("The first\n"), "{:#}", step(&job, 7));
    // The editor leaves the cursor at the beginning of the line.
    let said = text(step(&job, 13), "stdout").trim_start_matches('\r');
    assert_eq!(said, "The second\nThe first\n", "{:#}", step(&job, 12));
    assert_eq!(text(step(&job, 16), "stdout"), "42\n", "{:#}", step(&job, 15));
}

#[tokio::test]
async fn a_session_works_on_gvisors_kernel() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let job = server.run(&json!({ "isolation": "gvisor", "steps": steps() })).await;
    check(&job);
}

#[tokio::test]
async fn input_that_makes_no_sense_is_refused_when_the_job_is_scheduled() {
    let server = TestServer::start();
    for (call, field) in [
        (json!({ "tool": "shell", "command": "ls", "session": "../x" }), "steps[0].session"),
        (
            json!({ "tool": "shell", "command": "ls", "wait_for": { "port": 80 } }),
            "steps[0].wait_for",
        ),
        (json!({ "tool": "wait_for" }), "steps[0].session"),
    ] {
        let response = server.post("/schedule", json!({ "steps": [call] }).to_string()).await;
        assert_eq!(response.status(), 422, "{field}");
        let problem: Value = response.json().await.unwrap();
        assert!(text(&problem, "detail").contains(field), "{problem:#}");
    }
}
