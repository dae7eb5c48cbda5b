//! What nobody needs any more is found and removed, and nothing else is.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Options, TestServer, host, shell, signal, wait_for_go};

fn busy_sweeper() -> TestServer {
    TestServer::with(Options { config: "[worker]\nsweep = 0.2\n", ..Options::default() })
}

/// A sandbox of which nobody lives to know: a process that was not recorded, a folder, groups.
struct Orphan {
    process: Child,
    folder: PathBuf,
    groups: Vec<PathBuf>,
}

impl Orphan {
    /// `like` is a running sandbox of the same server, beside whose groups the orphan's are made.
    fn leave(server: &TestServer, number: &str, like: &str) -> Self {
        let groups: Vec<PathBuf> = host::control_groups_of(like)
            .iter()
            .map(|group| {
                let name = group.file_name().unwrap().to_str().unwrap();
                group.with_file_name(name.replace(like, number))
            })
            .collect();
        groups.iter().for_each(|group| fs::create_dir(group).unwrap());
        // `sleep` takes the name for a number of seconds.
        let mut command = Command::new("sleep");
        let process = command.arg0("bellglass-guest").arg(number).spawn().unwrap();
        let folder = server.data().join("sandboxes").join(number);
        fs::create_dir(&folder).unwrap();
        Self { process, folder, groups }
    }

    async fn wait_until_gone(mut self) {
        while self.folder.exists() || self.groups.iter().any(|group| group.exists()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert!(!self.process.wait().unwrap().success());
    }
}

#[tokio::test]
async fn orphans_are_removed_while_jobs_run_and_no_job_is_touched() {
    let server = busy_sweeper();
    let neighbour = busy_sweeper();
    let jobs = [&server, &neighbour].map(|server| {
        let body = json!({ "steps": [wait_for_go()] });
        async move { server.submit(&body).await }
    });
    let [job, neighbours_job] = jobs;
    let (job, neighbours_job) = (job.await, neighbours_job.await);
    server.wait_for_step(&job, "step.output", 1).await;
    neighbour.wait_for_step(&neighbours_job, "step.output", 1).await;
    // Several sweeps pass, of both servers.
    for number in ["864001", "864002", "864003"] {
        let orphans = [
            Orphan::leave(&server, number, &job),
            Orphan::leave(&neighbour, &format!("{number}0"), &neighbours_job),
        ];
        for orphan in orphans {
            orphan.wait_until_gone().await;
        }
    }
    for (server, job) in [(&server, &job), (&neighbour, &neighbours_job)] {
        server.let_go(job).await;
        assert_eq!(server.wait_for_end(job).await["status"], "completed");
    }
}

#[tokio::test]
async fn jobs_that_come_and_go_are_not_swept_away() {
    come_and_go(busy_sweeper()).await;
}

/// A sweep may have listed a waiting sandbox under its old name when it becomes a job's.
#[tokio::test]
async fn nor_are_those_whose_sandboxes_were_made_ahead() {
    come_and_go(TestServer::with(Options {
        config: "[worker]\nsweep = 0.1\n[sandbox.warm]\nmin = 4\n",
        environment: vec![("BELLGLASS_WARM", "4".to_owned())],
        slots: Some(4),
        ..Options::default()
    }))
    .await;
}

async fn come_and_go(server: TestServer) {
    for _ in 0..12 {
        let body = json!({ "steps": [shell("sleep 0.05; echo done")] });
        let jobs = futures::future::join_all((0..6).map(|_| server.run(&body))).await;
        for job in jobs {
            assert_eq!(job["steps"][0]["stdout"], "done\n", "{job:#}");
        }
    }
}

/// What is left of a server's sandboxes on the host, of whatever kind.
fn leftovers(data: &Path, jobs: &[String]) -> Vec<String> {
    let mut left: Vec<String> = Vec::new();
    for folder in ["sandboxes", "spools"] {
        let entries = fs::read_dir(data.join(folder)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    for job in jobs {
        left.extend(host::guests_of(job).iter().map(|pid| format!("process {pid}")));
        let groups = host::control_groups_of(job);
        left.extend(groups.iter().map(|group| group.display().to_string()));
    }
    left.extend(host::disks_in(data));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_ours = |line: &&str| line.contains(data.to_str().unwrap());
    left.extend(mounts.lines().filter(of_ours).map(String::from));
    left
}

#[tokio::test]
async fn killing_everything_at_any_moment_leaves_nothing() {
    let mut server = TestServer::with_slots(4);
    let mut jobs = Vec::new();
    for round in 0..8u64 {
        // Some have a disk of their own.
        for limits in [json!({}), json!({ "disk": "40MiB", "memory": "64MiB" })] {
            let steps = [shell("echo begun; sleep 0.1"), shell("echo done")];
            jobs.push(server.submit(&json!({ "steps": steps, "limits": limits })).await);
        }
        // Another moment each time: before, while and after sandboxes start.
        tokio::time::sleep(std::time::Duration::from_millis(round * 17)).await;
        let guests: Vec<i32> = jobs.iter().flat_map(|job| host::guests_of(job)).collect();
        if round % 2 == 0 {
            server.kill();
        }
        for guest in guests {
            let _ = rustix::process::Pid::from_raw(guest)
                .map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        }
        if round % 2 == 1 {
            signal(server.pid(), Signal::KILL);
            server.kill();
        }
        server.start_again();
    }
    for job in &jobs {
        // A job whose sandbox was killed while it started has failed; all others were done.
        let ended = server.wait_for_end(job).await;
        let code = &ended["error"]["code"];
        assert!(ended["status"] == "completed" || code == "sandbox_failed", "{ended:#}");
    }
    assert_eq!(leftovers(&server.data(), &jobs), Vec::<String>::new());
}
