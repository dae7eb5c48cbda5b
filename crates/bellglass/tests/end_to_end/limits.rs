//! Limits that hold: each is really tried to be broken, and the job goes on.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Options, TestServer, host, python, shell, step, text, wait_for_go};

#[tokio::test]
async fn memory_is_bounded_and_the_job_goes_on() {
    let server = TestServer::start();
    let steps = [
        python("held = []\nwhile True:\n    held.append(bytearray(8 << 20))"),
        shell("echo still here"),
        shell("head -c 400M /dev/zero > /dev/shm/file || true; rm -f /dev/shm/file; echo and here"),
    ];
    let job = server.run(&json!({ "steps": steps, "limits": { "memory": "128MiB" } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let killed = step(&job, 1);
    assert_eq!((text(killed, "status"), &killed["signal"]), ("failed", &json!(9)), "{killed:#}");
    assert_eq!(killed["error"]["code"], "out_of_memory");
    assert!(text(killed, "output").contains("128 MiB"), "{killed:#}");
    assert_eq!(step(&job, 2)["stdout"], "still here\n");
    assert_eq!(job["steps"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_the_next_step_works() {
    let server = TestServer::start();
    let steps = [
        json!({ "tool": "shell", "command": "bomb() { bomb | bomb & }; bomb; sleep 1000", "timeout": 2 }),
        json!({ "tool": "python", "fresh": true, "timeout": 2, "code":
            "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(1000)\n    except OSError: pass" }),
        shell("echo works; pgrep -cx sleep; true"),
    ];
    let limits = json!({ "processes": 40 });
    let id = server.submit(&json!({ "steps": steps, "limits": limits })).await;
    server.wait_for_step(&id, "step.started", 1).await;
    let namespace = host::pid_namespace(server.guest_pid(&id)).unwrap();
    let most = (0..50).map(|_| host::processes_in(&namespace).len()).max().unwrap();
    // Beside the tools there are the guest and its supervisor.
    assert!(most <= 40 + 2, "{most} processes at once");
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(text(step(&job, 2), "status"), "timed_out");
    assert_eq!(step(&job, 3)["stdout"], "works\n0\n", "{:#}", step(&job, 3));
}

#[tokio::test]
async fn a_full_disk_is_full_inside_only() {
    let server = TestServer::start();
    let free = || {
        let state = rustix::fs::statvfs(server.folder()).unwrap();
        state.f_bavail * state.f_frsize
    };
    let before = free();
    let steps = [
        shell("head -c 200M /dev/zero > big"),
        shell("head -c 200M /dev/zero > /tmp/big"),
        shell("head -c 200M /dev/zero > /home/agent/big"),
        shell("df -B1 --output=size /workspace | tail -1; df --output=avail /workspace | tail -1"),
        wait_for_go(),
        shell("rm -f big /tmp/big /home/agent/big; echo room > small; cat small"),
        python(
            "n = 0\ntry:\n    while True:\n        open(f'empty{n}', 'w').close()\n        n += 1\nexcept OSError as error:\n    print(n < 100000, error.strerror)",
        ),
        shell("rm -f empty*; echo ok"),
    ];
    // Checkpoints lie on the host's disk, up to a limit of their own.
    let limits = json!({ "disk": "50MiB", "memory": "1GiB", "checkpoints": 0 });
    let id = server.submit(&json!({ "steps": steps, "limits": limits })).await;
    server.wait_for_step(&id, "step.started", 5).await;
    let used = before.saturating_sub(free());
    server.let_go(&id).await;
    let job = server.wait_for_end(&id).await;
    assert!(text(step(&job, 1), "stderr").contains("No space left on device"), "{job:#}");
    for n in 1..=3 {
        assert_eq!(text(step(&job, n), "status"), "failed", "{:#}", step(&job, n));
    }
    assert!(used < 40 << 20, "the host's disk lost {used} bytes");
    assert_eq!(step(&job, 6)["stdout"], "room\n", "{:#}", step(&job, 6));
    assert_eq!(step(&job, 7)["stdout"], "True No space left on device\n", "{:#}", step(&job, 7));
    assert_eq!(step(&job, 8)["stdout"], "ok\n");
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
}

#[tokio::test]
async fn open_files_are_bounded() {
    let server = TestServer::start();
    let code = "files = []\ntry:\n    while True:\n        files.append(open('/dev/null'))\n\
                except OSError as error:\n    print(len(files) < 64, error.strerror)";
    let steps = [python(code), shell("ulimit -n 100000 2>/dev/null && echo raised; ulimit -n")];
    let job = server.run(&json!({ "steps": steps, "limits": { "open_files": 64 } })).await;
    assert_eq!(step(&job, 1)["stdout"], "True Too many open files\n", "{job:#}");
    assert_eq!(step(&job, 2)["stdout"], "64\n");
}

#[tokio::test]
async fn limits_stand_in_the_control_groups() {
    let server = TestServer::start();
    let limits = json!({ "cpus": 0.5, "memory": "96MiB", "processes": 33 });
    let job = server.submit(&json!({ "steps": [wait_for_go()], "limits": limits })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    let report = server.job(&job).await["sandbox"].clone();
    let missing: Vec<&str> =
        report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let value = |file| host::control_group_value(&job, file);
    let limited = |file, words: &str| {
        // Where the host gives no such control group, the report says so.
        value(file).or_else(|| missing.iter().any(|line| line.contains(words)).then(String::new))
    };
    let version_2 = value("memory.max").is_some();
    if version_2 {
        assert_eq!(value("cpu.max").unwrap(), "50000 100000");
        assert_eq!(value("memory.max").unwrap(), (96 << 20).to_string());
    } else {
        let (quota, period) =
            (limited("cpu.cfs_quota_us", "CPU time"), limited("cpu.cfs_period_us", "CPU time"));
        assert!(
            matches!(
                (quota.as_deref(), period.as_deref()),
                (Some("50000"), Some("100000")) | (Some(""), Some(""))
            ),
            "{missing:?}"
        );
        let memory = limited("memory.limit_in_bytes", "memory").unwrap();
        assert!(memory.is_empty() || memory == (96 << 20).to_string(), "{memory}");
    }
    // The group also holds the guest, which must have room when tools have none.
    let processes = limited("pids.max", "processes").unwrap();
    assert!(processes.is_empty() || processes.parse::<u32>().unwrap() < 200, "{processes}");
    if !host::control_groups_of(&job).is_empty() {
        let members = value("cgroup.procs").unwrap();
        assert!(members.lines().any(|pid| pid == server.guest_pid(&job).to_string()));
    }
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
}

#[tokio::test]
async fn endless_output_is_bounded() {
    let server = TestServer::start();
    let steps = [json!({ "tool": "shell", "command": "yes", "timeout": 2 }), shell("echo on")];
    let limits = json!({ "output": "1MiB" });
    let job = server.run(&json!({ "steps": steps, "limits": limits })).await;
    let endless = step(&job, 1);
    assert_eq!(text(endless, "status"), "timed_out");
    assert!(endless["output_bytes"].as_u64().unwrap() > 1 << 20);
    let id = text(&job, "job_id");
    let kept = server.get(&format!("/jobs/{id}/steps/1/output")).await.bytes().await.unwrap();
    let (kept, note) = kept.split_at(1 << 20);
    assert!(kept.iter().all(|byte| b"y\n".contains(byte)));
    let unkept = endless["output_bytes"].as_u64().unwrap() - (1 << 20);
    assert_eq!(endless["unkept_bytes"], unkept);
    let note = String::from_utf8_lossy(note);
    assert!(note.contains(&format!("{unkept} bytes more were not kept")), "{note}");
    assert_eq!(step(&job, 2)["stdout"], "on\n");
    let log = server.log(id).await;
    assert!(log.len() < 1 << 20, "the log has {} bytes", log.len());
    let spools = fs::read_dir(server.data().join("spools")).map_or(0, Iterator::count);
    assert_eq!(spools, 0);
}

#[tokio::test]
async fn a_workspace_that_is_too_large_for_the_zip_is_cut_and_said_so() {
    let server = TestServer::start();
    // Holes take no room on disk but would in the ZIP.
    let steps = [shell("echo first > a; truncate -s 10G b; echo last > c")];
    let job = server.run(&json!({ "steps": steps, "limits": { "disk": "20MiB" } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let skipped = job["result"]["skipped"].as_array().unwrap();
    assert!(skipped.iter().any(|line| line.as_str().unwrap().starts_with('b')), "{skipped:?}");
    let zip = server.download(text(&job, "job_id")).await;
    assert!(zip.len() < 20 << 20);
}

/// More than memory can hold is reserved on the host's disk, and gone with the job.
#[tokio::test]
async fn a_large_disk_is_a_disk_of_its_own() {
    let server = TestServer::start();
    let steps = [
        shell("head -c 250M /dev/zero > /workspace/big && stat -c %s big; stat -f -c %T . /tmp"),
        shell("head -c 100M /dev/zero > /tmp/more"),
        wait_for_go(),
        shell("rm -f big /tmp/more; echo room > small; cat small; echo root > ~/x; cat ~/x"),
        shell("head -c 400M /dev/zero > ~/big; df -B1M --output=size / | tail -1 | tr -d ' '"),
        shell("rm ~/big; ls -ld /workspace | cut -d' ' -f3"),
    ];
    let limits = json!({ "disk": "300MiB", "memory": "128MiB" });
    let id = server.submit(&json!({ "steps": steps, "limits": limits })).await;
    server.wait_for_step(&id, "step.output", 3).await;
    assert_eq!(host::disks_in(&server.data()).len(), 1);
    server.let_go(&id).await;
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(step(&job, 1)["stdout"], "262144000\next2/ext3\next2/ext3\n", "{:#}", step(&job, 1));
    assert!(
        text(step(&job, 2), "stderr").contains("No space left on device"),
        "{:#}",
        step(&job, 2)
    );
    assert_eq!(step(&job, 4)["stdout"], "room\nroot\n", "{:#}", step(&job, 4));
    assert!(
        text(step(&job, 5), "stderr").contains("No space left on device"),
        "{:#}",
        step(&job, 5)
    );
    let size: u64 = text(step(&job, 5), "stdout").trim().parse().unwrap();
    assert!((295..=320).contains(&size), "{size} MiB");
    assert_eq!(step(&job, 6)["stdout"], "agent\n");
    let enforced = job["sandbox"]["enforced"].to_string();
    assert!(enforced.contains("300 MiB can be written inside, on a disk of its own"), "{enforced}");
    assert_eq!(job["sandbox"]["missing"], json!([]));
    assert_eq!(host::disks_in(&server.data()), Vec::<String>::new());
}

#[tokio::test]
async fn a_disk_that_the_host_has_not_is_refused() {
    let config = "[max_limits]\ndisk = \"1000000GiB\"\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    let limits = json!({ "disk": "900000GiB" });
    let job = server.run(&json!({ "steps": [shell("true")], "limits": limits })).await;
    assert_eq!((text(&job, "status"), text(&job["error"], "code")), ("failed", "sandbox_failed"));
    assert!(
        text(&job["error"], "message").contains("ask for a smaller disk"),
        "{:#}",
        job["error"]
    );
    assert_eq!(server.run(&json!({ "steps": [shell("true")] })).await["status"], "completed");
}

#[tokio::test]
async fn a_share_of_a_processor_is_all_that_many_busy_processes_get() {
    let server = TestServer::start();
    // They burn what they get for two seconds; what they got is asked of the kernel.
    let code = "import os, resource, time\nend = time.monotonic() + 2\n\
                for _ in range(4):\n    if os.fork() == 0:\n        \
                while time.monotonic() < end: pass\n        os._exit(0)\n\
                for _ in range(4): os.wait()\n\
                used = resource.getrusage(resource.RUSAGE_CHILDREN)\n\
                print(used.ru_utime + used.ru_stime)";
    let job = server.run(&json!({ "steps": [python(code)], "limits": { "cpus": 0.2 } })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let used: f64 = text(step(&job, 1), "stdout").trim().parse().unwrap();
    let duration = step(&job, 1)["duration_ms"].as_f64().unwrap() / 1000.0;
    let enforced = job["sandbox"]["enforced"].to_string();
    if enforced.contains("at most 0.2 CPUs (cgroup") {
        assert!(used < 0.3 * duration, "{used} s of CPU time in {duration} s");
    } else {
        assert!(job["sandbox"]["missing"].to_string().contains("CPU time"), "{enforced}");
    }
}
