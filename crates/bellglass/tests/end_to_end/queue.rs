//! Which job runs when: priorities, jobs at once, time limits.

use serde_json::json;

use crate::support::{TestServer, archive, shell, step, text, wait_for_go};

/// Submits a job that holds its slot until it is let go, and waits until it does.
pub(crate) async fn blocker(server: &TestServer) -> String {
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    job
}

#[tokio::test]
async fn higher_priorities_run_first_and_equals_in_their_order() {
    let server = TestServer::with_slots(1);
    let blocker = blocker(&server).await;
    let mut jobs = Vec::new();
    for (name, priority) in [
        ("low", -100),
        ("usual", 0),
        ("high", 7),
        ("also high", 7),
        ("also usual", 0),
        ("top", 100),
    ] {
        let steps = [shell("true")];
        let body = json!({ "name": name, "priority": priority, "steps": steps });
        jobs.push(server.submit(&body).await);
    }
    server.let_go(&blocker).await;
    let mut started: Vec<(String, String)> = Vec::new();
    for job in &jobs {
        let job = server.wait_for_end(job).await;
        assert_eq!(job["status"], "completed");
        started.push((text(&job, "started_at").into(), text(&job["spec"], "name").into()));
    }
    started.sort();
    let order: Vec<&str> = started.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(order, ["top", "high", "also high", "usual", "also usual", "low"]);
}

#[tokio::test]
async fn no_more_jobs_run_at_once_than_there_are_slots() {
    let server = TestServer::with_slots(2);
    let held = [blocker(&server).await, blocker(&server).await];
    let waiting = server.submit(&json!({ "steps": [shell("true")] })).await;
    let others: Vec<String> = {
        let mut others = Vec::new();
        for _ in 0..6 {
            others.push(server.submit(&json!({ "steps": [shell("sleep 0.1")] })).await);
        }
        others
    };
    // Both slots are held, so nobody can have claimed it.
    let log = server.log(&waiting).await;
    assert_eq!(log.lines().count(), 1, "{log}");
    let page = server.json("/jobs?status=running").await;
    assert_eq!(page["jobs"].as_array().unwrap().len(), 2);

    server.let_go(&held[0]).await;
    assert_eq!(server.wait_for_end(&waiting).await["status"], "completed");
    assert_eq!(server.job(&held[1]).await["status"], "running");
    server.let_go(&held[1]).await;

    let mut moments: Vec<(String, i32)> = Vec::new();
    for job in held.iter().chain([&waiting]).chain(&others) {
        let job = server.wait_for_end(job).await;
        moments.push((text(&job, "started_at").into(), 1));
        moments.push((text(&job, "finished_at").into(), -1));
    }
    moments.sort();
    let mut running = 0;
    for (at, change) in moments {
        running += change;
        assert!(running <= 2, "{running} jobs ran at {at}");
    }
}

#[tokio::test]
async fn a_step_that_takes_too_long_is_killed_with_all_it_started() {
    let server = TestServer::start();
    let spread = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; nohup sleep 1000 & \
                  trap '' TERM INT HUP; echo spread; sleep 1000; sleep 1000";
    let steps = [
        json!({ "tool": "shell", "command": spread, "timeout": 1 }),
        shell("pgrep -c sleep; true"),
        shell("sleep 1000"),
    ];
    let limits = json!({ "step_time": 1 });
    let job = server.run(&json!({ "steps": steps, "limits": limits })).await;
    assert_eq!(job["status"], "completed");
    assert_eq!(job["failed_steps"], json!([1, 3]));
    let timed_out = step(&job, 1);
    assert_eq!((text(timed_out, "status"), text(timed_out, "stdout")), ("timed_out", "spread\n"));
    assert!(text(timed_out, "output").contains("time limit"), "{timed_out:#}");
    assert_eq!(step(&job, 2)["stdout"], "0\n");
    assert_eq!(text(step(&job, 3), "status"), "timed_out", "the job's own limit counts too");
}

#[tokio::test]
async fn a_job_that_takes_too_long_fails_with_what_it_had() {
    let server = TestServer::start();
    let steps = [shell("echo early > early.txt"), shell("sleep 1000"), shell("echo never")];
    let job = server.run(&json!({ "steps": steps, "limits": { "time": 1.5 } })).await;
    assert_eq!(job["status"], "failed");
    assert_eq!(job["error"]["code"], "time_limit");
    assert_eq!(job["steps"].as_array().unwrap().len(), 2);
    assert_eq!(text(step(&job, 2), "status"), "cancelled");
    assert_eq!(job["failed_steps"], json!([2]));
    let mut result = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut result, "early.txt"), "early\n");
}
