//! Cancelling a job, whatever it is doing.

use serde_json::json;

use crate::queue::blocker;
use crate::support::{TestServer, archive, host, shell, step, text};

#[tokio::test]
async fn a_queued_job_never_runs() {
    let server = TestServer::with_slots(1);
    let blocker = blocker(&server).await;
    let queued = server.submit(&json!({ "steps": [shell("true")] })).await;
    let last = server.submit(&json!({ "steps": [shell("true")] })).await;
    assert_eq!(server.cancel(&queued).await["status"], "cancelled");
    server.let_go(&blocker).await;
    assert_eq!(server.wait_for_end(&last).await["status"], "completed");

    let job = server.job(&queued).await;
    assert_eq!((text(&job, "status"), &job["steps"]), ("cancelled", &json!([])));
    let mut events = server.events(&queued).await;
    let mut kinds = Vec::new();
    while let Some(event) = events.next().await {
        kinds.push(text(&event, "type").to_owned());
    }
    assert_eq!(kinds, ["scheduled", "cancel.requested", "finished"]);
    let zip = server.get(&format!("/jobs/{queued}/output.zip")).await;
    assert_eq!(zip.status(), 404);
}

#[tokio::test]
async fn a_running_job_ends_with_all_its_processes_and_keeps_its_work() {
    let server = TestServer::start();
    let command = "echo partial > partial.txt; setsid sleep 1000 & (trap '' TERM; sleep 1000) & \
                   echo running; sleep 1000";
    let steps = [shell(command), shell("echo never > never.txt")];
    let id = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&id, "step.output", 1).await;
    let namespace = host::pid_namespace(server.guest_pid(&id)).unwrap();
    assert!(host::processes_in(&namespace).len() >= 4);

    let answer = server.cancel(&id).await;
    assert_eq!(answer["job_id"], id);
    let again = server.cancel(&id).await;
    assert!(matches!(text(&again, "status"), "running" | "cancelled"));
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "cancelled");
    assert_eq!(job["failed_steps"], json!([1]));
    assert_eq!(job["steps"].as_array().unwrap().len(), 1);
    assert_eq!(text(step(&job, 1), "status"), "cancelled");
    assert_eq!(host::processes_in(&namespace), Vec::<i32>::new());
    let mut result = server.archive(&id).await;
    assert_eq!(archive::text(&mut result, "partial.txt"), "partial\n");
    assert!(!archive::names(&result).contains(&"never.txt".to_owned()));

    assert_eq!(server.cancel(&id).await["status"], "cancelled");
    assert_eq!(server.job(&id).await, job, "nothing changes after the end");
}

#[tokio::test]
async fn a_job_that_has_ended_stays_as_it_is() {
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": [shell("true")] })).await;
    let id = text(&job, "job_id");
    assert_eq!(server.cancel(id).await["status"], "completed");
    assert_eq!(server.job(id).await, job);
}

#[tokio::test]
async fn any_moment_is_right() {
    let server = TestServer::with_slots(4);
    let mut jobs = Vec::new();
    for _ in 0..24 {
        jobs.push(server.submit(&json!({ "steps": [shell("sleep 1000")] })).await);
    }
    // Some are queued, some claimed, some starting their sandbox, some running.
    for job in &jobs {
        server.cancel(job).await;
    }
    for job in &jobs {
        assert_eq!(server.wait_for_end(job).await["status"], "cancelled");
    }
    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new());
}

#[tokio::test]
async fn a_cancellation_survives_a_crash() {
    let mut server = TestServer::start();
    let job = server.submit(&json!({ "steps": [shell("echo up; sleep 1000")] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    server.cancel(&job).await;
    server.kill();
    server.start_again();
    assert_eq!(server.wait_for_end(&job).await["status"], "cancelled");
}

#[tokio::test]
async fn also_the_moment_before_a_step_reaches_its_sandbox() {
    let server = TestServer::with_slots(4);
    let steps = vec![shell("true"); 300];
    for round in 1..=12u32 {
        let job = server.submit(&json!({ "steps": steps })).await;
        server.wait_for_step(&job, "step.started", 3 * round).await;
        server.cancel(&job).await;
        let ended = server.wait_for_end(&job).await;
        assert_eq!(ended["status"], "cancelled", "{}", ended["error"]);
    }
}

#[tokio::test]
async fn packing_can_be_cancelled() {
    let server = TestServer::start();
    let job = server
        .submit(&json!({
            "limits": { "memory": "4GiB", "disk": "2GiB" },
            "steps": [shell("head -c 600M /dev/urandom > large")],
        }))
        .await;
    server.wait_for_step(&job, "step.finished", 1).await;
    server.cancel(&job).await;
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "cancelled", "{}", ended["error"]);
}
