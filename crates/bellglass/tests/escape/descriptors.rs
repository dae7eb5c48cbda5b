//! Descriptors that lead into the host, as in CVE-2024-21626.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use crate::attempt::assert_refused;
use crate::support::{TestServer, host, step, wait_for_go};

#[tokio::test]
async fn leaked_descriptors() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let guest = server.guest_pid(&job);
    let processes = host::processes_in(&host::pid_namespace(guest).unwrap());
    assert!(processes.len() >= 3, "guest, supervisor and shell: {processes:?}");
    let mut seen = BTreeSet::new();
    for pid in &processes {
        let mounts = mounts_of(*pid);
        // A process that has just ended has no folder any more; the shell starts many.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let number = descriptor.file_name().into_string().unwrap();
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = target.split(':').next().unwrap();
            if ["socket", "pipe", "anon_inode"].contains(&kind) {
                seen.insert(kind.to_owned());
                continue;
            }
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap();
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
