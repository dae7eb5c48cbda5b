//! Sandboxes made ahead: a job finds one, it is the job's alone, and it is used once.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{self, Options, TestServer, host, shell, step, text, wait_for_go};

/// A server that keeps so many sandboxes ready, with so many there already.
async fn server_with_warm(count: usize) -> TestServer {
    let config = match count {
        1 => "[sandbox.warm]\nmin = 1\n",
        2 => "[sandbox.warm]\nmin = 2\n",
        _ => unreachable!("no test asks for so many"),
    };
    let environment = vec![("BELLGLASS_WARM", count.to_string())];
    let server = TestServer::with(Options { config, environment, ..Options::default() });
    until_waiting(&server, count).await;
    server
}

/// Sandboxes that belong to no job and are ready, by name: those with a record.
fn waiting(server: &TestServer) -> Vec<String> {
    let folder = server.data().join("sandboxes");
    let is_ready = |name: &String| folder.join(name).join("sandbox.json").exists();
    let names = server.sandboxes().into_iter();
    names.filter(|name| name.starts_with("throwaway-")).filter(is_ready).collect()
}

async fn until_waiting(server: &TestServer, count: usize) {
    while waiting(server).len() != count {
        tokio::task::yield_now().await;
    }
}

fn start_of(job: &Value) -> &str {
    text(&job["sandbox"], "start")
}

#[tokio::test]
async fn a_job_finds_a_sandbox_that_is_its_own() {
    let server = server_with_warm(1).await;
    let made = waiting(&server);
    let steps = [
        shell("hostname; cat /etc/hostname; getent hosts $(hostname) | wc -l"),
        shell("id -u; pwd; ls -A; env | grep -i proxy; cat /proc/1/comm"),
        wait_for_go(),
    ];
    let id = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&id, "step.started", 3).await;
    // It is found by the job's name from now on, and not by the one that it was made under.
    assert!(server.sandboxes().contains(&id));
    assert!(!server.sandboxes().contains(&made[0]));
    let guest = server.guest_pid(&id);
    assert!(host::guests_of(&made[0]).contains(&guest));
    server.let_go(&id).await;
    let job = server.wait_for_end(&id).await;
    assert_eq!(start_of(&job), "warm", "{job:#}");
    assert_eq!(step(&job, 1)["stdout"], format!("{id}\n{id}\n1\n"), "{job:#}");
    assert_eq!(step(&job, 2)["stdout"], "1000\n/workspace\nbellglass-guest\n", "{job:#}");
    assert_eq!(job["sandbox"]["inside"]["hostname"], id);
    assert_eq!(host::control_groups_of(&made[0]), Vec::<PathBuf>::new());
    assert_eq!(host::guests_of(&made[0]), Vec::<i32>::new());
}

#[tokio::test]
async fn nothing_of_one_job_reaches_the_next() {
    let server = server_with_warm(1).await;
    let mark = [
        shell("echo mark > /tmp/mark; echo mark > /workspace/mark; echo mark > /dev/shm/mark"),
        shell("echo mark > ~/mark; setsid nohup sleep 4321 >/dev/null 2>&1 & echo left"),
        json!({ "tool": "shell", "command": "echo $MARK", "env": { "MARK": "mark" } }),
    ];
    let look =
        "ls -A /tmp /workspace /dev/shm ~ | grep -c mark; pgrep -cx sleep; echo ${MARK:-none}";
    let mut sandboxes = HashSet::new();
    for _ in 0..3 {
        until_waiting(&server, 1).await;
        assert!(sandboxes.insert(waiting(&server)), "one was used twice");
        let steps: Vec<Value> = [shell(look)].into_iter().chain(mark.clone()).collect();
        let job = server.run(&json!({ "steps": steps })).await;
        assert_eq!(start_of(&job), "warm");
        assert_eq!(step(&job, 1)["stdout"], "0\n0\nnone\n", "{job:#}");
        assert_eq!(step(&job, 4)["stdout"], "mark\n");
    }
}

