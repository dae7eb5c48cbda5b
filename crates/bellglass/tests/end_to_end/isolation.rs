//! What a tool finds when it looks for a way out.

use serde_json::json;
use tokio::net::TcpListener;

use crate::support::{TestServer, python, shell, step, text, wait_for_go};

/// Runs one command and returns what it wrote to standard output.
pub(crate) async fn look(server: &TestServer, command: &str) -> String {
    let job = server.run(&json!({ "steps": [shell(command)] })).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    text(step(&job, 1), "stdout").to_owned()
}

/// Runs attempts in Python, each of which must end in an `OSError`.
async fn assert_all_refused(server: &TestServer, attempts: &[&str]) {
    let mut code = String::from(
        "import ctypes, os, signal, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*arguments):\n    if libc.syscall(*arguments) == -1:\n        \
         raise OSError(ctypes.get_errno(), 'refused')\n\
         def attempt(text):\n    try:\n        eval(text)\n        print('POSSIBLE:', text)\n    \
         except OSError as error:\n        print('refused:', text, error)\n",
    );
    for attempt in attempts {
        code.push_str(&format!("attempt({attempt:?})\n"));
    }
    let job = server.run(&json!({ "steps": [python(&code)] })).await;
    let said = text(step(&job, 1), "stdout");
    assert_eq!(step(&job, 1)["exit_code"], 0, "{:#}", step(&job, 1));
    assert!(!said.contains("POSSIBLE"), "{said}");
    assert_eq!(said.matches("refused:").count(), attempts.len(), "{said}");
}

#[tokio::test]
async fn tools_have_no_privileges() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": [shell("id -u; id -g; id -G; cat /proc/self/status")] }))
        .await;
    let said = text(step(&job, 1), "stdout");
    assert!(said.starts_with("1000\n1000\n1000\n"), "{said}");
    let status = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("no {name} in {said}")).to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
    assert_eq!((status("NoNewPrivs"), status("Seccomp")), ("1".into(), "2".into()));
    // The report at the head of the log says the same.
    let inside = &job["sandbox"]["inside"];
    assert_eq!(inside["tool_uid"], 1000);
    assert_eq!((&inside["no_new_privs"], &inside["seccomp_mode"]), (&json!(true), &json!(2)));
    assert_eq!(inside["capabilities"], "0000000000000000");
    assert_eq!(inside["interfaces"], json!(["lo"]));
    assert_eq!(inside["hostname"], job["job_id"]);
}

#[tokio::test]
async fn there_is_no_network_but_loopback() {
    let server = TestServer::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server_port = server.url("").rsplit(':').next().unwrap().to_owned();
    let said =
        look(&server, "cut -d: -f1 -s /proc/net/dev | tr -d ' '; tail -n +2 /proc/net/route").await;
    assert_eq!(said, "lo\n", "interfaces, and no route");
    let connect = |address: &str, port: &str| {
        format!("socket.create_connection(('{address}', {port}), timeout=5)")
    };
    let attempts = [
        connect("127.0.0.1", &port.to_string()),
        connect("127.0.0.1", &server_port),
        connect("::1", &server_port),
        connect("1.1.1.1", "53"),
        connect("169.254.169.254", "80"),
        connect("10.0.0.1", "80"),
        connect("example.com", "80"),
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)".into(),
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)".into(),
        "socket.socket(40, socket.SOCK_STREAM)".into(),
    ];
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    assert_all_refused(&server, &attempts).await;
    // Nothing knocked.
    let knocked = std::future::poll_fn(|context| {
        std::task::Poll::Ready(listener.poll_accept(context).is_ready())
    });
    assert!(!knocked.await);
    // Its own loopback works.
    let own = "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n\
               client = socket.create_connection(server.getsockname())\nprint('connected')";
    let job = server.run(&json!({ "steps": [python(own)] })).await;
    assert_eq!(step(&job, 1)["stdout"], "connected\n");
}

