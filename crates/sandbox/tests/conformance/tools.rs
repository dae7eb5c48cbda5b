//! What runs inside, and what it can reach.

use std::collections::BTreeMap;
use std::time::Duration;

use bellglass_protocol::job::IsolationLevel;
use bellglass_protocol::step::StepStatus;
use bellglass_sandbox::Sandbox;
use futures::StreamExt as _;
use serde_json::json;

use crate::fixture::{Fixture, PATIENCE, call, shell};

pub(crate) async fn the_first_command_speaks(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let done = shell(&sandbox, 1, "echo out; echo err >&2; pwd; hostname; exit 3").await;
    let name = &sandbox.report().inside.hostname;
    assert_eq!(done.stdout, format!("out\n/workspace\n{name}\n"), "{done:?}");
    assert_eq!(done.stderr, "err\n");
    assert_eq!((done.result.status, done.result.exit_code), (StepStatus::Failed, Some(3)));
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn a_command_runs_whoever_waits_for_it(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    // Ends everything that a tool can end, whoever waits for the next command included, if it can.
    for (n, signal) in [(1, "KILL"), (2, "TERM"), (3, "STOP")] {
        let end_all = format!("(sleep 0.1; kill -{signal} -1) > /dev/null 2>&1 &");
        shell(&sandbox, 2 * n, &end_all).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let well = shell(&sandbox, 2 * n + 1, "echo well").await;
        assert_eq!(well.stdout, "well\n", "{signal}");
    }
    // Too long for a letter.
    let long = json!({ "A": "x".repeat(100_000), "B": "x".repeat(100_000) });
    let call_of = json!({ "tool": "shell", "command": "echo ${#A} ${#B}", "env": long });
    assert_eq!(call(&sandbox, 8, call_of).await.stdout, "100000 100000\n");
    // One after the other, faster than anybody could be made ready for them.
    for n in 9..24 {
        assert_eq!(shell(&sandbox, n, &format!("echo {n}")).await.stdout, format!("{n}\n"));
    }
    // Each finds nothing but its own three descriptors.
    let others = "for n in {3..40}; do [ -e /proc/$$/fd/$n ] && echo $n; done; echo no more";
    assert_eq!(shell(&sandbox, 24, others).await.stdout, "no more\n");
    sandbox.destroy().await.unwrap();
}

/// It has the memory of its supervisor, which has more rights than tools.
pub(crate) async fn who_waits_for_a_command_is_no_way_in(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let spy = r#"
import ctypes, errno, json, os, pathlib, sys, time
libc = ctypes.CDLL(None, use_errno=True)
open("up", "w").close()
def supervisors():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError: continue
        if status.startswith("Name:\tsupervisor\n"): yield int(pid), f"\nUid:\t{os.getuid()}\t" in status
if sys.argv[1] == "child":
    # It has the name of its supervisor until it has a program.
    until = time.monotonic() + 10
    while not any(ours for _, ours in supervisors()) and time.monotonic() < until: time.sleep(0.002)
else:
    # The one of this process, and that of the next command, to which nobody is added.
    while sum(not ours for _, ours in supervisors()) < 2: time.sleep(0.002)
    time.sleep(0.1)
waiting = [pid for pid, ours in supervisors() if ours]
def call(*words):
    if libc.syscall(*words) < 0: raise OSError(ctypes.get_errno(), "")
def tried(attempt):
    try: return repr(attempt())
    except OSError as error: return errno.errorcode[error.errno]
here = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
found = {way: said for pid in waiting for way, said in {
    "memory": tried(lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR)),
    "maps": tried(lambda: open(f"/proc/{pid}/maps").read(1)),
    "environment": tried(lambda: open(f"/proc/{pid}/environ").read(1)),
    "descriptors": tried(lambda: os.listdir(f"/proc/{pid}/fd")),
    "root": tried(lambda: os.listdir(f"/proc/{pid}/root/")),
    "attach": tried(lambda: call(101, 16, pid, 0, 0)),
    "seize": tried(lambda: call(101, 0x4206, pid, 0, 0)),
    "write": tried(lambda: call(311, pid, here, 1, here, 1, 0)),
    "take a descriptor": tried(lambda: call(438, os.pidfd_open(pid), 3, 0)),
}.items()}
pathlib.Path("found.new").write_text(json.dumps(found))
os.rename("found.new", "found.json")
"#;
    let write = json!({ "tool": "write_file", "path": "spy.py", "content": spy });
    assert_eq!(call(&sandbox, 1, write).await.result.status, StepStatus::Succeeded);
    // gVisor's kernel would show too much of it, so nobody of the tools' user waits there.
    let (who, ways) = match sandbox.report().isolation {
        IsolationLevel::Gvisor => ("supervisor", 0),
        _ => ("child", 9),
    };
    let start = format!("python3 spy.py {who} > said 2>&1 & until [ -e up ]; do sleep 0.01; done");
    assert_eq!(shell(&sandbox, 2, &start).await.result.exit_code, Some(0));
    let found = until_there(&sandbox, "found.json").await;
    let found: BTreeMap<String, String> = serde_json::from_slice(&found).unwrap();
    assert_eq!(found.len(), ways, "{found:?}");
    for (way, said) in found {
        assert!(["EPERM", "EACCES"].contains(&said.as_str()), "{way}: {said}");
    }
    assert_eq!(shell(&sandbox, 3, "echo well").await.stdout, "well\n");
    sandbox.destroy().await.unwrap();
}