#[tokio::test]
async fn the_limits_of_the_job_hold_in_a_warm_sandbox() {
    let server = server_with_warm(2).await;
    // Both less and more than what it was made with.
    for (limits, disk, memory, cpu) in [
        (
            json!({ "memory": "256MiB", "disk": "40MiB", "processes": 30, "cpus": 0.5, "open_files": 99 }),
            40 << 20,
            256 << 20,
            ["50000", "50000 100000"],
        ),
        (
            json!({ "memory": "8GiB", "disk": "3GiB", "processes": 30, "cpus": 1, "open_files": 99 }),
            3u64 << 30,
            8u64 << 30,
            ["100000", "100000 100000"],
        ),
    ] {
        let steps = [
            shell("stat -fc %b*%S /workspace / | bc"),
            shell("ulimit -n; ulimit -u"),
            shell("head -c 60M /dev/zero > /tmp/big && echo fits"),
            wait_for_go(),
        ];
        let id = server.submit(&json!({ "steps": steps, "limits": limits })).await;
        server.wait_for_step(&id, "step.started", 4).await;
        let groups = server.recorded_groups(&id);
        let value = |file: &str| {
            let found = groups.iter().find_map(|group| fs::read_to_string(group.join(file)).ok());
            found.map(|text| text.trim().to_owned())
        };
        // Where the host gives no such control group, the report says so.
        let report = server.job(&id).await["sandbox"].clone();
        let said = report["missing"].to_string();
        let bound = value("memory.limit_in_bytes").or(value("memory.max"));
        assert!(bound.clone().is_none_or(|bound| bound == memory.to_string()), "{bound:?}");
        assert!(bound.is_some() || said.contains("memory"), "{said}");
        let share = value("cpu.cfs_quota_us").or(value("cpu.max"));
        assert!(share.clone().is_none_or(|share| cpu.contains(&share.as_str())), "{share:?}");
        assert!(share.is_some() || said.contains("CPU time"), "{said}");
        server.let_go(&id).await;
        let job = server.wait_for_end(&id).await;
        assert_eq!(start_of(&job), "warm", "{job:#}");
        assert_eq!(step(&job, 1)["stdout"], format!("{disk}\n{disk}\n"), "{job:#}");
        assert_eq!(step(&job, 2)["stdout"], "99\n30\n");
        let fits = if disk > 60 << 20 { "fits\n" } else { "" };
        assert_eq!(step(&job, 3)["stdout"], fits);
        let enforced = job["sandbox"]["enforced"].to_string();
        assert!(enforced.contains("can be written inside"), "{enforced}");
    }
}