#[tokio::test]
async fn the_kernel_cannot_be_configured() {
    let server = TestServer::start();
    let write = |path: &str| format!("os.write(os.open('{path}', os.O_WRONLY), b'-1000')");
    let paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/self/oom_score_adj",
        "/proc/1/oom_score_adj",
        "/proc/self/uid_map",
        "/proc/self/attr/current",
        "/etc/passwd",
        "/etc/hosts",
        "/usr/bin/bash",
    ];
    let writes: Vec<String> = paths.iter().map(|path| write(path)).collect();
    let mut attempts: Vec<&str> = writes.iter().map(String::as_str).collect();
    attempts.extend([
        "open('/proc/kcore', 'rb').read(1) or os.stat('/nothing')",
        "open('/proc/kallsyms', 'rb').read(1) or os.stat('/nothing')",
        "open('/proc/keys', 'rb').read(1) or os.stat('/nothing')",
        "os.mknod('/workspace/disk', 0o60666, os.makedev(8, 0))",
        "os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1))",
        "os.chown('/workspace', 0, 0)",
        "os.setuid(0)",
        "os.setgid(0)",
        "os.chroot('/workspace')",
        "socket.sethostname('mine')",
        "os.mkdir('/evil')",
        "os.nice(-5)",
    ]);
    assert_all_refused(&server, &attempts).await;
    // Covered by /dev/null where it exists: writing there does nothing.
    let said = look(&server, "cat /proc/sysrq-trigger 2>/dev/null | wc -c; stat -Lc %t:%T /proc/sysrq-trigger 2>/dev/null || echo absent").await;
    assert!(matches!(said.as_str(), "0\n1:3\n" | "0\nabsent\n"), "{said}");
}

/// By number, since Python has no names for most of them.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn dangerous_system_calls_are_refused() {
    let server = TestServer::start();
    assert_all_refused(
        &server,
        &[
            "call(165, b'none', b'/tmp', b'tmpfs', 0, None)", // mount
            "call(166, b'/workspace', 2)",                    // umount2
            "call(155, b'/', b'/')",                          // pivot_root
            "call(428, -100, b'/', 1)",                       // open_tree
            "call(430, b'tmpfs', 0)",                         // fsopen
            "call(272, 0x10000000)",                          // unshare, user
            "call(272, 0x00020000)",                          // unshare, mounts
            "call(272, 0x40000000)",                          // unshare, network
            "call(56, 0x10000011, None, None, None, None)",   // clone, user namespace
            "call(435, None, 0)",                             // clone3
            "call(308, os.open('/proc/self/ns/user', os.O_RDONLY), 0)", // setns
            "call(101, 16, 1, None, None)",                   // ptrace, attach to the guest
            "call(101, 0, 0, None, None)",                    // ptrace, trace me
            "call(310, 1, None, 0, None, 0, 0)",              // process_vm_readv
            "call(321, 0, None, 0)",                          // bpf
            "call(298, None, 0, -1, -1, 0)",                  // perf_event_open
            "call(323, 0)",                                   // userfaultfd
            "call(425, 1, None)",                             // io_uring_setup
            "call(250, 0, -1, 0)",                            // keyctl
            "call(248, b'user', b'x', b'y', 1, -1)",          // add_key
            "call(175, None, 0, b'')",                        // init_module
            "call(246, 0, 0, None, 0)",                       // kexec_load
            "call(169, 0xfee1dead, 672274793, 0, None)",      // reboot
            "call(304, 0, None, 0)",                          // open_by_handle_at
            "call(103, 3, None, 0)",                          // syslog
            "call(135, 0x0040000)",                           // personality
        ],
    )
    .await;
}

