//! Workspaces that outlive their sandboxes: what a job goes on from when everything was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::crash::{assert_nothing_is_left, verified_kinds};
use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, archive, host, shell, signal, step, text, wait_for_go};

const STEPS: u32 = 30;

fn counting_job() -> Value {
    let steps: Vec<Value> =
        (1..=STEPS).map(|n| shell(&format!("echo {n} >> count; sleep 0.05; echo {n}"))).collect();
    json!({ "steps": steps })
}

/// Kills the server and then all that runs of a job, as a power cut does.
fn power_cut(server: &mut TestServer, job: &str) {
    let guest = server.guest_pid(job);
    server.kill();
    host::kill_and_wait(guest);
    server.start_again();
}

#[tokio::test]
async fn a_job_goes_on_from_its_last_checkpoint_when_server_and_sandbox_are_both_gone() {
    let mut server = TestServer::start();
    let job = server.submit(&counting_job()).await;
    for n in [3, 9, 20] {
        server.wait_for_step(&job, "step.finished", n).await;
        power_cut(&mut server, &job);
        server.events(&job).await.until(|event| event["type"] == "workspace.restored").await;
    }
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let steps = ended["steps"].as_array().unwrap();
    assert_eq!(steps.len(), STEPS as usize);
    let interrupted: Vec<u64> = steps
        .iter()
        .filter(|step| step["status"] == "interrupted")
        .map(|step| step["n"].as_u64().unwrap())
        .collect();
    assert!(interrupted.len() <= 3, "{interrupted:?}");
    assert_eq!(ended["failed_steps"], json!(interrupted));
    // Every step ran once, or was interrupted, and then nothing of it is left.
    let expected: String = (1..=u64::from(STEPS))
        .filter(|n| !interrupted.contains(n))
        .map(|n| format!("{n}\n"))
        .collect();
    assert_eq!(archive::text(&mut server.archive(&job).await, "count"), expected);
    let kinds = verified_kinds(&server, &job).await;
    let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
    assert_eq!((count("sandbox.lost"), count("sandbox.ready")), (3, 4));
    assert_eq!((count("workspace.restored"), count("step.started")), (3, STEPS as usize));
    assert_nothing_is_left(&server, &job);
}

#[tokio::test]
async fn an_interrupted_step_is_marked_and_decides_as_a_failed_one() {
    for (on_error, status, finished) in [("continue", "completed", 3), ("stop", "failed", 2)] {
        let mut server = TestServer::start();
        let steps = [shell("echo one > a; echo gone > b"), wait_for_go(), shell("cat a; ls")];
        let job = server.submit(&json!({ "steps": steps, "on_error": on_error })).await;
        server.wait_for_step(&job, "step.output", 2).await;
        power_cut(&mut server, &job);
        let ended = server.wait_for_end(&job).await;
        assert_eq!(ended["status"], status, "{:#}", ended["error"]);
        assert_eq!(ended["steps"].as_array().unwrap().len(), finished);
        let interrupted = step(&ended, 2);
        assert_eq!(interrupted["status"], "interrupted");
        assert_eq!(interrupted["error"]["code"], "sandbox_lost");
        assert_eq!(interrupted["stdout"], "waiting\n");
        assert_eq!(step(&ended, 1)["status"], "succeeded");
        if on_error == "continue" {
            assert_eq!(step(&ended, 3)["stdout"], "one\na\nb\n");
        }
        assert_eq!(archive::text(&mut server.archive(&job).await, "a"), "one\n");
    }
}

