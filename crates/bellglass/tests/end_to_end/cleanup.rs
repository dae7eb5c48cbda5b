//! After many jobs nothing is left over, and the server is as it was.

use std::fs;
use std::path::PathBuf;

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{Client, Options, TestServer, host, shell};

const MANY: usize = 500;
const MORE: usize = 250;

/// A job, which in every tenth case has a disk of its own: a loop device, where there can be one.
fn body(n: usize) -> Value {
    let mut body = json!({ "steps": [shell("echo done")] });
    if n.is_multiple_of(10) {
        body["limits"] = json!({ "memory": "64MiB", "disk": "48MiB" });
    }
    body
}

/// Submits jobs at once and waits until all are completed.
async fn run_at_once(client: &Client, count: usize) -> Vec<String> {
    let jobs: Vec<String> = futures::stream::iter(0..count)
        .map(async |n| client.submit(&body(n)).await)
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

/// What the program itself holds in memory, and what its SQLite does. The second is in the C library's
/// heap, and grows with the database until its caches are full; the first must not grow.
fn memory(pid: i32) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let heap = maps.split_once("[heap]\n").map_or("", |(_, heap)| heap);
    let heap = heap.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let heap = heap.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let heap = heap.expect("the C library has a heap") * 1024;
    (host::resident_memory(pid) - heap, heap)
}

/// Allocators give back at once what is free, so that what is there is in use; and the C library keeps to
/// its one heap.
fn server() -> TestServer {
    let environment = [
        ("MIMALLOC_PURGE_DELAY", "0"),
        ("MIMALLOC_ABANDONED_PAGE_PURGE", "1"),
        ("MALLOC_ARENA_MAX", "1"),
    ];
    let environment = environment.map(|(name, value)| (name, value.to_owned())).to_vec();
    TestServer::with(Options { slots: Some(4), environment, ..Options::default() })
}

/// What is left of jobs that are over.
fn assert_nothing_is_left(server: &TestServer, jobs: &[String]) {
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
    assert_eq!(host::disks_in(&server.data()), Vec::<String>::new(), "loop devices");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_jobs_at_once_leave_nothing_behind() {
    // Of 20 kB a job, 250 jobs would leave 5 MB.
    const MOST_GROWTH: u64 = 4 << 20;
    const MOST_OF_SQLITE: u64 = 64 << 20;
    const MOST_ROUNDS: usize = 4;
    let server = server();
    let mounts = host::our_mounts(server.pid());

    let jobs = run_at_once(&server, MANY).await;
    assert_eq!(jobs.len(), MANY);
    assert_nothing_is_left(&server, &jobs);
    let open = descriptors(server.pid());
    let (mut before, mut sqlite) = memory(server.pid());

    // An allocator may take some more pages for good in any round; what leaks leaks in every one.
    let mut growth = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let jobs = run_at_once(&server, MORE).await;
        assert_nothing_is_left(&server, &jobs);
        let after;
        (after, sqlite) = memory(server.pid());
        growth.push(after.saturating_sub(before));
        println!("{before} bytes became {after} by {MORE} more jobs, SQLite's are {sqlite}");
        if after < before + MOST_GROWTH {
            break;
        }
        before = after;
    }
    assert_eq!(host::our_mounts(server.pid()), mounts);
    let open_now = descriptors(server.pid());
    assert!(open_now.len() <= open.len() + 4, "{open:#?}\nbecame\n{open_now:#?}");
    assert!(growth.iter().any(|bytes| *bytes < MOST_GROWTH), "it grew each time: {growth:?}");
    assert!(sqlite < MOST_OF_SQLITE, "SQLite holds {sqlite} bytes");
}