/// A file of the workspace, once it is there. No command is run for that.
async fn until_there(sandbox: &Sandbox, path: &str) -> Vec<u8> {
    let read = async {
        loop {
            if let Ok((_, mut content)) = sandbox.guest().read_file(path).await {
                let mut all = Vec::new();
                while let Some(piece) = content.next().await {
                    all.extend_from_slice(&piece.unwrap());
                }
                return all;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("it comes")
}

/// While it was made it was kept from some; its tools have all.
pub(crate) async fn tools_run_on_every_processor(fixture: &Fixture) {
    fixture.start().await.destroy().await.unwrap();
    // Most likely a launcher waits by then, which makes the second sandbox in another way than the first.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let sandbox = fixture.start().await;
    // Not how much time of them there is, which a control group of this process may have bounded.
    let all = rustix::thread::sched_getaffinity(None).unwrap().count().to_string();
    let is_pinned = |words: &&String| words.contains("processors (affinity");
    match sandbox.report().enforced.iter().find(is_pinned) {
        Some(words) => eprintln!("no control group shares CPU time out on this host: {words}"),
        None => {
            for n in 1..4 {
                assert_eq!(shell(&sandbox, n, "nproc").await.stdout.trim(), all);
            }
        }
    }
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn every_interpreter_runs(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let python =
        call(&sandbox, 1, json!({ "tool": "python", "fresh": true, "code": "print(6 * 7)" })).await;
    assert_eq!(python.stdout, "42\n", "{python:?}");
    let code = "const n: number = 6 * 7;\nconsole.log(n);";
    let typescript = call(&sandbox, 2, json!({ "tool": "typescript", "code": code })).await;
    assert_eq!(typescript.stdout, "42\n", "{typescript:?}");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn files_are_written_and_read(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let write = json!({ "tool": "write_file", "path": "deep/er/file", "content": "one\ntwo\n" });
    assert_eq!(call(&sandbox, 1, write).await.result.status, StepStatus::Succeeded);
    let seen =
        shell(&sandbox, 2, "cat deep/er/file; stat -c %u:%g deep deep/er/file; ls -l /bin").await;
    assert!(seen.stdout.starts_with("one\ntwo\n1000:1000\n1000:1000\n"), "{seen:?}");
    assert_eq!(seen.stderr, "");
    let edit = json!({ "tool": "edit_file", "path": "deep/er/file", "old": "two", "new": "2" });
    let edited = call(&sandbox, 3, edit).await;
    assert_eq!(edited.result.status, StepStatus::Succeeded, "{edited:?}");
    let read = call(&sandbox, 4, json!({ "tool": "read_file", "path": "deep/er/file" })).await;
    assert!(read.result.text.unwrap().contains("2\n"));
    let list = call(&sandbox, 5, json!({ "tool": "list_files" })).await;
    assert!(list.result.text.unwrap().contains("file"));
    let delete = call(&sandbox, 6, json!({ "tool": "delete_file", "path": "deep/er/file" })).await;
    assert_eq!(delete.result.status, StepStatus::Succeeded, "{delete:?}");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn file_tools_stay_in_the_workspace(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let links = "mkdir in; echo fine > in/file; ln -s in/file good; ln -s /etc/passwd absolute; \
                 ln -s ../etc/passwd climbing; ln -s /etc folder; ln -s in/../../etc sly; \
                 ln -s ../in/file in/around";
    shell(&sandbox, 1, links).await;
    for (n, path) in (2..).zip(["absolute", "climbing", "folder/passwd", "sly/passwd"]) {
        let read = call(&sandbox, n, json!({ "tool": "read_file", "path": path })).await;
        let code = read.result.error.map(|error| error.code);
        assert_eq!(code.as_deref(), Some("outside_workspace"), "{path}");
    }
    for (n, path) in (10..).zip(["good", "in/around"]) {
        let read = call(&sandbox, n, json!({ "tool": "read_file", "path": path })).await;
        assert!(read.result.text.as_ref().is_some_and(|text| text.contains("fine")), "{read:?}");
    }
    let write = json!({ "tool": "write_file", "path": "folder/evil", "content": "x" });
    assert_eq!(call(&sandbox, 20, write).await.result.status, StepStatus::Failed);
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn tools_are_another_user_without_privileges(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let look = "id -u; grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2 | sort -u; \
                kill -9 1 $PPID 2>/dev/null; kill -0 1 2>/dev/null && echo reached; \
                for fd in /proc/1/fd/* /proc/$PPID/fd/*; do \
                  [ -w $fd ] && [ -p $fd ] && [ ! $fd -ef /proc/self/fd/1 ] && \
                  [ ! $fd -ef /proc/self/fd/2 ] && echo \"$fd can be written\"; done; \
                head -c1 /proc/1/mem >/dev/null 2>&1 && echo read; mount -t tmpfs t /mnt && echo mounted; \
                unshare -U true && echo unshared; true";
    let done = shell(&sandbox, 1, look).await;
    assert_eq!(done.stdout, "1000\n0000000000000000\n", "{done:?}");
    let inside = &sandbox.report().inside;
    assert!(inside.no_new_privs);
    assert_eq!(inside.seccomp_mode, 2);
    assert_eq!(inside.bounding_set, "0000000000000000");
    assert_eq!(shell(&sandbox, 2, "echo well").await.stdout, "well\n");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn there_is_no_network_but_loopback(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    assert_eq!(sandbox.report().inside.interfaces, ["lo"]);
    // Addresses for documentation: nobody is there, but only a network could tell.
    let code = "import socket\n\
                s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                c = socket.create_connection(s.getsockname()); print('loopback')\n\
                for family, address in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):\n\
                \x20   try: socket.socket(family).connect((address, 80)); print('out')\n\
                \x20   except OSError as error: print(error.errno in (99, 101, 113))";
    let done = call(&sandbox, 1, json!({ "tool": "python", "fresh": true, "code": code })).await;
    assert_eq!(done.stdout, "loopback\nTrue\nTrue\n", "{done:?}");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn the_report_tells_the_level(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let report = sandbox.report();
    assert_eq!(report.backend, fixture.backend.name());
    assert_eq!(report.isolation, fixture.backend.level());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let is_the_hosts = report.inside.kernel == release.trim();
    assert_eq!(is_the_hosts, report.backend == "namespace", "{}", report.inside.kernel);
    sandbox.destroy().await.unwrap();
}
