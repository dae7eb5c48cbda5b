//! Tools that leave traps behind, lock others out or take all they can: the job ends well anyway.

use serde_json::json;

use crate::support::{TestServer, archive, shell, step, text};

#[tokio::test]
async fn traps_in_place_of_rules_stop_nothing() {
    let server = TestServer::start();
    let list = json!({ "tool": "list_files" });
    let search = json!({ "tool": "search_files", "pattern": "needle" });
    let steps = [
        shell("echo needle > a; ln -s /dev/zero .gitignore"),
        list.clone(),
        search.clone(),
        shell("rm .gitignore; mkfifo .gitignore"),
        list,
        search,
        shell("rm .gitignore"),
    ];
    let job = server.run(&json!({ "steps": steps, "limits": { "memory": "128MiB" } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    for n in [3, 6] {
        assert_eq!(text(step(&job, n), "output"), "a:1:needle\n", "{:#}", step(&job, n));
    }
}

#[tokio::test]
async fn shared_memory_and_disk_are_full_before_memory_is() {
    let server = TestServer::start();
    let fill = |path: &str| shell(&format!("head -c 1G /dev/zero > {path}"));
    let steps = [fill("/dev/shm/full"), fill("full"), shell("rm -f full; echo well")];
    let job = server.run(&json!({ "steps": steps, "limits": { "memory": "256MiB" } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    for n in [1, 2] {
        let filled = step(&job, n);
        assert!(text(filled, "stderr").contains("No space left on device"), "{filled:#}");
    }
    assert_eq!(step(&job, 3)["stdout"], "well\n", "{:#}", step(&job, 3));
}

#[tokio::test]
async fn busy_loops_do_not_outlast_their_time() {
    let server = TestServer::start();
    let busy = "for i in {1..200}; do while :; do :; done & done; wait";
    let steps = [json!({ "tool": "shell", "command": busy, "timeout": 3 }), shell("nice")];
    let limits = json!({ "cpus": 0.1, "processes": 300 });
    let job = server.run(&json!({ "steps": steps, "limits": limits })).await;
    assert_eq!(text(step(&job, 1), "status"), "timed_out", "{:#}", step(&job, 1));
    // The guest is at 0 and goes first.
    assert_eq!(step(&job, 2)["stdout"], "19\n", "{:#}", step(&job, 2));
}

#[tokio::test]
async fn what_tools_closed_or_left_running_is_packed() {
    let server = TestServer::start();
    let steps = [shell(
        "echo in > a; mkdir shut; echo too > shut/b; chmod 000 a shut; \
         truncate -s 100G sparse; echo last > z; \
         setsid sh -c 'while :; do echo more >> y; done' > /dev/null 2>&1 & \
         until [ -s y ]; do sleep 0.01; done; chmod 000 /workspace",
    )];
    let job = server.run(&json!({ "steps": steps, "limits": { "disk": "50MiB" } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let skipped = job["result"]["skipped"].to_string();
    assert_eq!(job["result"]["skipped"].as_array().unwrap().len(), 1, "{skipped}");
    assert!(skipped.contains("sparse: ") && skipped.contains("disk"), "{skipped}");
    let mut zip = server.archive(text(&job, "job_id")).await;
    for (name, content) in [("a", "in\n"), ("shut/b", "too\n"), ("z", "last\n")] {
        assert_eq!(archive::text(&mut zip, name), content);
    }
    assert_eq!(archive::mode(&mut zip, "a"), 0, "as it was");
}
