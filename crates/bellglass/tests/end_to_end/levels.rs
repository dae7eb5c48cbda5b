//! Levels of isolation: a job gets at least what it demands, or is refused with what to do.

use std::fs;

use serde_json::{Value, json};

use crate::crash::{assert_nothing_is_left, verified_kinds};
use crate::support::{Options, TestServer, archive, host, python, shell, step, text, wait_for_go};

/// Whether jobs on gVisor are accepted. If not, this host has no gVisor at all, and the refusal says
/// how to get it.
pub(crate) async fn has_gvisor(server: &TestServer) -> bool {
    let body = json!({ "isolation": "gvisor", "steps": [shell("true")] });
    let response = server.post("/schedule", body.to_string()).await;
    if response.status() == 202 {
        let answer: Value = response.json().await.unwrap();
        let job = server.wait_for_end(text(&answer, "job_id")).await;
        assert_eq!(job["status"], "completed", "{job:#}");
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).any(|folder| folder.join("runsc").is_file());
    let problem: Value = response.json().await.unwrap();
    assert!(!installed, "gVisor is installed, but: {problem:#}");
    assert_eq!(problem["code"], "not_available", "{problem:#}");
    eprintln!("there is no gVisor on this host, and the server says so");
    false
}

/// Living processes that carry a job's id among their arguments, in whatever namespace.
fn processes_of(job: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == job.as_bytes())
    };
    pids.filter(is_one).collect()
}

#[tokio::test]
async fn the_hello_example_runs_on_gvisors_kernel() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.json");
    let mut body: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    body["isolation"] = "gvisor".into();
    let steps = body["steps"].as_array_mut().unwrap();
    let hello = steps.len();
    // The kernel that answers is not the host's; its messages are denied to tools on every kernel.
    steps.push(shell("cat /proc/version; uname -r; dmesg 2>&1; true"));
    let job = server.run(&body).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(job["failed_steps"], json!([]), "{job:#}");
    let looked = text(step(&job, hello + 1), "stdout");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(looked.starts_with("Linux version "), "{looked}");
    assert!(!looked.contains(release.trim()), "{looked}");
    assert!(looked.ends_with("Operation not permitted\n"), "{looked}");
    let report = &job["sandbox"];
    assert_eq!((text(report, "backend"), text(report, "isolation")), ("gvisor", "gvisor"));
    // What holds of the cage around it was looked at from outside, and nothing is claimed that is not there.
    assert!(!report["enforced"].to_string().contains("Landlock"), "{report:#}");
    assert!(report["missing"].to_string().contains("no Landlock"), "{report:#}");
    let checks = report["checks"].as_array().unwrap();
    for subject in ["namespaces", "user id map", "group id map", "limit on core_dump"] {
        let check = checks.iter().find(|check| check["subject"] == subject);
        assert_eq!(check.unwrap_or(&Value::Null)["holds"], true, "{subject}: {checks:#?}");
    }
    let id = text(&job, "job_id");
    let mut archive = server.archive(id).await;
    assert_eq!(archive::text(&mut archive, "sum.txt"), "The sum is 55.\n");
    assert!(archive::text(&mut archive, "notes/plan.md").contains("- [x] say hello"));
    assert_nothing_is_left(&server, id);
    assert_eq!(processes_of(id), Vec::<i32>::new());
    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new());
}

#[tokio::test]
async fn a_killed_server_finds_its_sandbox_on_gvisor_again() {
    let mut server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let steps = [
        shell("echo one >> count"),
        shell("echo two >> count; echo waiting; until [ -e go ]; do sleep 0.02; done"),
        shell("echo three >> count; cat count"),
    ];
    let id = server.submit(&json!({ "isolation": "gvisor", "steps": steps })).await;
    server.wait_for_step(&id, "step.output", 2).await;
    server.kill();
    // The first process of the cage, and gVisor's kernel.
    assert_eq!(processes_of(&id).len(), 2, "the sandbox runs on");
    server.start_again();
    server.wait_for(&id, "claimed").await;
    // The file can be put there once the sandbox is in the new server's hands.
    let mut events = server.events(&id).await;
    events.until(|event| event["type"] == "claimed" && event["generation"] == 2).await;
    while server.put_file(&id, "go", "").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(step(&job, 3)["stdout"], "one\ntwo\nthree\n", "no step ran twice");
    assert!(!verified_kinds(&server, &id).await.contains(&"sandbox.lost".to_owned()));
    assert_nothing_is_left(&server, &id);
    assert_eq!(processes_of(&id), Vec::<i32>::new());
}

