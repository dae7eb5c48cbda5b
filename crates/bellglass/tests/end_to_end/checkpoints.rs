//! Workspaces that outlive their sandboxes: what a job goes on from when everything was killed.

use serde_json::{Value, json};

use crate::crash::{assert_nothing_is_left, verified_kinds};
use crate::support::{TestServer, archive, host, shell, step, text, wait_for_go};

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
