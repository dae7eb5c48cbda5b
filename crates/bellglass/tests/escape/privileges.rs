//! Becoming somebody else: set-user-id programs, file capabilities, ids.

use serde_json::json;

use crate::attempt::{assert_refused, assert_refused_to_all, look};
use crate::support::TestServer;

#[tokio::test]
async fn setuid_programs() {
    let server = TestServer::start();
    // Every such program of the image is started, and one of our own making.
    let found = look(
        &server,
        r#"
marked = []
for folder, folders, files in os.walk('/'):
    if folder in ('/proc', '/workspace'): folders.clear(); continue
    for name in files:
        try: status = os.lstat(f'{folder}/{name}')
        except OSError: continue
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000:
            marked.append(f'{folder}/{name}')
own = compiled('#include <stdio.h>\nint main(){printf("%d %d", geteuid(), getegid());}')
os.chmod(own, 0o6755)
kept = oct(os.stat(own).st_mode & 0o7777)
print(json.dumps([marked, kept, run(own), run('grep', 'NoNewPrivs', '/proc/self/status')]))
"#,
    )
    .await;
    assert_eq!(found[0], json!([]), "the image has set-user-id programs");
    assert_eq!(found[1], "0o6755");
    assert_eq!(found[2], "1000 1000");
    assert_eq!(found[3], "NoNewPrivs:\t1\n");
    let attempts = [
        ("os.setuid(0)", "EPERM"),
        ("os.setgid(0)", "EPERM"),
        ("os.setresuid(0, 0, 0)", "EPERM"),
        ("os.setgroups([0])", "EPERM"),
        ("os.setreuid(65534, 65534)", "EPERM"),
        (
            "call('setfsuid', 0)\nif call('setfsuid', -1) == 0: raise SystemError\nos.listdir('/root')",
            "EACCES",
        ),
        ("run('su', '-c', 'id')", "EREMOTEIO"),
        ("write('/etc/shadow', b'')", "EACCES|EROFS|ENOENT"),
        ("read('/etc/shadow')", "EACCES|ENOENT"),
    ];
    assert_refused(&server, &attempts).await;
}

#[tokio::test]
async fn file_capabilities() {
    let second = "os.setxattr(compiled('int main(){}'), 'security.capability', \
                  struct.pack('<IIIII', 0x2000001, 0xffffffff, 0, 0xffffffff, 0))";
    let third = "os.setxattr(compiled('int main(){}'), 'security.capability', \
                 struct.pack('<IIIIII', 0x3000001, 0xffffffff, 0, 0xffffffff, 0, 1000))";
    let attempts = [
        (second, "EPERM"),
        (third, "EPERM"),
        (
            "call('capset', struct.pack('<Ii', 0x20080522, 0), struct.pack('<6I', 1 << 21, 1 << 21, 0, 0, 0, 0))",
            "EPERM",
        ),
        (
            "call('capset', struct.pack('<Ii', 0x20080522, 0), struct.pack('<6I', 0, 0, 1, 0, 0, 0))",
            "EPERM",
        ),
        ("call('prctl', 47, 2, 21, 0, 0)", "EPERM"),
        ("call('prctl', 28, 1, 0, 0, 0)", "EPERM"),
        ("os.setxattr('/workspace', 'trusted.x', b'x')", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn more_than_its_share() {
    let attempts = [
        ("call('prlimit64', 0, 7, struct.pack('<QQ', 1 << 20, 1 << 20), None)", "EPERM"),
        ("os.nice(-10)", "EPERM"),
        ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", "EPERM"),
        ("call('ioprio_set', 1, 0, 1 << 13)", "EPERM"),
        ("write('/proc/self/oom_score_adj', b'-1000')", "EACCES|EPERM"),
        ("write('/proc/1/oom_score_adj', b'1000')", "EACCES|EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}
