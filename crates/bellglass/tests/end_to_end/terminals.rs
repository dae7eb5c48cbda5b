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

/// What keeps a terminal waiting or floods it, each followed by a sign of life.
fn wedges() -> Vec<Value> {
    let timed = |command: &str| json!({ "tool": "shell", "session": "main", "command": command, "timeout": 0.5 });
    let answer = |text: &str| json!({ "tool": "send_input", "session": "main", "text": text, "wait_for": { "exit": {} } });
    let ask = "python3 -c 'import getpass; print(len(getpass.getpass()))'";
    vec![
        // Prompts that go past standard input, to the terminal itself.
        until(&format!("{ask} </dev/null"), json!({ "pattern": "Password: $" })),
        answer("secret\n"),
        until("su -c true root", json!({ "pattern": "Password: $" })),
        answer("wrong\n"),
        timed(ask),
        typed("echo still here"),
        timed("sleep infinity"),
        typed("echo still here"),
        timed("yes"),
        typed("echo still here"),
        typed("head -c 100000000 /dev/zero | tr '\\0' a"),
        typed("echo still here"),
        typed("printf 'a\\xff\\xfe\\x00b\\xc3\\n'"),
        typed("head -c 3000000 /dev/urandom; printf '\\033c\\033\\\\\\007'; stty sane"),
        typed("echo; echo still here"),
        typed("exec >&- 2>&-"),
        typed("exec >/dev/tty 2>&1"),
        typed("echo still here"),
        typed(
            "(setsid sleep infinity &); nohup sh -c 'sleep infinity & sleep infinity' & disown -a",
        ),
        typed("(setsid sh -c 'exec <&- >&- 2>&-; sleep infinity' &); echo still here"),
        // Editors that nobody types into.
        timed("vim note.txt"),
        typed("echo still here"),
        timed("nano note.txt"),
        typed("echo still here"),
    ]
}

#[tokio::test]
async fn nothing_wedges_a_session() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": wedges(), "limits": { "output": "200MB", "total_output": "1GB" } }))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert!(text(step(&job, 2), "stdout").ends_with("6\n"), "{:#}", step(&job, 2));
    assert!(!text(step(&job, 2), "output").contains("secret"), "{:#}", step(&job, 2));
    assert_eq!(text(step(&job, 4), "status"), "failed", "{:#}", step(&job, 4));
    assert!(text(step(&job, 4), "stdout").contains("su: "), "{:#}", step(&job, 4));
    for n in [5, 7, 9, 21, 23] {
        assert_eq!(text(step(&job, n), "status"), "timed_out", "{:#}", step(&job, n));
    }
    assert!(text(step(&job, 9), "stdout").starts_with("y\ny\n"), "{:#}", step(&job, 9));
    assert_eq!(step(&job, 11)["output_bytes"], 100_000_000);
    assert_eq!(step(&job, 13)["stdout"], "a\u{fffd}\u{fffd}\u{0}b\u{fffd}\n");
    assert!(step(&job, 14)["output_bytes"].as_u64().unwrap() > 2_000_000, "{:#}", step(&job, 14));
    for n in [6, 8, 10, 12, 15, 18, 20, 22, 24] {
        let alive = step(&job, n);
        assert!(text(alive, "stdout").ends_with("still here\n"), "{alive:#}");
        assert_eq!(text(alive, "status"), "succeeded", "{alive:#}");
    }
}

#[tokio::test]
async fn a_session_goes_on_whatever_is_left_of_its_screen_and_its_shell() {
    let server = TestServer::start();
    let alive = || typed("echo still here");
    let steps = [
        // Sequences that nobody ends.
        typed(r"printf '\033]0;title'"),
        alive(),
        typed(r"printf '\033('"),
        alive(),
        typed(r"printf '\033P'"),
        alive(),
        // A program that has the screen is killed.
        typed("timeout -s KILL 2 vim -u NONE note.txt"),
        typed("seq 100"),
        // Names that its own loop uses.
        typed("printf() { false; }; read() { false; }; eval() { false; }; set -u; IFS=x"),
        alive(),
        // What it is fed by is taken away.
        typed("rm -rf /tmp/.[a-z]*"),
        alive(),
        alive(),
    ];
    let job = server.run(&json!({ "steps": steps })).await;
    for n in [2, 4, 6, 10, 13] {
        let alive = step(&job, n);
        assert_eq!(text(alive, "stdout"), "still here\n", "{alive:#}");
        assert_eq!(text(alive, "status"), "succeeded", "{alive:#}");
    }
    let numbers: String = (1..=100).map(|n| format!("{n}\n")).collect();
    assert_eq!(text(step(&job, 8), "stdout"), numbers, "{:#}", step(&job, 8));
    let lost = &step(&job, 12)["error"];
    assert_eq!(text(lost, "code"), "cannot_save_source", "{lost:#}");
    assert!(text(lost, "message").contains("a new one begins next time"), "{lost:#}");
}

