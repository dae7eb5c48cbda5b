//! The guest, which is the sandbox's first process: its program, its memory, its life.

use std::fs;
use std::process::Command;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::attempt::{assert_refused, assert_refused_to_all, looking};
use crate::support::{TestServer, shell, step, wait_for_go};

/// The process that the tool's own belongs to: a fork of the guest.
const SUPERVISOR: &str = "supervisor = int(re.search(r'PPid:\\s(\\d+)', \
                          pathlib.Path(f'/proc/{os.getppid()}/status').read_text())[1])\n";

fn with_supervisor(code: &str) -> String {
    format!("{SUPERVISOR}{code}")
}

#[tokio::test]
async fn overwriting_the_guests_program() {
    let server = TestServer::start();
    let sum = |path: &str| Sha256::digest(fs::read(path).unwrap());
    let server_program = format!("/proc/{}/exe", server.pid());
    let before = sum(&server_program);

    let overwrite = r"
tries, opened = 0, []
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: own = os.readlink(f'/proc/{pid}/exe').startswith('/usr/')
    except OSError: own = False
    if own: continue
    for path in [f'/proc/{pid}/exe', f'/proc/{pid}/task/{pid}/exe']:
        for flags in [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, 0o10000000]:
            tries += 1
            try: opened.append([path, flags, os.open(path, flags)])
            except OSError as error: assert error.errno in (errno.EACCES, errno.EPERM), error
    try: opened.append(os.execv(f'/proc/{pid}/exe', ['x']))
    except OSError as error: assert error.errno == errno.EACCES, error
print(json.dumps([tries, opened]))
";
    // A program whose interpreter is whoever starts it: the way in of CVE-2019-5736.
    let script = "printf '#!/proc/self/exe\\n' > bash; cp bash python3; chmod +x bash python3; \
                  PATH=/workspace:$PATH; ./bash; ./python3; true";
    let steps = [shell(script), looking(overwrite), wait_for_go()];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 3).await;
    let guest = server.guest_pid(&job);
    let program = fs::read_link(format!("/proc/{guest}/exe")).unwrap();
    assert!(program.to_string_lossy().starts_with("/memfd:"), "{program:?}");
    let of_guest = sum(&format!("/proc/{guest}/exe"));
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    let found = crate::attempt::found(&job, 2);
    assert!(found[0].as_u64().unwrap() >= 16, "{found}");
    assert_eq!(found[1], json!([]));

    // The next sandbox's guest is the same program, and so is the server.
    let next = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&next, "step.output", 1).await;
    assert_eq!(sum(&format!("/proc/{}/exe", server.guest_pid(&next))), of_guest);
    assert_eq!(sum(&server_program), before);
}

#[tokio::test]
async fn tracing() {
    let attach = with_supervisor("call('ptrace', 16, supervisor, None, None)");
    let attempts = [
        ("call('ptrace', 16, 1, None, None)", "EPERM"),
        ("call('ptrace', 0x4206, 1, None, None)", "EPERM"),
        (attach.as_str(), "EPERM"),
        ("call('ptrace', 16, os.getppid(), None, None)", "EPERM"),
        ("call('ptrace', 0, 0, None, None)", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn memory_of_others() {
    let supervisor = with_supervisor("os.open(f'/proc/{supervisor}/mem', os.O_RDWR)");
    let vector = "buffer = ctypes.create_string_buffer(8)\n\
                  here = struct.pack('<QQ', ctypes.addressof(buffer), 8)\n";
    let write = format!("{vector}call('process_vm_writev', 1, here, 1, here, 1, 0)");
    let read = format!("{vector}call('process_vm_readv', 1, here, 1, here, 1, 0)");
    let attempts = [
        (write.as_str(), "EPERM"),
        (read.as_str(), "EPERM"),
        ("os.open('/proc/1/mem', os.O_RDWR)", "EACCES|EPERM"),
        ("os.open('/proc/1/mem', os.O_RDONLY)", "EACCES|EPERM"),
        (supervisor.as_str(), "EACCES|EPERM"),
        ("read('/proc/1/maps')", "EACCES|EPERM"),
        ("read('/proc/1/auxv')", "EACCES|EPERM"),
        ("read('/proc/1/stack')", "EACCES|EPERM"),
        ("read('/proc/1/syscall')", "EACCES|EPERM"),
        ("write('/proc/1/clear_refs', b'1')", "EACCES|EPERM"),
        ("call('pidfd_getfd', os.pidfd_open(1), 0, 0)", "EPERM"),
        ("call('kcmp', 1, os.getpid(), 0, 0, 0)", "EPERM"),
        ("call('migrate_pages', 1, 8, bytes(8), bytes(8))", "EPERM"),
        (
            "call('process_madvise', os.pidfd_open(1), struct.pack('<QQ', 4096, 4096), 1, 21, 0)",
            "EPERM|EACCES",
        ),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn signals() {
    let server = TestServer::start();
    // A process of the host's, by the number that the host knows it by.
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let outside = [
        format!("os.kill({}, 9)", bystander.id()),
        format!("os.kill({}, 9)", server.pid()),
        format!("os.pidfd_open({})", bystander.id()),
        format!("call('tgkill', {0}, {0}, 9)", server.pid()),
    ];
    let supervisor = with_supervisor("os.kill(supervisor, 9)");
    let mut attempts = vec![
        ("os.kill(1, 9)", "EPERM"),
        ("os.kill(1, 0)", "EPERM"),
        (supervisor.as_str(), "EPERM"),
        ("signal.pidfd_send_signal(os.pidfd_open(1), 9)", "EPERM"),
        ("call('tgkill', 1, 1, 9)", "EPERM"),
        ("call('rt_sigqueueinfo', 1, 10, struct.pack('<iii', 10, 0, -1) + bytes(116))", "EPERM"),
        ("call('prlimit64', 1, 7, struct.pack('<QQ', 0, 0), None)", "EPERM"),
        ("os.setpriority(os.PRIO_PROCESS, 1, 19)", "EPERM|EACCES"),
        ("os.sched_setaffinity(1, [0])", "EPERM"),
    ];
    // Numbers that a sandbox has no process of.
    attempts.extend(outside.iter().map(|code| (code.as_str(), "ESRCH")));
    assert_refused(&server, &attempts).await;
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // Everybody whom a tool may end, and still the guest goes on with the next step.
    let steps = [shell("kill -9 -1; echo here"), shell("echo alive")];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(step(&job, 2)["stdout"], "alive\n", "{job:#}");
}
