//! Killing whatever can be killed, at any moment: no job is lost and no step runs twice.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use bellglass_protocol::chain::Verifier;
use futures::StreamExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Options, SANDBOX_FOLDERS, TestServer, archive, host, shell, signal, step, text, wait_for_go,
};

const STEPS: u32 = 30;

/// Counts in a file how often each step ran.
fn counting_job() -> Value {
    let steps: Vec<Value> =
        (1..=STEPS).map(|n| shell(&format!("echo {n} >> count; sleep 0.05; echo {n}"))).collect();
    json!({ "steps": steps })
}

/// The job ran every step once and in order, and its log is one chain.
async fn assert_counted(server: &TestServer, job: &Value) {
    let id = text(job, "job_id");
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(job["failed_steps"], json!([]));
    for n in 1..=STEPS {
        assert_eq!(step(job, n as usize)["stdout"], format!("{n}\n"));
    }
    let count = archive::text(&mut server.archive(id).await, "count");
    let expected: String = (1..=STEPS).map(|n| format!("{n}\n")).collect();
    assert_eq!(count, expected);
    verified_kinds(server, id).await;
}

pub(crate) async fn verified_kinds(server: &TestServer, job: &str) -> Vec<String> {
    let mut verifier = Verifier::new(Some(job.parse().unwrap()));
    let log = server.log(job).await;
    let kind = |line| verifier.line(line).unwrap().body.kind().to_owned();
    let kinds = log.lines().map(kind).collect();
    verifier.finish().unwrap();
    kinds
}

pub(crate) fn assert_nothing_is_left(server: &TestServer, job: &str) {
    assert_eq!(host::control_groups_of(job), Vec::<std::path::PathBuf>::new());
    for folder in SANDBOX_FOLDERS.into_iter().chain(["spools"]) {
        assert!(!server.data().join(folder).join(job).exists(), "{folder}");
    }
}

#[tokio::test]
async fn a_server_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    let mut server = TestServer::start();
    let job = server.submit(&counting_job()).await;
    for (kind, n) in [
        ("sandbox.ready", None),
        ("step.started", Some(2)),
        ("step.finished", Some(7)),
        ("step.started", Some(12)),
        ("step.started", Some(13)),
        ("step.finished", Some(20)),
        ("step.started", Some(STEPS)),
    ] {
        let mut events = server.events(&job).await;
        events.until(|event| event["type"] == kind && n.is_none_or(|n| event["n"] == n)).await;
        server.kill();
        server.start_again();
    }
    let ended = server.wait_for_end(&job).await;
    assert_counted(&server, &ended).await;
    assert_eq!(ended["generation"], 8);
    assert!(!verified_kinds(&server, &job).await.contains(&"sandbox.lost".to_owned()));
    assert_nothing_is_left(&server, &job);
}

#[tokio::test]
async fn a_server_that_is_restarted_again_and_again_fails_no_job() {
    let mut server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    // More often than a job is taken up whose workers vanish.
    for restart in 1..=12 {
        assert!(server.stop().success());
        server.start_again();
        server.events(&job).await.until(|event| event["generation"] == restart + 1).await;
    }
    // The sandbox is found again a moment after the claim.
    while server.put_file(&job, "go", "").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let kinds = verified_kinds(&server, &job).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "released").count(), 12, "{kinds:?}");
}

#[tokio::test]
async fn a_paused_job_is_found_again_after_a_crash() {
    let mut server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go(), shell("echo after")] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    assert_eq!(server.post(&format!("/jobs/{job}/pause"), "").await.status(), 200);
    server.kill();
    server.start_again();
    server.events(&job).await.until(|event| event["generation"] == 2).await;
    assert_eq!(server.json(&format!("/status/{job}")).await["status"], "paused");
    assert_eq!(server.post(&format!("/jobs/{job}/resume"), "").await.status(), 200);
    server.let_go_under_successor(&job).await;
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(step(&ended, 2)["stdout"], "after\n");
    assert!(!verified_kinds(&server, &job).await.contains(&"sandbox.lost".to_owned()));
}

#[tokio::test]
async fn every_accepted_job_survives_a_crash_under_load() {
    let mut server = TestServer::start();
    let body = json!({ "steps": [shell("echo done")] }).to_string();
    let client = server.clone();
    // The server dies while some of these are on their way.
    let mut answers = futures::stream::iter(0..120)
        .map(|_| {
            let request = client.request(reqwest::Method::POST, "/schedule");
            let request = request.header("content-type", "application/json").body(body.clone());
            async {
                let response = request.send().await.ok()?;
                assert_eq!(response.status(), 202);
                let accepted: Value = response.json().await.ok()?;
                Some(text(&accepted, "job_id").to_owned())
            }
        })
        .buffer_unordered(16)
        .boxed();
    let mut accepted: Vec<String> = Vec::new();
    while accepted.len() < 60 {
        accepted.extend(answers.next().await.unwrap());
    }
    server.kill();
    while let Some(answer) = answers.next().await {
        accepted.extend(answer);
    }
    drop(answers);
    server.start_again();
    for job in &accepted {
        let job = server.wait_for_end(job).await;
        assert_eq!(
            (text(&job, "status"), &step(&job, 1)["stdout"]),
            ("completed", &json!("done\n"))
        );
    }
    // Some were accepted whose answers were lost on the way.
    for job in server.json("/jobs?limit=200").await["jobs"].as_array().unwrap() {
        assert_eq!(server.wait_for_end(text(job, "job_id")).await["status"], "completed");
    }
    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new());
}