#[tokio::test]
async fn the_guest_cannot_be_touched() {
    let server = TestServer::start();
    assert_all_refused(
        &server,
        &[
            "os.kill(1, signal.SIGKILL)",
            "os.kill(1, 0)",
            "os.kill(os.getppid(), signal.SIGKILL)",
            "open('/proc/1/environ', 'rb').read()",
            "open('/proc/1/mem', 'rb')",
            "open('/proc/1/maps', 'rb').read()",
            "os.listdir('/proc/1/root')",
            "os.listdir('/proc/1/fd')",
            "os.readlink('/proc/1/exe')",
            "os.readlink('/proc/1/cwd')",
            "os.readlink('/proc/1/ns/mnt')",
            "os.listdir('/proc/%d/fd' % os.getppid())",
        ],
    )
    .await;
    let job = server
        .run(&json!({ "steps": [shell("kill -9 -1; echo here"), shell("echo alive")] }))
        .await;
    assert_eq!(step(&job, 2)["stdout"], "alive\n", "{job:#}");
}

#[tokio::test]
async fn every_claim_of_the_report_was_checked() {
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": [shell("true")] })).await;
    let report = &job["sandbox"];
    let checks = report["checks"].as_array().unwrap();
    let subjects: Vec<&str> = checks.iter().map(|check| text(check, "subject")).collect();
    for subject in [
        "host name",
        "ids of tools",
        "user id map",
        "effective capabilities",
        "bounding set",
        "no_new_privs",
        "system-call filter",
        "new user namespaces",
        "namespaces",
        "addresses outside",
        "mounts",
        "writable",
        "limit on open_files",
        "limit on processes",
    ] {
        assert!(subjects.contains(&subject), "{subject} is not in {subjects:?}");
    }
    assert!(checks.iter().all(|check| check["holds"] == true), "{checks:#?}");
    // It is the first finding: nothing ran before it was written down.
    let log = server.log(text(&job, "job_id")).await;
    let kinds: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let place = |kind: &str| kinds.iter().position(|event| event["type"] == kind).unwrap();
    assert!(place("sandbox.ready") < place("step.started"));
    let theirs = report["inside"]["namespaces"].as_object().unwrap();
    for (kind, number) in theirs {
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(ours.to_str().unwrap(), format!("{kind}:[{number}]"));
    }
    assert!(theirs.len() >= 7, "{theirs:?}");
}

#[tokio::test]
async fn user_namespaces_are_for_jobs_that_ask_for_them() {
    let server = TestServer::start();
    let attempts = [
        shell("unshare -U true"),
        shell("unshare -Urpf id -u"),
        shell("unshare -Urm true"),
        shell("unshare -Ur sethostname x || unshare -Uru true"),
    ];
    let plain = server.run(&json!({ "steps": attempts })).await;
    for n in 1..=4 {
        assert_eq!(text(step(&plain, n), "status"), "failed", "{:#}", step(&plain, n));
    }
    assert_eq!(plain["sandbox"]["inside"]["nested_sandboxing"], false);
    assert!(plain["spec"].get("nested_sandboxing").is_none());

    let nested = server.run(&json!({ "steps": attempts, "nested_sandboxing": true })).await;
    assert_eq!(text(step(&nested, 1), "status"), "succeeded", "{:#}", step(&nested, 1));
    assert_eq!(step(&nested, 2)["stdout"], "0\n", "{:#}", step(&nested, 2));
    // Nothing else is lifted: root of such a namespace still mounts and renames nothing.
    for n in 3..=4 {
        assert_eq!(text(step(&nested, n), "status"), "failed", "{:#}", step(&nested, n));
    }
    let inside = &nested["sandbox"]["inside"];
    assert_eq!((&inside["nested_sandboxing"], &inside["seccomp_mode"]), (&json!(true), &json!(2)));
    let enforced = nested["sandbox"]["enforced"].to_string();
    assert!(enforced.contains("because the job asked for it"), "{enforced}");
}

