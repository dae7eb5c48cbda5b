//! A server of an ordinary user: what it cannot have is said, and what is left really holds.

use serde_json::{Value, json};

use crate::support::plain_user::{FIRST_SUBORDINATE_ID, PlainUser, UID};
use crate::support::{Options, TestServer, host, python, shell, step, text, wait_for_go};

const BOTH: [PlainUser; 2] = [PlainUser::WithRange, PlainUser::WithSingleId];

fn start(user: PlainUser) -> TestServer {
    TestServer::with(Options { user: Some(user), ..Options::default() })
}

fn lines<'a>(job: &'a Value, list: &str) -> Vec<&'a str> {
    job["sandbox"][list].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// The last of the ids of a process, as the host sees them.
fn uids(pid: i32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_job_runs_and_its_report_is_true() {
    for user in BOTH {
        let server = start(user);
        assert_eq!(uids(server.pid()), [UID; 4]);
        let look = "id -u; id -g; echo hello > file; cat file; hostname; ls -ld /workspace | cut -c1-10; \
                    touch /usr/bin/x /etc/x 2>/dev/null || echo read-only; echo home > ~/x && cat ~/x";
        let job = server.run(&json!({ "steps": [shell(look), python("print(6 * 7)")] })).await;
        assert_eq!(job["status"], "completed", "{user:?} {:#}", job["error"]);
        let name = text(&job, "job_id");
        let expected = format!("1000\n1000\nhello\n{name}\ndrwxr-xr-x\nread-only\nhome\n");
        assert_eq!(text(step(&job, 1), "stdout"), expected, "{user:?}");
        assert_eq!(step(&job, 2)["stdout"], "42\n");

        let checks = job["sandbox"]["checks"].as_array().unwrap();
        assert!(
            checks.len() > 15 && checks.iter().all(|check| check["holds"] == true),
            "{checks:#?}"
        );
        let map = match user {
            PlainUser::WithRange => format!("0 {UID} 1; 1 {FIRST_SUBORDINATE_ID} 65536"),
            PlainUser::WithSingleId => format!("1000 {UID} 1"),
        };
        assert_eq!(job["sandbox"]["inside"]["uid_map"], map);
        let missing = lines(&job, "missing").join("\n");
        for word in ["memory", "processes", "CPU time"] {
            assert!(missing.contains(&format!("no control group for {word}")), "{missing}");
        }
        assert_eq!(
            missing.contains("no subordinate ids"),
            user == PlainUser::WithSingleId,
            "{missing}"
        );
        assert_eq!(
            missing.contains("keep the server user's groups"),
            user == PlainUser::WithSingleId,
            "{missing}"
        );
        let enforced = lines(&job, "enforced").join("\n");
        for words in ["added up by the guest", "processes (rlimit)", "(Landlock)"] {
            assert!(enforced.contains(words), "{enforced}");
        }
    }
}

#[tokio::test]
async fn tools_are_not_the_user_itself_where_there_is_a_range() {
    let server = start(PlainUser::WithRange);
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let namespace = host::pid_namespace(server.guest_pid(&job)).unwrap();
    let tools = host::processes_in(&namespace);
    let owners: Vec<u32> = tools.iter().map(|pid| uids(*pid)[0]).collect();
    // The guest and its supervisor are root inside, which is the user outside.
    assert!(owners.contains(&(FIRST_SUBORDINATE_ID + 999)), "{owners:?}");
    server.let_go(&job).await;
    assert_eq!(server.wait_for_end(&job).await["status"], "completed");
    assert_eq!(host::processes_in(&namespace), Vec::<i32>::new());
}

#[tokio::test]
async fn memory_is_bounded_by_the_guest() {
    for user in BOTH {
        let server = start(user);
        let hog = python(
            "import os, time\nfor _ in range(3):\n    if os.fork() == 0: break\n\
             held = []\nwhile True:\n    held.append(os.urandom(1 << 20) * 4)\n",
        );
        let files =
            "head -c 60M /dev/zero > /tmp/file; ls -l /tmp/file | cut -d' ' -f5; rm /tmp/file";
        let steps = [hog, shell("echo still here"), shell(files)];
        let job = server.run(&json!({ "steps": steps, "limits": { "memory": "200MiB" } })).await;
        assert_eq!(job["status"], "completed", "{user:?} {:#}", job["error"]);
        let killed = step(&job, 1);
        assert_eq!(text(killed, "status"), "failed", "{killed:#}");
        assert_eq!(killed["error"]["code"], "out_of_memory", "{user:?} {killed:#}");
        assert!(text(killed, "output").contains("200 MiB"), "{killed:#}");
        assert_eq!(step(&job, 2)["stdout"], "still here\n");
        assert_eq!(step(&job, 3)["stdout"], "62914560\n");
    }
}

/// What lies in no process cannot be added up, so it cannot be had.
#[tokio::test]
async fn memory_cannot_be_hidden_from_the_guest() {
    let server = start(PlainUser::WithSingleId);
    let code = "import os, ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                try: os.memfd_create('x'); print('made')\nexcept OSError as error: print(errno.errorcode[error.errno])\n\
                for call in [lambda: libc.shmget(0, 4096, 0o1600), lambda: libc.semget(0, 1, 0o1600), lambda: libc.msgget(0, 0o1600)]:\n    \
                    ctypes.set_errno(0); call(); print(errno.errorcode.get(ctypes.get_errno(), 'made'))\n\
                import mmap\n\
                try: mmap.mmap(-1, 4096); print('mapped')\nexcept OSError as error: print(errno.errorcode[error.errno])\n\
                try: open('/dev/zero', 'r+b', 0); print('opened')\nexcept OSError as error: print(errno.errorcode[error.errno])";
    let job = server.run(&json!({ "steps": [python(code)] })).await;
    let expected = "ENOSYS\nENOSYS\nENOSYS\nENOSYS\nEPERM\nEACCES\n";
    assert_eq!(step(&job, 1)["stdout"], expected, "{:#}", step(&job, 1));
}

/// Reading a byte of each 2 MiB of nothing fills no page but those of the tables that lead there.
#[tokio::test]
async fn memory_cannot_be_hidden_in_page_tables() {
    for user in BOTH {
        let server = start(user);
        let hog = "import mmap\nflags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000\n\
                   maps = []\nwhile len(maps) < 64:\n    \
                   maps.append(mmap.mmap(-1, 4 << 30, flags=flags, prot=mmap.PROT_READ))\n    \
                   for place in range(0, 4 << 30, 2 << 20): maps[-1][place]\nprint('filled')";
        let steps = [python(hog), shell("echo still here")];
        let job = server.run(&json!({ "steps": steps, "limits": { "memory": "128MiB" } })).await;
        let killed = step(&job, 1);
        assert_eq!(killed["error"]["code"], "out_of_memory", "{user:?} {killed:#}");
        assert_eq!(killed["stdout"], "", "{user:?}");
        assert_eq!(step(&job, 2)["stdout"], "still here\n", "{user:?}");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_bounded() {
    for user in BOTH {
        let server = start(user);
        let bomb = "import os, time\nmade = 0\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(1000)\n        \
                    made += 1\n    except OSError as error:\n        print(made < 40, error.strerror, flush=True)\n        break\n";
        let steps = [
            json!({ "tool": "python", "fresh": true, "code": format!("{bomb}time.sleep(1000)"), "timeout": 2 }),
            shell("echo works; pgrep -cx python3; true"),
        ];
        let limits = json!({ "processes": 40 });
        let job = server.run(&json!({ "steps": steps, "limits": limits })).await;
        assert_eq!(job["status"], "completed", "{user:?} {:#}", job["error"]);
        let bombed = step(&job, 1);
        assert_eq!(text(bombed, "status"), "timed_out");
        assert_eq!(bombed["stdout"], "True Resource temporarily unavailable\n", "{bombed:#}");
        assert_eq!(step(&job, 2)["stdout"], "works\n0\n", "{user:?}");
    }
}

#[tokio::test]
async fn a_full_disk_and_open_files_are_bounded() {
    let server = start(PlainUser::WithRange);
    let files = python(
        "files = []\ntry:\n    while True: files.append(open('/dev/null'))\n\
         except OSError as error: print(len(files) < 64, error.strerror)",
    );
    let steps = [
        shell("head -c 100M /dev/zero > big"),
        shell("df -B1M --output=size . | tail -1 | tr -d ' '; rm big"),
        files,
    ];
    let limits = json!({ "disk": "1GiB", "memory": "64MiB", "open_files": 64 });
    let job = server.run(&json!({ "steps": steps, "limits": limits })).await;
    assert!(text(step(&job, 1), "stderr").contains("No space left on device"), "{job:#}");
    // Only root can have a disk, so the report says what is given instead.
    assert_eq!(step(&job, 2)["stdout"], "32\n", "{job:#}");
    let missing = lines(&job, "missing").join("\n");
    assert!(missing.contains("files are held in memory here, so 1 GiB of disk"), "{missing}");
    assert_eq!(step(&job, 3)["stdout"], "True Too many open files\n");
}

#[tokio::test]
async fn processors_are_chosen_and_the_choice_stands() {
    let all = std::thread::available_parallelism().unwrap().get();
    let server = start(PlainUser::WithRange);
    let code = "import os\nprint(len(os.sched_getaffinity(0)))\n\
                try: os.sched_setaffinity(0, range(1024)); print('changed', len(os.sched_getaffinity(0)))\n\
                except OSError as error: print(error.strerror)";
    let job = server.run(&json!({ "steps": [python(code)], "limits": { "cpus": 0.5 } })).await;
    let enforced = lines(&job, "enforced").join("\n");
    if all > 1 {
        assert_eq!(step(&job, 1)["stdout"], "1\nOperation not permitted\n", "{:#}", step(&job, 1));
        assert!(enforced.contains("at most 1 processors (affinity"), "{enforced}");
    } else {
        assert!(!enforced.contains("affinity"), "{enforced}");
    }
}

#[tokio::test]
async fn nothing_is_left_after_a_crash() {
    for user in BOTH {
        let mut server = start(user);
        let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
        server.wait_for_step(&job, "step.output", 1).await;
        let guest = server.guest_pid(&job);
        let namespace = host::pid_namespace(guest).unwrap();
        server.kill();
        server.start_again();
        while server.put_file(&job, "go", "").await.status() != 204 {
            tokio::task::yield_now().await;
        }
        assert_eq!(server.wait_for_end(&job).await["status"], "completed", "{user:?}");
        assert_eq!(host::processes_in(&namespace), Vec::<i32>::new());
        assert!(!server.data().join("sandboxes").join(&job).exists());
    }
}