/// Where nothing is kept there is nothing to go on from.
#[tokio::test]
async fn without_checkpoints_a_job_starts_again() {
    let mut server = TestServer::start();
    let steps = [shell("echo x >> a"), wait_for_go(), shell("cat a")];
    let limits = json!({ "checkpoints": 0 });
    let job = server.submit(&json!({ "steps": steps, "limits": limits })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    power_cut(&mut server, &job);
    let mut events = server.events(&job).await;
    let lost = events.until(|event| event["type"] == "sandbox.lost").await;
    assert!(lost["kept"].is_null(), "{lost}");
    events.until(|event| event["type"] == "step.output" && event["n"] == 2).await;
    server.let_go_under_successor(&job).await;
    let ended = server.wait_for_end(&job).await;
    assert_eq!((text(&ended, "status"), &ended["failed_steps"]), ("completed", &json!([])));
    assert_eq!(step(&ended, 3)["stdout"], "x\n");
}

/// The files of the workspace as it was after a step.
async fn files_after(server: &TestServer, job: &str, step: u32) -> BTreeMap<String, String> {
    let response = server.get(&format!("/jobs/{job}/steps/{step}/files.tar")).await;
    assert_eq!(response.status(), 200, "step {step}");
    let bytes = response.bytes().await.unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (name, mut content) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut content).unwrap();
        files.insert(name, content);
    }
    files
}

/// What was kept under a claim is what later checkpoints of the same claim build on, though they come from
/// another sandbox.
#[tokio::test]
async fn no_checkpoint_takes_the_place_of_one_before_the_loss_of_a_sandbox() {
    let mut server = TestServer::start();
    let write = |n: u32| shell(&format!("echo {n} > f{n}"));
    let steps =
        [write(1), write(2), wait_for_go(), write(4), write(5), wait_for_go(), shell("cat f*")];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 3).await;
    signal(server.guest_pid(&job), Signal::KILL);
    server.wait_for_step(&job, "step.output", 6).await;
    power_cut(&mut server, &job);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["failed_steps"], json!([3, 6]));
    assert_eq!(step(&ended, 7)["stdout"], "1\n2\n4\n5\n");
    let mut zip = server.archive(&job).await;
    let mut expected = BTreeMap::new();
    for n in [1, 2, 4, 5] {
        assert_eq!(archive::text(&mut zip, &format!("f{n}")), format!("{n}\n"));
        expected.insert(format!("f{n}"), format!("{n}\n"));
        assert_eq!(files_after(&server, &job, n).await, expected, "step {n}");
    }
    let log = server.log(&job).await;
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stored = events.iter().filter(|event| event["type"] == "checkpoint.stored");
    let numbers: Vec<String> = stored.map(|event| event["checkpoint"].to_string()).collect();
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 4, "{numbers:?}");
}

/// More than the checkpoints of these jobs may hold.
const MUCH: usize = 200_000;

fn little_is_kept() -> Value {
    json!({ "checkpoints": "64KiB" })
}

/// The reason is the same as before, but what it is said of is not.
#[tokio::test]
async fn what_is_not_kept_after_a_restore_is_said_again() {
    let server = TestServer::start();
    let much = || shell(&format!("head -c {MUCH} /dev/urandom > much"));
    let steps = [shell("echo kept > a"), much(), wait_for_go(), much(), shell("true")];
    let job = server.submit(&json!({ "steps": steps, "limits": little_is_kept() })).await;
    server.wait_for_step(&job, "step.output", 3).await;
    for (what, body) in [("pause", json!({})), ("restore", json!({ "step": 1 }))] {
        let answer = server.post(&format!("/jobs/{job}/{what}"), body.to_string()).await;
        assert_eq!(answer.status(), 200, "{what}");
    }
    server.let_go(&job).await;
    server.wait_for(&job, "workspace.restored").await;
    assert_eq!(server.post(&format!("/jobs/{job}/resume"), "").await.status(), 200);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let kept = BTreeMap::from([("a".to_owned(), "kept\n".to_owned())]);
    assert_eq!(files_after(&server, &job, 1).await, kept);
    for n in [2, 4, 5] {
        let response = server.get(&format!("/jobs/{job}/steps/{n}/files.tar")).await;
        let problem: Value = response.json().await.unwrap();
        assert_eq!(text(&problem, "code"), "not_kept", "step {n}");
    }
}