/// Landlock, where the kernel has it, forbids what the owner of a file could do.
#[tokio::test]
async fn the_second_fence_stands_and_is_not_in_the_way() {
    let server = TestServer::start();
    let device = "import os, stat\nfor place in ['/workspace', '/tmp', '/home/agent']:\n    \
                  try: os.mknod(place + '/device', stat.S_IFCHR | 0o600, os.makedev(1, 3)); print('made')\n    \
                  except OSError as error: print(error.strerror)";
    let background = "sleep 1000 & echo $! > pid";
    let look = "pid=$(cat pid); readlink /proc/$pid/exe; ls /proc/$pid/fd | wc -l; \
                kill $pid && echo killed";
    let daily = "set -e; mkdir -p a b; echo x > a/x; mv a/x b/y; ln b/y a/z; ln -s b/y link; mkfifo pipe; \
                 cp b/y /tmp/y; rm -r a b link pipe /tmp/y; echo x > ~/x; echo x > /var/tmp/x; \
                 echo x > /dev/shm/x; echo x > /dev/null; echo x | tee /dev/stderr > /dev/stdout; \
                 python3 -m venv --without-pip ~/venv; printf '#!/bin/sh\\necho ran' > /usr/local/bin/own; \
                 chmod +x /usr/local/bin/own; own; script -qc 'tty' /dev/null | tr -d '\\r'; \
                 (exec 3<>/dev/tcp/127.0.0.1/9) 2>/dev/null || true; echo all";
    let steps = [python(device), shell(background), shell(look), shell(daily)];
    let job = server.run(&json!({ "steps": steps })).await;
    let abi = job["sandbox"]["inside"]["landlock_abi"].as_u64().unwrap();
    if abi >= 2 {
        let refused = "Permission denied\n".repeat(3);
        assert_eq!(text(step(&job, 1), "stdout"), refused, "{:#}", step(&job, 1));
    } else {
        assert!(job["sandbox"]["missing"].to_string().contains("Landlock"));
    }
    // What an earlier call left running can be looked at and ended.
    assert_eq!(step(&job, 3)["stdout"], "/usr/bin/sleep\n3\nkilled\n", "{:#}", step(&job, 3));
    let said = text(step(&job, 4), "stdout");
    assert!(said.contains("ran\n/dev/pts/0\nall\n"), "{:#}", step(&job, 4));
}

#[tokio::test]
async fn what_is_private_is_not_shared_between_jobs() {
    let server = TestServer::with_slots(2);
    let places = "/tmp/mark /dev/shm/mark /var/tmp/mark /home/agent/mark /workspace/mark";
    let leave = format!("for place in {places}; do echo here > $place; done; hostname");
    let first = server.submit(&json!({ "steps": [shell(&leave), wait_for_go()] })).await;
    server.wait_for_step(&first, "step.started", 2).await;
    let sockets =
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(b\"\\0mark\")'";
    let second = look(
        &server,
        &format!("ls {places} 2>/dev/null; ipcs -m | grep -c 0x; {sockets} && echo own"),
    )
    .await;
    assert_eq!(second, "0\nown\n");
    server.let_go(&first).await;
    let job = server.wait_for_end(&first).await;
    assert_eq!(step(&job, 1)["stdout"], format!("{first}\n"), "the host name is the job's");
}

#[tokio::test]
async fn what_tells_of_the_machine_is_covered() {
    let server = TestServer::start();
    let said = look(
        &server,
        "for file in kcore keys latency_stats timer_list sched_debug kallsyms interrupts; do \
         [ -e /proc/$file ] && head -c 1 /proc/$file | wc -c; done | sort -u; \
         ls /proc/acpi /proc/scsi /proc/asound 2>/dev/null | grep -v : | grep . ; \
         ls -A /sys; grep -E ' (/proc/sys|/proc/bus|/proc/irq|/proc/fs|/dev) ' /proc/self/mountinfo | \
         cut -d' ' -f5,6 | cut -d, -f1 | grep -v ' ro'; true",
    )
    .await;
    assert_eq!(said, "0\n");
    // Only what is the sandbox's own is mounted.
    let said = look(&server, "cut -d' ' -f5 /proc/self/mountinfo | sort").await;
    let expected = |path: &str| {
        matches!(path, "/" | "/workspace" | "/tmp")
            || path.starts_with("/dev")
            || path.starts_with("/proc")
    };
    assert!(said.lines().all(expected), "{said}");
}
