//! The guest as it is in a sandbox: first process, root among its own, tools under another user.
//!
//! The test starts itself again as the first process of a namespace. Only root can make one; what a
//! plain user gets is tried from end to end.

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::wire::{Reply, Request};
use serde_json::json;
use support::{assert_root, connect, eventually, succeeded};

/// A user that no one else on this machine is.
const TOOL: u32 = 54_321;

#[test]
fn the_guest_works_as_the_first_process() {
    if std::process::id() == 1 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(inside_the_namespace());
    }
    let unshare = |program: &[&str]| {
        // Fresh /proc and /tmp: the first is read by the guest, the second belongs to the sandbox.
        // The program is opened first, for it may lie below the /tmp that is covered.
        let script =
            "exec 9<\"$1\" && shift && mount -t tmpfs tmpfs /tmp && exec /proc/self/fd/9 \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]);
        command.args(program).status().is_ok_and(|status| status.success())
    };
    assert_root("can make process namespaces and keep its ids");
    let own = std::env::current_exe().unwrap();
    let inner = ["--exact", "the_guest_works_as_the_first_process", "--nocapture"];
    assert!(unshare(&[&[own.to_str().unwrap()], &inner[..]].concat()));
}

async fn inside_the_namespace() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions("/tmp", std::fs::Permissions::from_mode(0o1777)).unwrap();
    let workspace = folder.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    chown(&workspace, Some(TOOL), Some(TOOL)).unwrap();
    let socket = folder.path().join("wire");
    let listener = UnixListener::bind(&socket).unwrap();
    let config = GuestConfig {
        workspace: workspace.to_str().unwrap().into(),
        tool_uid: TOOL,
        tool_gid: TOOL,
        home: workspace.to_str().unwrap().into(),
        open_files: 256,
        processes: Some(150),
        nested_sandboxing: false,
        memory: None,
        processors: None,
        orphaned_after_seconds: None,
    };
    std::thread::spawn(move || bellglass_guest::inside::run(listener, config));
    let worker = connect(&socket).await;

    let done = worker.shell(1, "echo $(id -u) $(id -g) $(id -G); touch by-shell; cat /proc/self/status | grep -E '^(CapPrm|CapBnd|NoNewPrivs)'").await;
    let nothing = "0000000000000000";
    let expected =
        format!("{TOOL} {TOOL} {TOOL}\nCapPrm:\t{nothing}\nCapBnd:\t{nothing}\nNoNewPrivs:\t1\n");
    assert_eq!(done.stdout(), expected);
    let call = json!({"tool": "write_file", "path": "deep/by-guest", "content": ""});
    succeeded(&worker.call(2, call).await);
    for path in ["by-shell", "deep", "deep/by-guest"] {
        let data = workspace.join(path).metadata().unwrap();
        assert_eq!((data.uid(), data.gid()), (TOOL, TOOL), "{path}");
    }
    std::fs::write(workspace.join("roots"), "x").unwrap();
    std::fs::set_permissions(workspace.join("roots"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let denied = worker.call(3, json!({"tool": "read_file", "path": "roots"})).await;
    assert_eq!(denied.code(), "permission_denied");
    let python =
        worker.call(4, json!({"tool": "python", "fresh": true, "code": "print(6 * 7)"})).await;
    assert_eq!(python.stdout(), "42\n", "{}", python.stderr());

    let done = worker.shell(5, "kill -9 1 $PPID; cat /proc/1/environ /proc/$PPID/environ; kill -0 1 && echo alive; exit 6").await;
    assert_eq!(
        (done.result.exit_code, done.stdout().as_str()),
        (Some(6), ""),
        "tools cannot touch the guest"
    );

    let bomb = json!({"tool": "shell", "command": "bomb() { bomb | bomb & }; bomb; sleep 1000"});
    let done = worker.begin(6, bomb, Duration::from_millis(500)).await.finish().await;
    assert_eq!(done.result.status, StepStatus::TimedOut);
    assert_eq!(living_tools(), 0, "something survived");
    eventually("all dead are taken away", || processes("State:\tZ") == 0).await;
    assert_eq!(worker.shell(7, "echo well").await.stdout(), "well\n");

    let hidden = "setsid sh -c 'while :; do echo more >> growing; done' > /dev/null 2>&1 & echo on";
    assert_eq!(worker.shell(8, hidden).await.stdout(), "on\n");
    let mut packing = worker.ask(&Request::Pack).await;
    assert!(matches!(packing.reply().await, Reply::Entry { .. }));
    assert_eq!(living_tools(), 0, "what is packed may not change any more");
}

/// How many processes of the tools' user live and have a program. The dead may wait a moment to be taken away, and
/// one process waits for the next call, under its supervisor's name until it has a program of its own.
fn living_tools() -> usize {
    let has = |status: &str, line: &str| status.lines().any(|found| found.starts_with(line));
    let user = format!("Uid:\t{TOOL}");
    let counts = |status: &&String| {
        has(status, &user) && !has(status, "State:\tZ") && !has(status, "Name:\tsupervisor")
    };
    statuses().iter().filter(counts).count()
}

/// How many processes have a line in their status that begins so.
fn processes(line: &str) -> usize {
    let found = |status: &&String| status.lines().any(|found| found.starts_with(line));
    statuses().iter().filter(found).count()
}

fn statuses() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok()).collect()
}