#[tokio::test]
async fn a_warm_sandbox_has_a_way_out_if_its_job_has_one() {
    let server = server_with_warm(1).await;
    let look = [shell("echo ${https_proxy:-none}; cat /proc/net/tcp | grep -c :0C38")];
    for (network, expected) in [("none", "none\n0\n"), ("open", "http://127.0.0.1:3128\n1\n")] {
        until_waiting(&server, 1).await;
        let job = server.run(&json!({ "steps": look, "network": network })).await;
        assert_eq!(start_of(&job), "warm");
        assert_eq!(step(&job, 1)["stdout"], expected, "{job:#}");
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_fit_or_is_not_there_is_made() {
    // None are kept, so each is made for its job.
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": [shell("echo made")] })).await;
    assert_eq!((start_of(&job), &step(&job, 1)["stdout"]), ("cold", &json!("made\n")));
    assert_eq!(server.sandboxes(), Vec::<String>::new());

    let server = server_with_warm(1).await;
    // One that died while it waited is of no use, and nobody notices but the log.
    let pid = server.guest_pid(&waiting(&server)[0]);
    host::kill_and_wait(pid);
    let job = server.run(&json!({ "steps": [shell("echo made")] })).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    // It was made for the job, or the pool had noticed first and made another: either way the job never
    // had the dead one, and its step ran.
    assert_eq!(step(&job, 1)["stdout"], "made\n");
    let log = server.get(&format!("/jobs/{}/events?format=jsonl", text(&job, "job_id"))).await;
    assert!(!log.text().await.unwrap().contains("sandbox.lost"));
}

/// A small image beside the usual one: bash, what it needs, and the folders that sandboxes need.
fn images_with_another(folder: &Path, usual: &Path) {
    std::os::unix::fs::symlink(usual.join("base"), folder.join("base")).unwrap();
    let (from, to) = (usual.join("base/rootfs"), folder.join("other/rootfs"));
    for needed in ["usr/bin", "etc", "dev", "proc", "tmp", "workspace", "home/agent"] {
        fs::create_dir_all(to.join(needed)).unwrap();
    }
    for (link, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        std::os::unix::fs::symlink(target, to.join(link)).unwrap();
    }
    let copy = "cd \"$0\" && cp -aL --parents usr/bin/bash usr/lib64/ld-* \
                $(find usr/lib -name 'libc.so.6' -o -name 'libtinfo.so.6' -o -name 'ld-linux*') \"$1\"";
    let copied = Command::new("sh").arg("-c").arg(copy).args([&from, &to]).status().unwrap();
    assert!(copied.success());
}

#[tokio::test]
async fn a_job_of_another_image_gets_its_own() {
    let images = tempfile::Builder::new().prefix("bellglass-images-").tempdir().unwrap();
    // The ids that sandboxes have must be able to reach it.
    fs::set_permissions(images.path(), fs::Permissions::from_mode(0o755)).unwrap();
    images_with_another(images.path(), &support::images());
    let images = images.path().to_str().unwrap().to_owned();
    let environment = vec![("BELLGLASS_WARM", "1".into()), ("BELLGLASS_IMAGES", images)];
    let server = TestServer::with(Options { environment, ..Options::default() });
    until_waiting(&server, 1).await;
    let made = waiting(&server);
    let look = json!([shell("[ -e /usr/bin/python3 ] && echo base || echo other")]);
    let job = server.run(&json!({ "steps": look, "image": "other" })).await;
    assert_eq!((start_of(&job), &step(&job, 1)["stdout"]), ("cold", &json!("other\n")), "{job:#}");
    assert_eq!(waiting(&server), made, "nobody took it");
    let job = server.run(&json!({ "steps": look })).await;
    assert_eq!((start_of(&job), &step(&job, 1)["stdout"]), ("warm", &json!("base\n")), "{job:#}");
}

#[tokio::test]
async fn a_stopped_server_leaves_no_sandbox_waiting() {
    let mut server = server_with_warm(2).await;
    let made = waiting(&server);
    assert!(server.stop().success());
    assert_eq!(server.sandboxes(), Vec::<String>::new());
    for name in made {
        assert_eq!(host::control_groups_of(&name), Vec::<PathBuf>::new());
        assert_eq!(host::guests_of(&name), Vec::<i32>::new());
    }
}

#[tokio::test]
async fn what_a_killed_server_kept_ready_is_gone_after_the_next_start() {
    let mut server = server_with_warm(2).await;
    // One of them is a job's by now, and goes on.
    let id = server.submit(&json!({ "steps": [shell("echo one"), wait_for_go()] })).await;
    server.wait_for_step(&id, "step.started", 2).await;
    until_waiting(&server, 2).await;
    let made = waiting(&server);
    let guest = server.guest_pid(&id);
    server.kill();
    server.start_again();
    until_waiting(&server, 2).await;
    while made.iter().any(|name| server.sandboxes().contains(name)) {
        tokio::task::yield_now().await;
    }
    for name in &made {
        assert_eq!(host::control_groups_of(name), Vec::<PathBuf>::new());
        assert_eq!(host::guests_of(name), Vec::<i32>::new());
    }
    assert_eq!(server.guest_pid(&id), guest, "the job's own sandbox is untouched");
    while server.put_file(&id, "go", "").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!((start_of(&job), &step(&job, 1)["stdout"]), ("warm", &json!("one\n")));
    let log = server.log(&id).await;
    assert!(!log.contains("sandbox.lost"), "{log}");
    assert!(!server.sandboxes().contains(&id));
}

/// One that waits can be killed as everything else can.
#[tokio::test]
async fn one_that_dies_waiting_is_cleared_away_and_replaced() {
    let server = server_with_warm(1).await;
    let made = waiting(&server);
    host::guests_of(&made[0]).into_iter().for_each(host::kill_and_wait);
    let job = server.run(&json!({ "steps": [shell("echo works")] })).await;
    assert_eq!(step(&job, 1)["stdout"], "works\n", "{job:#}");
    until_waiting(&server, 1).await;
    assert_ne!(waiting(&server), made);
    // No corpse: all that is there is the one that waits now.
    let children = host::children_of(server.pid());
    let waits = host::guests_of(&waiting(&server)[0]);
    let others: Vec<_> = children.iter().filter(|child| !waits.contains(child)).collect();
    assert_eq!((children.len(), others), (1, vec![]));
}
