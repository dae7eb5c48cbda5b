//! Another job's sandbox: its files, its wire, its processes, and what it left in memory.

use serde_json::json;

use crate::attempt::{assert_refused, found, look, looking};
use crate::support::{TestServer, shell, step, wait_for_go};

#[tokio::test]
async fn another_jobs_workspace() {
    let server = TestServer::with_slots(2);
    let victim = server
        .submit(&json!({ "steps": [shell("echo of-the-victim | tee secret.txt /tmp/secret.txt"), wait_for_go()] }))
        .await;
    server.wait_for_step(&victim, "step.output", 2).await;
    let guest = server.guest_pid(&victim);
    let sandbox = server.data().join("sandboxes").join(&victim);
    let attempts = [
        (format!("os.listdir('/proc/{guest}/root/workspace')"), "ENOENT"),
        (format!("os.listdir('{}')", sandbox.display()), "ENOENT"),
        ("read('/workspace/secret.txt')".into(), "ENOENT"),
        ("read('/tmp/secret.txt')".into(), "ENOENT"),
        (format!("os.kill({guest}, 9)"), "ESRCH"),
        (format!("call('process_vm_readv', {guest}, None, 0, None, 0, 0)"), "EPERM"),
    ];
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused(&server, &attempts).await;
    server.let_go(&victim).await;
    let victim = server.wait_for_end(&victim).await;
    assert_eq!(victim["status"], "completed");
    assert_eq!(step(&victim, 1)["stdout"], "of-the-victim\n");
}

#[tokio::test]
async fn another_jobs_wire() {
    let server = TestServer::with_slots(2);
    let victim = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&victim, "step.output", 1).await;
    let folder = server.data().join("sandboxes").join(&victim);
    let wires: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect();
    assert!(wires.iter().any(|path| path.contains("wire")), "{wires:?}");
    let mut attempts: Vec<(String, &str)> =
        wires.iter().map(|path| (format!("connect({path:?})"), "ENOENT")).collect();
    // The wire's other end is a socket of the guest's, which a tool cannot take.
    attempts.push(("os.listdir('/proc/1/fd')".into(), "EACCES|EPERM"));
    attempts.push(("call('pidfd_getfd', os.pidfd_open(1), 3, 0)".into(), "EPERM"));
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused(&server, &attempts).await;
    server.let_go(&victim).await;
    assert_eq!(server.wait_for_end(&victim).await["status"], "completed");
}

#[tokio::test]
async fn memory_that_was_left_behind() {
    let server = TestServer::with_slots(2);
    let leave = r"
segment = call('shmget', 0x5eed, 4096, 0o1666)
queue = call('msgget', 0x5eed, 0o1666)
lock = call('semget', 0x5eed, 1, 0o1666)
pathlib.Path('/dev/shm/left').write_text('behind')
listener = socket.socket(socket.AF_UNIX)
listener.bind('\0left')
print(json.dumps([segment, queue, lock, run('ipcs', '-m').count('5eed')]))
";
    // The first leaves its things and goes on; the second comes while it is there, the third after.
    let first = server.submit(&json!({ "steps": [looking(leave), wait_for_go()] })).await;
    server.wait_for_step(&first, "step.output", 2).await;
    let attempts = [
        ("call('shmget', 0x5eed, 4096, 0)", "ENOENT"),
        ("call('msgget', 0x5eed, 0)", "ENOENT"),
        ("call('semget', 0x5eed, 1, 0)", "ENOENT"),
        // These lie in a file system that has no path, so the second fence refuses them all.
        ("call('mq_open', b'left', 0o102, 0o666, None)", "EACCES"),
        ("read('/dev/shm/left')", "ENOENT"),
        ("connect('\\0left')", "ECONNREFUSED"),
    ];
    assert_refused(&server, &attempts).await;
    server.let_go(&first).await;
    let first = server.wait_for_end(&first).await;
    assert_eq!(found(&first, 1), json!([0, 0, 0, 1]), "it was left there");
    assert_refused(&server, &attempts).await;
    let empty = "print(json.dumps([os.listdir('/dev/shm'), os.listdir('/workspace'), \
                 [name for name in os.listdir('/tmp') if not name.startswith('bellglass')]]))";
    let found = look(&server, empty).await;
    assert_eq!((&found[0], &found[1]), (&json!([]), &json!([])), "{found}");
}
