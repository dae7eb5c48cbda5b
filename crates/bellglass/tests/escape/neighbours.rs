//! Another job's sandbox: its files, its wire, its processes, and what it left in memory.

use serde_json::json;

use crate::attempt::{assert_refused, found, look, looking, users};
use crate::support::plain_user::PlainUser;
use crate::support::{Options, TestServer, shell, step, wait_for_go};

/// A server that runs two jobs at once. An ordinary user's sandboxes have the same ids.
fn server_of(user: Option<PlainUser>) -> TestServer {
    println!("as {}", user.map_or("this user".to_owned(), |user| format!("{user:?}")));
    TestServer::with(Options { slots: Some(2), user, ..Options::default() })
}

#[tokio::test]
async fn another_jobs_workspace() {
    for user in users() {
        look_for_the_workspace_of_another(server_of(*user)).await;
    }
}

async fn look_for_the_workspace_of_another(server: TestServer) {
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
    for user in users() {
        look_for_the_wire_of_another(server_of(*user)).await;
    }
}

async fn look_for_the_wire_of_another(server: TestServer) {
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
    for user in users() {
        look_for_what_another_left(server_of(*user), *user).await;
    }
}

async fn look_for_what_another_left(server: TestServer, user: Option<PlainUser>) {
    // Where the guest counts memory, there is none of System V's at all.
    let leave = r"
def left(*arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
segment = left('shmget', 0x5eed, 4096, 0o1666)
queue = left('msgget', 0x5eed, 0o1666)
lock = left('semget', 0x5eed, 1, 0o1666)
pathlib.Path('/dev/shm/left').write_text('behind')
listener = socket.socket(socket.AF_UNIX)
listener.bind('\0left')
print(json.dumps([segment, queue, lock, run('ipcs', '-m').count('5eed')]))
";
    let absent = if user.is_some() { "ENOSYS" } else { "ENOENT" };
    let things = match user {
        Some(_) => json!(["ENOSYS", "ENOSYS", "ENOSYS", 0]),
        None => json!([0, 0, 0, 1]),
    };
    // The first leaves its things and goes on; the second comes while it is there, the third after.
    let first = server.submit(&json!({ "steps": [looking(leave), wait_for_go()] })).await;
    server.wait_for_step(&first, "step.output", 2).await;
    let attempts = [
        ("call('shmget', 0x5eed, 4096, 0)", absent),
        ("call('msgget', 0x5eed, 0)", absent),
        ("call('semget', 0x5eed, 1, 0)", absent),
        // These lie in a file system that has no path, so the second fence refuses them all.
        ("call('mq_open', b'left', 0o102, 0o666, None)", "EACCES"),
        ("read('/dev/shm/left')", "ENOENT"),
        ("connect('\\0left')", "ECONNREFUSED"),
    ];
    assert_refused(&server, &attempts).await;
    server.let_go(&first).await;
    let first = server.wait_for_end(&first).await;
    assert_eq!(found(&first, 1), things, "it was left there");
    assert_refused(&server, &attempts).await;
    let empty = "print(json.dumps([os.listdir('/dev/shm'), os.listdir('/workspace'), \
                 [name for name in os.listdir('/tmp') if not name.startswith('bellglass')]]))";
    let found = look(&server, empty).await;
    assert_eq!((&found[0], &found[1]), (&json!([]), &json!([])), "{found}");
}
