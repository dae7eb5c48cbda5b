//! What a tool can learn about the host, the server and its neighbours: nothing.

use std::fs;

use serde_json::{Value, json};

use crate::isolation::look;
use crate::support::{Options, TestServer, host, shell, step, text, wait_for_go};

#[tokio::test]
async fn the_host_is_out_of_sight() {
    let server = TestServer::start();
    let secret = server.folder().join("host-secret");
    fs::write(&secret, "of the host").unwrap();
    let places = [
        secret.display().to_string(),
        server.data().display().to_string(),
        "/root/.local".into(),
        "/root/.ssh".into(),
        "/var/run/docker.sock".into(),
        "/run/docker.sock".into(),
        "/run/containerd".into(),
        "/sys/kernel".into(),
        "/sys/fs/cgroup".into(),
        "/dev/mem".into(),
        "/dev/kmsg".into(),
        "/dev/kvm".into(),
        "/dev/fuse".into(),
        "/dev/loop-control".into(),
        "/.dockerenv".into(),
        "/lower".into(),
        "/oldroot".into(),
    ];
    let said = look(&server, &format!("ls -d {} 2>/dev/null; true", places.join(" "))).await;
    assert_eq!(said, "");
    let said = look(&server, "ls -d /dev/sd* /dev/vd* /dev/nvme* /dev/dm* 2>/dev/null; true").await;
    assert_eq!(said, "");

    let own_pid = std::process::id();
    let said =
        look(&server, "ls /proc | grep -E '^[0-9]+$'; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            .await;
    assert!(!said.contains("end_to_end") && !said.contains("serve"), "{said}");
    assert!(!said.lines().any(|line| line == own_pid.to_string()) || own_pid < 100, "{said}");
    let processes = said.lines().filter(|line| line.parse::<u32>().is_ok()).count();
    assert!(processes < 12, "{said}");
    // Mounts name no path of the host, and control groups none of its groups.
    let said = look(&server, "cat /proc/self/mountinfo /proc/self/cgroup").await;
    for word in ["bellglass-test", "images/", "docker", "/root"] {
        assert!(!said.contains(word), "{word} is in {said}");
    }
}

#[tokio::test]
async fn nothing_of_the_servers_environment_gets_in() {
    let canary = "canary-7c1f0f9a";
    let server = TestServer::with(Options {
        environment: vec![
            ("SECRET_CANARY", canary.into()),
            ("AWS_SECRET_ACCESS_KEY", canary.into()),
        ],
        ..Options::default()
    });
    let command = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; \
                   grep -rs 'canary-7c1f' /etc /tmp /home /run /var /workspace /dev/shm; true";
    let job = server.run(&json!({ "steps": [shell(command)] })).await;
    let said = text(step(&job, 1), "stdout");
    let found = said.replace("grep -rs 'canary-7c1f'", "");
    assert!(!found.contains("canary-7c1f") && !found.contains("SECRET_CANARY"), "{said}");
    assert!(said.contains("HOME=/home/agent"));
}

#[tokio::test]
async fn two_jobs_know_nothing_of_each_other() {
    let server = TestServer::with_slots(2);
    let mut jobs: Vec<(String, Value)> = Vec::new();
    for name in ["one", "two"] {
        let leave = format!(
            "echo {name} > {name}.txt; echo {name} > /tmp/{name}; echo {name} > /dev/shm/{name}"
        );
        let sleep = format!("exec -a sleeper-{name} sleep 1000 & echo up");
        let look = "ls /workspace /tmp /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; hostname";
        let steps = [shell(&leave), shell(&sleep), wait_for_go(), shell(look)];
        let id = server.submit(&json!({ "steps": steps })).await;
        jobs.push((id, Value::Null));
    }
    for (id, _) in &jobs {
        server.wait_for_step(id, "step.output", 3).await;
    }
    let spaces: Vec<_> = jobs
        .iter()
        .map(|(id, _)| host::pid_namespace(server.guest_pid(id)).unwrap().name)
        .collect();
    assert_ne!(spaces[0], spaces[1]);
    for (id, job) in &mut jobs {
        server.let_go(id).await;
        *job = server.wait_for_end(id).await;
    }
    for (at, (own, other)) in [("one", "two"), ("two", "one")].into_iter().enumerate() {
        let said = text(step(&jobs[at].1, 4), "stdout");
        assert!(said.contains(&format!("{own}.txt")) && said.contains(&format!("sleeper-{own}")));
        assert!(!said.contains(other), "{said}");
        assert!(said.contains(&jobs[at].0), "the host name is the job's own");
    }
    let map = |at: usize| text(&jobs[at].1["sandbox"]["inside"], "uid_map").to_owned();
    if rustix::process::geteuid().is_root() {
        assert_ne!(map(0), map(1), "as root each sandbox has ids of its own");
        for at in [0, 1] {
            let base: u32 = map(at).split(' ').nth(1).unwrap().parse().unwrap();
            assert!(base >= 65_536, "root inside is nobody outside: {}", map(at));
        }
    }
}
