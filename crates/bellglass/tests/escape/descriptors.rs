//! Descriptors that lead into the host, as in CVE-2024-21626.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use crate::attempt::assert_refused;
use crate::support::host::{self, PidNamespace};
use crate::support::{TestServer, step, wait_for_go};

#[tokio::test]
async fn leaked_descriptors() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let guest = server.guest_pid(&job);
    let inside = host::pid_namespace(guest).unwrap();
    let processes = host::processes_in(&inside);
    assert!(processes.len() >= 3, "guest, supervisor and shell: {processes:?}");
    let mut seen = BTreeSet::new();
    let outside = pipes_outside(&inside);
    let (own, hosts) = (sockets_of(guest), sockets_of(std::process::id() as i32));
    for pid in &processes {
        let mounts = mounts_of(*pid);
        // A process that has just ended has no folder any more; the shell starts many.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let number = descriptor.file_name().into_string().unwrap();
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let Ok(info) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) else {
                continue;
            };
            let told = format!("descriptor {number} of {pid} is {target}");
            let (kind, what) = target.split_once(':').unwrap_or((target.as_str(), ""));
            match kind {
                // Of the sandbox's own network; but for the wire, which was made before there was one.
                "socket" => {
                    let inode = what.trim_matches(['[', ']']);
                    let is_wire = hosts.get(inode).is_some_and(|path| path.ends_with("/wire"));
                    assert!(own.contains_key(inode) || is_wire, "{told}, which is the host's");
                }
                "pipe" => assert!(!outside.contains(&target), "{told}, whose other end is outside"),
                // Each kind leads to nothing but what the process itself put there, or to a process.
                "anon_inode" | "pidfd" => {
                    const HARMLESS: [&str; 6] = [
                        "[eventpoll]",
                        "[eventfd]",
                        "[signalfd]",
                        "[timerfd]",
                        "[pidfd]",
                        "inotify",
                    ];
                    assert!(kind == "pidfd" || HARMLESS.contains(&what), "{told}");
                    // One that has ended has no number any more.
                    let process = info.lines().find_map(|line| line.strip_prefix("Pid:"));
                    let process = process.and_then(|pid| pid.trim().parse().ok());
                    let is_inside = |pid: i32| {
                        pid <= 0
                            || host::pid_namespace(pid)
                                .is_none_or(|there| there.name == inside.name)
                    };
                    assert!(process.is_none_or(is_inside), "{told}, a process outside");
                }
                _ => {}
            }
            if ["socket", "pipe", "anon_inode", "pidfd"].contains(&kind) {
                seen.insert(kind.to_owned());
                continue;
            }
            let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap();
            assert!(
                mounts.contains(mount.trim()),
                "descriptor {number} of {pid} is {target}, of a mount that is not the sandbox's"
            );
            seen.insert(target);
        }
        for name in ["root", "cwd"] {
            let Ok(there) = fs::metadata(format!("/proc/{pid}/{name}")) else { continue };
            let host_root = fs::metadata("/").unwrap();
            assert_ne!((there.dev(), there.ino()), (host_root.dev(), host_root.ino()));
        }
    }
    // What was looked at is what a guest has.
    assert!(seen.contains("/dev/null") && seen.contains("socket"), "{seen:?}");
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
}

/// The pipes of processes that are not in this namespace.
fn pipes_outside(inside: &PidNamespace) -> HashSet<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_outside = |pid: i32| host::pid_namespace(pid).is_some_and(|it| it.name != inside.name);
    let others = pids.filter(|pid| is_outside(*pid));
    let descriptors = others.filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
    let targets =
        descriptors.flatten().flatten().filter_map(|each| fs::read_link(each.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.filter(|target| target.starts_with("pipe:")).collect()
}

/// The sockets of the network that a process is in, with their paths if they have any.
fn sockets_of(pid: i32) -> HashMap<String, String> {
    // Where the number stands in a line of each table, and the path after it.
    const TABLES: [(&str, usize); 8] = [
        ("unix", 6),
        ("tcp", 9),
        ("tcp6", 9),
        ("udp", 9),
        ("udp6", 9),
        ("raw", 9),
        ("packet", 8),
        ("netlink", 9),
    ];
    let mut found = HashMap::new();
    for (table, place) in TABLES {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(place);
            if let Some(inode) = fields.next() {
                found.insert(inode.to_owned(), fields.next().unwrap_or_default().to_owned());
            }
        }
    }
    found
}

/// The numbers of the mounts that a process can see.
fn mounts_of(pid: i32) -> HashSet<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

#[tokio::test]
async fn descriptors_as_seen_from_inside() {
    let server = TestServer::start();
    let attempts = [
        ("os.listdir('/proc/1/fd')", "EACCES|EPERM"),
        ("os.open('/proc/1/fd/3', os.O_RDONLY)", "EACCES|EPERM"),
        ("os.listdir('/proc/1/fdinfo')", "EACCES|EPERM"),
        ("os.listdir('/proc/1/map_files')", "EACCES|EPERM"),
        // Beyond the standard three there is only the pipe that this attempt reports through.
        (
            "more = [os.readlink(f'/proc/self/fd/{n}') for n in range(3, 1024) if os.path.lexists(f'/proc/self/fd/{n}')]\n\
             if all(target.startswith('pipe:') for target in more): raise OSError(errno.ENOENT, 'none')\n\
             more",
            "ENOENT",
        ),
        // An open folder of another root would be the way out.
        (
            r"
for n in range(64):
    try: os.fchdir(n)
    except OSError: continue
    raise SystemError(n)
os.stat('/not-there')
",
            "ENOENT",
        ),
    ];
    assert_refused(&server, &attempts).await;
}

/// The working folder of a step can be asked for from outside, which is how the CVE was used.
#[tokio::test]
async fn working_folder_through_a_descriptor() {
    let server = TestServer::start();
    let places = (3..20).map(|n| format!("/proc/self/fd/{n}"));
    let steps: Vec<Value> = places
        .map(|cwd| json!({ "tool": "shell", "command": "pwd -P; ls -a ../../..", "cwd": cwd }))
        .collect();
    let job = server.run(&json!({ "steps": steps, "on_error": "continue" })).await;
    for n in 1..=steps.len() {
        let step = step(&job, n);
        assert_eq!(step["status"], "failed", "{step:#}");
        assert_eq!(step["stdout"], "", "{step:#}");
    }
}