#[tokio::test]
async fn a_server_is_found_on_any_address_of_the_sandbox() {
    let server = TestServer::start();
    let steps = [
        until("python3 -m http.server 8124 --bind 127.0.0.2", json!({ "port": 8124 })),
        json!({ "tool": "wait_for", "until": { "port": 8124 } }),
        json!({ "tool": "list_ports" }),
    ];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(text(step(&job, 2), "status"), "succeeded", "{:#}", step(&job, 2));
    let ports = text(step(&job, 3), "output");
    assert!(ports.contains("8124  127.0.0.2  python3"), "{ports}");
}

#[tokio::test]
async fn a_server_in_the_background_is_waited_for() {
    let server = TestServer::start();
    let steps = [
        until(
            "(sleep 1; exec python3 -m http.server 8125) >/dev/null 2>&1 &",
            json!({ "port": 8125 }),
        ),
        json!({ "tool": "shell", "command": "curl -s -o /dev/null -w '%{http_code}' 127.0.0.1:8125" }),
        json!({ "tool": "wait_for", "session": "main", "until": { "port": 8125 } }),
        until("(sleep 1; echo IT IS RE\"\"ADY) &", json!({ "pattern": "READY" })),
        until("kill %1; wait", json!({ "pattern": "never said" })),
        typed("echo still here"),
    ];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["failed_steps"], json!([5]), "{job:#}");
    assert_eq!(text(step(&job, 2), "stdout"), "200", "{:#}", step(&job, 2));
    assert!(text(step(&job, 4), "stdout").contains("IT IS READY\n"), "{:#}", step(&job, 4));
    assert_eq!(text(&step(&job, 5)["error"], "code"), "ended_first", "{:#}", step(&job, 5));
}

/// The same where there is no terminal: nobody can be asked, and nothing is waited for.
#[tokio::test]
async fn nothing_wedges_a_step_without_a_session() {
    let server = TestServer::start();
    let plain = |command: &str| json!({ "tool": "shell", "command": command, "timeout": 60 });
    let timed = |command: &str| json!({ "tool": "shell", "command": command, "timeout": 0.5 });
    let job = server
        .run(&json!({ "steps": [
            plain("python3 -c 'import getpass; getpass.getpass()'"),
            plain("su -c true root"),
            plain("read line"),
            plain("cat </dev/tty"),
            plain("git -c core.pager=less log; less /etc/passwd | wc -l"),
            plain("head -c 100000000 /dev/zero | tr '\\0' a"),
            plain("printf 'a\\xff\\xfe\\x00b\\xc3\\n'"),
            plain("exec >&- 2>&-; exec <&-; sleep 0.1"),
            plain("(setsid sleep infinity &); nohup sleep infinity & echo left behind"),
            timed("echo begun; sleep infinity"),
            timed("yes"),
            timed("trap '' INT TERM HUP; (setsid sleep infinity) & sleep infinity"),
            timed("vim note.txt"),
            // Editors that are content with a terminal that is none.
            timed("script -qec 'vim note.txt' /dev/null"),
            timed("script -qec 'nano note.txt' /dev/null"),
            plain("nano note.txt"),
            plain("echo still here"),
        ], "limits": { "output": "200MB", "total_output": "1GB" } }))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    for n in 1..=4 {
        assert_eq!(text(step(&job, n), "status"), "failed", "{:#}", step(&job, n));
    }
    assert!(text(step(&job, 1), "stderr").contains("EOFError"), "{:#}", step(&job, 1));
    assert_eq!(step(&job, 6)["output_bytes"], 100_000_000);
    assert_eq!(step(&job, 7)["stdout"], "a\u{fffd}\u{fffd}\u{0}b\u{fffd}\n");
    assert_eq!(step(&job, 8)["exit_code"], 0, "{:#}", step(&job, 8));
    assert_eq!(step(&job, 9)["stdout"], "left behind\n", "{:#}", step(&job, 9));
    for (n, begins) in [(10, "begun\n"), (11, "y\ny\n"), (12, ""), (13, ""), (14, ""), (15, "")] {
        let late = step(&job, n);
        assert_eq!(text(late, "status"), "timed_out", "{late:#}");
        assert!(text(late, "stdout").starts_with(begins), "{late:#}");
    }
    assert_eq!(text(step(&job, 16), "status"), "failed", "{:#}", step(&job, 16));
    assert_eq!(step(&job, 17)["stdout"], "still here\n", "{:#}", step(&job, 17));
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
