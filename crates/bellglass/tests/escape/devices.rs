//! Device files: none can be made, and those that are there lead nowhere.

use serde_json::json;

use crate::attempt::{assert_refused_to_all, look};
use crate::support::TestServer;

#[tokio::test]
async fn device_nodes() {
    let attempts = [
        ("os.mknod('/workspace/disk', 0o60666, os.makedev(8, 0))", "EPERM|EACCES"),
        ("os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0))", "EPERM|EACCES"),
        ("os.mknod('/dev/shm/mem', 0o20666, os.makedev(1, 1))", "EPERM|EACCES"),
        ("os.mknod('/home/agent/kmsg', 0o20666, os.makedev(1, 11))", "EPERM|EACCES"),
        ("os.mknod('/home/agent/fuse', 0o20666, os.makedev(10, 229))", "EPERM|EACCES"),
        ("os.mknod('/dev/disk', 0o60666, os.makedev(8, 0))", "EPERM|EROFS|EACCES"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn device_files_that_are_there() {
    let found = look(
        &TestServer::start(),
        r"
found = set()
for folder, folders, files in os.walk('/'):
    if folder == '/proc': folders.clear(); continue
    for name in files:
        try: mode = os.lstat(f'{folder}/{name}').st_mode
        except OSError: continue
        if stat.S_ISBLK(mode) or stat.S_ISCHR(mode): found.add(f'{folder}/{name}')
print(json.dumps(sorted(found)))
",
    )
    .await;
    let known = ["full", "null", "pts/ptmx", "random", "tty", "urandom", "zero"];
    assert_eq!(found, json!(known.map(|name| format!("/dev/{name}"))));
}