/// Files that others put there before the first step: some were kept and some not.
#[tokio::test]
async fn a_session_whose_files_were_kept_in_part_has_those_in_its_next_sandbox() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "session": {}, "limits": little_is_kept() })).await;
    let mut events = server.events(&job).await;
    events.until(|event| event["type"] == "sandbox.ready").await;
    while server.put_file(&job, "little", "kept").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    events.until(|event| event["type"] == "checkpoint.stored").await;
    assert_eq!(server.put_file(&job, "much", vec![7; MUCH]).await.status(), 204);
    events.until(|event| event["type"] == "checkpoint.skipped").await;
    signal(server.guest_pid(&job), Signal::KILL);
    let restored = events.until(|event| event["type"] == "workspace.restored").await;
    assert_eq!((&restored["step"], &restored["entries"]), (&json!(0), &json!(1)));
    let read = loop {
        let read = server.get(&format!("/jobs/{job}/files/little")).await;
        if read.status() == 200 {
            break read.text().await.unwrap();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(read, "kept");
    assert_eq!(server.get(&format!("/jobs/{job}/files/much")).await.status(), 404);
    server.cancel(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "cancelled");
}

/// What takes a while to pack, and which files it is.
fn long_to_pack() -> Value {
    shell(
        "mkdir d; echo kept > d/made; ln -s made d/link; head -c 64M /dev/urandom > much; \
         sha256sum much | cut -d ' ' -f 1",
    )
}

#[tokio::test]
async fn a_result_whose_sandbox_is_killed_while_it_is_packed_has_the_files_all_the_same() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [long_to_pack()] })).await;
    server.wait_for_step(&job, "step.finished", 1).await;
    signal(server.guest_pid(&job), Signal::KILL);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["generation"], 1);
    assert!(!verified_kinds(&server, &job).await.contains(&"sandbox.lost".to_owned()));
    let mut zip = server.archive(&job).await;
    assert_eq!(archive::text(&mut zip, "d/made"), "kept\n");
    assert!(archive::is_symlink(&mut zip, "d/link"));
    assert_eq!(archive::text(&mut zip, "d/link"), "made");
    let much = Sha256::digest(archive::content(&mut zip, "much"));
    let much: String = much.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text(step(&ended, 1), "stdout").trim(), much);
    assert!(server.wrote().contains("the sandbox was lost while it was packed"));
    assert_nothing_is_left(&server, &job);
}

#[tokio::test]
async fn a_result_that_is_lost_while_it_is_packed_and_was_not_kept_says_so() {
    let server = TestServer::start();
    let limits = json!({ "checkpoints": 0 });
    let job = server.submit(&json!({ "steps": [long_to_pack()], "limits": limits })).await;
    server.wait_for_step(&job, "step.finished", 1).await;
    signal(server.guest_pid(&job), Signal::KILL);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "failed", "{ended:#}");
    assert_eq!(ended["error"]["code"], "result_not_whole", "{:#}", ended["error"]);
    assert_eq!(archive::names(&server.archive(&job).await), ["agent.log", "memory.json"]);
    assert_nothing_is_left(&server, &job);
}

/// Its model said that it is done, of files that nobody has any more.
#[tokio::test]
async fn a_task_that_was_done_goes_on_when_files_are_lost_that_were_not_kept() {
    let call = |command: &str| Reply::Say(Said::call("shell", json!({ "command": command })));
    let model = Scripted::start([
        call("echo kept > a"),
        call("head -c 64M /dev/urandom > much"),
        Reply::Say(Said::finish("Much was made.")),
        call("echo again > b; ls"),
        Reply::Say(Said::finish("It was made again.")),
    ])
    .await;
    let environment = vec![("OPENAI_BASE_URL", model.base_url())];
    let mut server = TestServer::with(Options { environment, ..Options::default() });
    let task = json!({ "task": "Make much.", "limits": little_is_kept() });
    let job = server.submit(&task).await;
    server.wait_for(&job, "task.finished").await;
    power_cut(&mut server, &job);
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    assert_eq!(ended["summary"], "It was made again.");
    assert_eq!(step(&ended, 3)["stdout"], "a\nb\n");
    let mut zip = server.archive(&job).await;
    assert_eq!(
        (archive::text(&mut zip, "a"), archive::text(&mut zip, "b")),
        ("kept\n".into(), "again\n".into())
    );
    let told = model.asked()[3].body["messages"].to_string();
    assert!(told.contains("files that no checkpoint has"), "{told}");
}
