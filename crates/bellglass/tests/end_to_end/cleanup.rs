//! After many jobs nothing is left over, and the server is as it was.

use std::fs;
use std::path::PathBuf;

use futures::StreamExt as _;
use serde_json::json;

use crate::support::{Client, TestServer, host, shell};

const MANY: usize = 500;
const WARM_UP: usize = 50;

/// Submits jobs at once and waits until all are completed.
async fn run_at_once(client: &Client, count: usize) -> Vec<String> {
    let body = json!({ "steps": [shell("echo done")] });
    let jobs: Vec<String> = futures::stream::iter(0..count)
        .map(|_| client.submit(&body))
        .buffer_unordered(50)
        .collect()
        .await;
    let mut ends = futures::stream::iter(&jobs)
        .map(async |job| (job, client.wait_for_end(job).await))
        .buffer_unordered(20);
    while let Some((id, job)) = ends.next().await {
        assert_eq!(job["status"], "completed", "{job:#}");
        assert_eq!(job["steps"][0]["stdout"], "done\n", "{id}");
    }
    drop(ends);
    jobs
}

/// What a process holds open beside connections.
fn descriptors(pid: i32) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let names = targets.map(|target| target.to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("socket:")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_jobs_at_once_leave_nothing_behind() {
    let server = TestServer::start();
    let mounts = host::our_mounts(server.pid());
    run_at_once(&server, WARM_UP).await;
    let (memory, open) = (host::resident_memory(server.pid()), descriptors(server.pid()));

    let jobs = run_at_once(&server, MANY).await;
    assert_eq!(jobs.len(), MANY);

    assert_eq!(host::children_of(server.pid()), Vec::<i32>::new(), "processes, corpses included");
    for folder in ["sandboxes", "spools"] {
        let left = fs::read_dir(server.data().join(folder)).into_iter().flatten().flatten();
        let left: Vec<PathBuf> = left.map(|entry| entry.path()).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
    }
    let groups = host::control_groups();
    let left: Vec<&PathBuf> = groups
        .iter()
        .filter(|group| jobs.iter().any(|job| group.to_string_lossy().ends_with(job.as_str())))
        .collect();
    assert_eq!(left, Vec::<&PathBuf>::new());
    assert_eq!(host::our_mounts(server.pid()), mounts);
    let open_now = descriptors(server.pid());
    assert!(open_now.len() <= open.len() + 4, "{open:#?}\nbecame\n{open_now:#?}");
    let memory_now = host::resident_memory(server.pid());
    println!("memory after {WARM_UP} jobs {memory}, after {MANY} more {memory_now}");
    assert!(memory_now < 2 * memory + (32 << 20), "{memory} bytes became {memory_now}");
}