#[tokio::test]
async fn a_killed_server_that_stays_away_leaves_gvisor_to_the_next_sweep() {
    let mut server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let id = server.submit(&json!({ "isolation": "gvisor", "steps": [wait_for_go()] })).await;
    server.wait_for_step(&id, "step.output", 1).await;
    let guest = server.guest_pid(&id);
    server.kill();
    host::kill_and_wait(guest);
    assert_eq!(processes_of(&id), Vec::<i32>::new(), "all end with the first");
    server.start_again();
    // It begins again in another sandbox, for nothing of the first is left.
    server.wait_for(&id, "sandbox.lost").await;
    server.wait_for_step(&id, "step.output", 1).await;
    server.cancel(&id).await;
    server.wait_for_end(&id).await;
    assert_nothing_is_left(&server, &id);
}

#[tokio::test]
async fn limits_hold_on_gvisor_and_the_job_goes_on() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let steps = [
        python("held = []\nwhile True:\n    held.append(bytearray(8 << 20))"),
        shell("echo still here"),
    ];
    let limits = json!({ "memory": "256MiB" });
    let body = json!({ "isolation": "gvisor", "steps": steps, "limits": limits });
    let job = server.run(&body).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(step(&job, 1)["error"]["code"], "out_of_memory", "{:#}", step(&job, 1));
    assert_eq!(step(&job, 2)["stdout"], "still here\n");
}

#[tokio::test]
async fn a_level_that_the_host_cannot_give_is_refused_with_what_to_do() {
    let config = "[sandbox]\nrunsc = \"/nowhere/runsc\"\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    for (level, advice) in [("gvisor", "runsc"), ("microvm", "demand a lower level")] {
        let body = json!({ "isolation": level, "steps": [shell("true")] });
        let response = server.post("/schedule", body.to_string()).await;
        assert_eq!(response.status(), 422);
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], "not_available", "{problem:#}");
        assert!(text(&problem, "detail").contains(advice), "{problem:#}");
        assert!(problem.to_string().contains("isolation"), "{problem:#}");
    }
    let job = server.run(&json!({ "isolation": "namespace", "steps": [shell("true")] })).await;
    assert_eq!(
        (text(&job, "status"), text(&job["sandbox"], "backend")),
        ("completed", "namespace")
    );
    for folder in crate::support::SANDBOX_FOLDERS {
        assert_eq!(fs::read_dir(server.data().join(folder)).unwrap().count(), 0, "{folder}");
    }
}

#[tokio::test]
async fn an_operator_can_have_every_job_on_gvisor() {
    let config = "[sandbox]\nisolation = \"gvisor\"\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    if !has_gvisor(&server).await {
        return;
    }
    for body in [
        json!({ "steps": [shell("true")] }),
        json!({ "isolation": "namespace", "steps": [shell("true")] }),
    ] {
        let job = server.run(&body).await;
        assert_eq!(text(&job["sandbox"], "backend"), "gvisor", "{body}");
    }
}

#[tokio::test]
async fn the_way_out_leads_through_gvisor_too() {
    let config = "[network]\nprivate_exceptions = [\"127.0.0.1\"]\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    if !has_gvisor(&server).await {
        return;
    }
    let url = server.url("/healthz");
    let place = url.trim_start_matches("http://").trim_end_matches("/healthz").to_owned();
    let curl = "curl --noproxy '' -sS -o /dev/null -w '%{http_code}\\n' -x http://127.0.0.1:3128";
    let steps = [shell(&format!("{curl} {url}; {curl} http://elsewhere.example/"))];
    let network = json!({ "allow": [place] });
    let body = json!({ "isolation": "gvisor", "network": network, "steps": steps });
    let job = server.run(&body).await;
    assert_eq!(step(&job, 1)["stdout"], "200\n403\n", "{:#}", step(&job, 1));
}