/// As it would be with a job that takes its server down each time.
#[tokio::test]
async fn a_job_that_never_gets_any_further_is_given_up() {
    let mut server = TestServer::start();
    let job = server.submit(&json!({ "steps": [shell("true"), wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 2).await;
    for claim in 2..=11 {
        server.kill();
        server.start_again();
        server.events(&job).await.until(|event| event["generation"] == claim).await;
    }
    assert_eq!(server.job(&job).await["status"], "running");
    server.kill();
    server.start_again();
    let ended = server.wait_for_end(&job).await;
    assert_eq!((text(&ended, "status"), &ended["generation"]), ("failed", &json!(12)));
    assert_eq!(ended["error"]["code"], "no_progress", "{}", ended["error"]);
    let step = &ended["steps"][1];
    assert_eq!(
        (&step["status"], &step["error"]["code"]),
        (&json!("interrupted"), &json!("no_progress"))
    );
    assert_nothing_is_left(&server, &job);
}

/// As at a crash: the job goes on from its last checkpoint, in a sandbox of its own.
#[tokio::test]
async fn a_job_whose_sandbox_dies_alone_goes_on_in_another() {
    let server = TestServer::start();
    let steps = [shell("echo kept > a"), wait_for_go(), shell("cat a; ls")];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let guest = server.guest_pid(&job);
    let namespace = host::pid_namespace(guest).unwrap();
    signal(guest, Signal::KILL);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!((&ended["generation"], &ended["failed_steps"]), (&json!(1), &json!([2])));
    let interrupted = step(&ended, 2);
    assert_eq!(text(interrupted, "status"), "interrupted");
    assert_eq!(interrupted["error"]["code"], "sandbox_lost");
    assert_eq!(interrupted["stdout"], "waiting\n");
    assert_eq!(step(&ended, 3)["stdout"], "kept\na\n");
    let kinds = verified_kinds(&server, &job).await;
    let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
    assert_eq!((count("sandbox.lost"), count("workspace.restored")), (1, 1), "{kinds:?}");
    assert_eq!(host::processes_in(&namespace), Vec::<i32>::new());
    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new());
    assert_nothing_is_left(&server, &job);
    assert_eq!(server.run(&json!({ "steps": [shell("true")] })).await["status"], "completed");
}

/// An end to a job that ends its own guest each time.
#[tokio::test]
async fn a_job_that_loses_every_sandbox_fails() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": vec![wait_for_go(); 9] })).await;
    for n in 1..=4 {
        server.wait_for_step(&job, "step.output", n).await;
        signal(server.guest_pid(&job), Signal::KILL);
    }
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "failed");
    assert_eq!(ended["error"]["code"], "sandbox_lost");
    assert_eq!(ended["failed_steps"], json!([1, 2, 3, 4]));
    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new());
    assert_nothing_is_left(&server, &job);
}

/// A session, too, notices although it waits for nothing but its user.
#[tokio::test]
async fn a_session_whose_sandbox_dies_alone_gets_another() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "session": {} })).await;
    server.wait_for(&job, "sandbox.ready").await;
    signal(server.guest_pid(&job), Signal::KILL);
    let mut events = server.events(&job).await;
    events.until(|event| event["type"] == "sandbox.lost").await;
    events.until(|event| event["type"] == "sandbox.ready").await;
    server.cancel(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "cancelled");
    assert_nothing_is_left(&server, &job);
}

#[tokio::test]
async fn a_stopped_server_goes_on_where_it_was() {
    let mut server = TestServer::start();
    let job = server.submit(&counting_job()).await;
    server.wait_for_step(&job, "step.started", 5).await;
    assert!(server.stop().success());
    server.start_again();
    server.wait_for_step(&job, "step.started", 15).await;
    assert!(server.stop().success());
    server.start_again();
    let ended = server.wait_for_end(&job).await;
    assert_counted(&server, &ended).await;
    assert_eq!(ended["generation"], 3);
}

