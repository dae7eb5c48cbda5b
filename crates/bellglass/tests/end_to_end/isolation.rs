//! What a tool finds when it looks for a way out.

use serde_json::json;
use tokio::net::TcpListener;

use crate::support::{TestServer, python, shell, step, text};

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
