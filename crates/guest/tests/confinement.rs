//! What a tool process has given up.

mod support;

use bellglass_protocol::wire::{PROTOCOL_VERSION, Reply, Request};
use support::TestGuest;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn the_guest_says_what_it_finds() {
    let guest = TestGuest::start();
    let reply = guest.connect().await.reply(&Request::Hello { protocol: PROTOCOL_VERSION }).await;
    let Reply::Welcome { protocol, probe, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(protocol, PROTOCOL_VERSION);
    assert!(probe.no_new_privs);
    assert_eq!(probe.seccomp_mode, 2);
    assert_eq!(probe.capabilities, "0000000000000000");
    if is_root() {
        assert_eq!(probe.bounding_set, "0000000000000000");
    }
    assert!(probe.interfaces.iter().any(|name| name == "lo"), "{probe:?}");
    assert!(!probe.uid_map.is_empty() && !probe.kernel.is_empty() && probe.mounts > 0);
}

#[tokio::test]
async fn a_tool_process_has_no_privileges() {
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, "cat /proc/self/status").await;
    let status = done.stdout();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if is_root() {
        assert_eq!(field("CapBnd"), "0000000000000000");
    }
    assert_eq!(field("SigIgn"), "0000000000000000");
    assert_eq!(field("SigBlk"), "0000000000000000");
}

#[tokio::test]
async fn only_standard_descriptors_are_open() {
    let guest = TestGuest::start();
    let command = "for n in {0..600}; do [ -e /proc/$$/fd/$n ] && printf '%s ' $n; done\n\
                   echo; ulimit -n";
    let done = guest.connect().await.shell(1, command).await;
    assert_eq!(done.stdout(), "0 1 2 \n512\n");
}

/// At one byte the kernel makes no core dump and starts no program for one. Whoever sets the limit is
/// told that it is set, and it stays.
#[tokio::test]
async fn the_limit_on_core_dumps_is_read_and_not_changed() {
    let guest = TestGuest::start();
    let code = "import resource, os\n\
                core = resource.RLIMIT_CORE\n\
                print(resource.getrlimit(core), resource.prlimit(os.getpid(), core))\n\
                for limits in [(0, 0), (0, 1), (1 << 20, 1 << 20), (-1, -1)]: resource.setrlimit(core, limits)\n\
                print(resource.getrlimit(core))\n\
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n\
                print(resource.getrlimit(resource.RLIMIT_NOFILE))";
    let worker = guest.connect().await;
    let call = serde_json::json!({"tool": "python", "fresh": true, "code": code});
    let done = worker.call(1, call).await;
    assert_eq!(done.stderr(), "");
    assert_eq!(done.stdout(), "(1, 1) (1, 1)\n(1, 1)\n(64, 64)\n");
    let command = "ulimit -c 0 && ulimit -a | grep -c 'core file size' && ulimit -c unlimited; \
                   grep 'core file' /proc/self/limits | tr -s ' '; sh -c 'kill -SEGV $$'; echo $?";
    let done = worker.shell(2, command).await;
    assert_eq!(done.stdout(), "1\nMax core file size 1 1 bytes \n139\n", "{}", done.stderr());
}

#[tokio::test]
async fn dangerous_calls_are_refused() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    for (step, command) in (1..).zip([
        "unshare -U true",
        "unshare -m true",
        "unshare -n true",
        "mount -t tmpfs none /mnt",
        "umount /proc",
        "chroot / true",
        "nsenter -t $$ -m true",
        "setarch -R true",
        "dmesg",
        "hostname other",
    ]) {
        let done = worker.shell(step, command).await;
        assert_ne!(done.result.exit_code, Some(0), "{command} must fail");
        assert!(done.result.exit_code.is_some(), "{command} must fail and not be killed");
    }
}

#[tokio::test]
async fn system_calls_answer_as_documented() {
    let guest = TestGuest::start();
    let code = r#"
import ctypes, errno, socket, os, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_ulong(a) for a in arguments])
    return errno.errorcode.get(ctypes.get_errno(), "0") if result < 0 else "ok"
if os.uname().machine == "x86_64":
    print("clone3", call(435, 0, 0))
    print("x32", call(0x40000000 + 39))
    print("clone newuser", call(56, 0x10000000 | 17, 0, 0, 0, 0))
    print("clone newuser high bits", call(56, (1 << 40) | 0x10000000 | 17, 0, 0, 0, 0))
    print("unshare files", call(272, 0x400))
    print("unshare time", call(272, 0x80))
    print("bpf", call(321, 0, 0, 0))
    print("io_uring", call(425, 1, 0))
    print("keyctl", call(250, 0, 0))
    print("personality query", call(135, 0xffffffff))
    print("personality set", call(135, 0x0040000))
    print("tiocsti", call(16, 0, 0x5412, 0), call(16, 0, (1 << 32) | 0x5412, 0))
    print("getpid", call(39))
for name, arguments in [("inet", (2, 1)), ("unix", (1, 1)), ("route", (16, 3, 0)), ("netfilter", (16, 3, 12)), ("packet", (17, 3)), ("vsock", (40, 1)), ("alg", (38, 5))]:
    try:
        socket.socket(*arguments).close(); print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
thread = threading.Thread(target=lambda: print("threads ok")); thread.start(); thread.join()
"#;
    let done = guest
        .connect()
        .await
        .call(1, serde_json::json!({"tool": "python", "fresh": true, "code": code}))
        .await;
    assert_eq!(done.stderr(), "");
    let mut expected = String::new();
    if cfg!(target_arch = "x86_64") {
        expected.push_str(
            "clone3 ENOSYS\nx32 ENOSYS\nclone newuser EPERM\nclone newuser high bits EPERM\n\
             unshare files ok\nunshare time EPERM\nbpf EPERM\nio_uring EPERM\nkeyctl EPERM\n\
             personality query ok\npersonality set EPERM\ntiocsti EPERM EPERM\ngetpid ok\n",
        );
    }
    expected.push_str(
        "inet ok\nunix ok\nroute ok\nnetfilter EPERM\npacket EPERM\nvsock EPERM\nalg EPERM\n\
         threads ok\n",
    );
    assert_eq!(done.stdout(), expected);
}