/// More was written than is kept, so what is on disk does not say how much there was.
#[tokio::test]
async fn long_output_goes_on_after_a_crash() {
    let mut server = TestServer::start();
    let command = "yes | head -c 500000; echo; until [ -e go ]; do sleep 0.02; done; \
                   yes no | head -c 300000; echo end";
    let limits = json!({ "output": 100_000 });
    let job = server.submit(&json!({ "steps": [shell(command)], "limits": limits })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    server.kill();
    server.start_again();
    server.wait_for(&job, "claimed").await;
    // The file goes to whoever has taken the job up.
    server.events(&job).await.until(|event| event["generation"] == 2).await;
    while server.put_file(&job, "go", "").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let step = step(&ended, 1);
    assert_eq!((text(step, "status"), &step["exit_code"]), ("succeeded", &json!(0)), "{step:#}");
    assert!(text(step, "stdout").starts_with("y\ny\n"));
    assert!(text(step, "stdout").ends_with("end\n"));
    assert_eq!(step["output_bytes"], 500_000 + 1 + 300_000 + 4);
}

#[tokio::test]
async fn two_servers_cannot_share_a_data_folder() {
    let server = TestServer::start();
    let second = server.command().output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another bellglass process uses this data directory"), "{said}");
    assert_eq!(server.run(&json!({ "steps": [shell("true")] })).await["status"], "completed");
}

/// What a step leaves running lives as long as its job and no longer.
#[tokio::test]
async fn nothing_of_a_job_outlives_it() {
    let server = TestServer::start();
    let leave = "setsid nohup sleep 1000 >/dev/null 2>&1 & sleep 1000 & disown -a; echo left";
    let job = server.submit(&json!({ "steps": [shell(leave), wait_for_go()] })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let namespace = host::pid_namespace(server.guest_pid(&job)).unwrap();
    assert!(host::processes_in(&namespace).len() >= 3);
    server.let_go(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "completed");
    assert_eq!(host::processes_in(&namespace), Vec::<i32>::new());
    assert_nothing_is_left(&server, &job);
}

#[tokio::test]
async fn a_job_whose_end_is_decided_is_not_done_again() {
    let mut server = TestServer::with_slots(4);
    for _ in 0..6 {
        let job = server.submit(&json!({ "steps": [shell("echo once >> count")] })).await;
        // The sandbox is about to go, or just went.
        server.wait_for(&job, "concluded").await;
        server.kill();
        server.start_again();
        let ended = server.wait_for_end(&job).await;
        assert_eq!(ended["status"], "completed", "{}", ended["error"]);
        assert_eq!(archive::text(&mut server.archive(&job).await, "count"), "once\n");
        let kinds = verified_kinds(&server, &job).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "step.started").count(), 1);
        assert_nothing_is_left(&server, &job);
    }
}

#[tokio::test]
async fn a_worker_that_stood_still_does_not_drive_its_job_twice() {
    let server =
        TestServer::with(Options { config: "[worker]\nlease = 1\n", ..Options::default() });
    let job = server.submit(&counting_job()).await;
    for n in [3, 8, 13] {
        server.wait_for_step(&job, "step.started", n).await;
        signal(server.pid(), Signal::STOP);
        // Longer than the lease, so that it has run out when the process wakes up.
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        signal(server.pid(), Signal::CONT);
    }
    let ended = server.wait_for_end(&job).await;
    assert_counted(&server, &ended).await;
    assert_nothing_is_left(&server, &job);
}

/// As when the program that started the server has died.
#[test]
fn a_server_whose_log_nobody_reads_still_ends_when_it_is_told_to() {
    let mut server = TestServer::start();
    assert!(server.stop().success());
    let mut process =
        server.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(process.stderr.take());
    signal(process.id() as i32, Signal::TERM);
    assert!(process.wait().unwrap().success());
}

/// A sandbox has more than its share of a processor for a moment, when its guest is late to end a step. Whoever
/// gave it may not live to take it back.
#[tokio::test]
async fn a_share_that_was_not_taken_back_costs_no_sandbox() {
    let mut server = TestServer::start();
    let limits = json!({ "cpus": 0.5 });
    let job = server.submit(&json!({ "steps": [wait_for_go()], "limits": limits })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    server.kill();
    let groups = server.recorded_groups(&job);
    let files =
        groups.iter().flat_map(|group| ["cpu.cfs_quota_us", "cpu.max"].map(|it| group.join(it)));
    let files: Vec<_> = files.filter(|file| file.exists()).collect();
    assert_eq!(files.len(), 1, "{groups:?}");
    std::fs::write(&files[0], "100000").unwrap();
    server.start_again();
    // It is taken back when the sandbox is found again; if it never is, the run's own clock ends this.
    let limit = || std::fs::read_to_string(&files[0]).unwrap();
    while limit().split_whitespace().next() != Some("50000") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.let_go_under_successor(&job).await;
    let done = server.wait_for_end(&job).await;
    assert_eq!(done["status"], "completed", "{done:#}");
    assert!(!verified_kinds(&server, &job).await.contains(&"sandbox.lost".to_owned()));
}
