//! Other doors to the same system calls: clone3, x32, 32-bit calls, and new namespaces by any of them.

use crate::attempt::assert_refused_to_all;

#[tokio::test]
async fn new_namespaces() {
    let kinds = [
        0x0002_0000u64, // mounts
        0x0200_0000,    // control groups
        0x0400_0000,    // host name
        0x0800_0000,    // ipc
        0x1000_0000,    // users
        0x2000_0000,    // processes
        0x4000_0000,    // network
        0x7e02_0000,    // all of them
        // The kernel looks at 32 bits of unshare's flags; so must the filter.
        0x1_1000_0000,
    ];
    let mut attempts = Vec::new();
    for kind in kinds {
        attempts.push(format!("call('unshare', {kind:#x})"));
        // SIGCHLD, so that a child that came to be would be seen.
        attempts.push(format!("call('clone', {:#x}, None, None, None, None)", kind | 17));
    }
    for name in ["mnt", "user", "net", "pid", "ipc", "uts", "cgroup"] {
        let own = format!("os.open('/proc/self/ns/{name}', os.O_RDONLY)");
        attempts.push(format!("call('setns', {own}, 0)"));
    }
    attempts.push("call('setns', os.pidfd_open(1), 0x7e020000)".into());
    let attempts: Vec<_> = attempts.iter().map(|code| (code.as_str(), "EPERM")).collect();
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn flags_through_clone3() {
    let attempts = [
        // Flags in memory, where no filter sees them: a user namespace, and into a control group.
        ("call('clone3', struct.pack('<8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)", "ENOSYS"),
        ("call('clone3', struct.pack('<8Q', 0x7e020080, 0, 0, 0, 17, 0, 0, 0), 64)", "ENOSYS"),
        (
            "call('clone3', struct.pack('<11Q', 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 3), 88)",
            "ENOSYS",
        ),
        ("call('clone3', struct.pack('<8Q', 0, 0, 0, 0, 17, 0, 0, 0), 64)", "ENOSYS"),
    ];
    assert_refused_to_all(&attempts).await;
}

/// Calls that came to the kernel after the filter's list, in both places where they come.
#[tokio::test]
async fn calls_that_nobody_knew() {
    // 335 and 336 are made by the kernel itself, for traced programs, and pass every filter; to
    // others they do nothing.
    let attempts = [("call(337)", "ENOSYS"), ("call(423)", "ENOSYS"), ("call(467)", "ENOSYS")];
    assert_refused_to_all(&attempts).await;
}

/// Calls by x32 numbers, which are the same calls past every rule about the usual numbers.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn x32_system_calls() {
    let attempts = [
        ("call(0x40000000 + SYS['getpid'])", "ENOSYS"),
        ("call(0x40000000 + SYS['unshare'], 0x10000000)", "ENOSYS"),
        ("call(0x40000000 + SYS['mount'], b'none', b'/tmp', b'tmpfs', 0, None)", "ENOSYS"),
        ("call(0x40000000 + 521, 16, 1, None, None)", "ENOSYS"), // x32's own ptrace
        ("call(0x40000000 + 514, 0, 0x5412, b'x')", "ENOSYS"),   // x32's own ioctl
    ];
    assert_refused_to_all(&attempts).await;
}

/// Calls as a 32-bit program makes them, whose numbers mean others.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn system_calls_of_32_bit_programs() {
    let call = |number: u32, argument: u32| {
        format!(
            "run(compiled('int main(){{int r; __asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"({number}),\"b\"({argument}));return 0;}}'))"
        )
    };
    let attempts = [
        call(20, 0),            // getpid
        call(310, 0x1000_0000), // unshare
        call(26, 0),            // ptrace
        call(375, 0),           // membarrier there, nothing here
    ];
    let attempts: Vec<_> = attempts.iter().map(|code| (code.as_str(), "SIGSYS")).collect();
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn personalities() {
    let attempts = [
        ("call('personality', 0x0040000)", "EPERM"), // no random layout
        ("call('personality', 0x0400000)", "EPERM"), // data that can be executed
        ("call('personality', 0x0100000)", "EPERM"), // pages at address 0
        ("call('personality', 8)", "EPERM"),         // 32 bits
        ("run('setarch', '-R', 'true')", "EREMOTEIO"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn loosening_the_filter() {
    // Allows all. Filters add up, so it must change nothing.
    let allow = r"
allow = struct.pack('<HBBI', 6, 0, 0, 0x7fff0000)
text = ctypes.create_string_buffer(allow, 8)
program = struct.pack('<HxxxxxxQ', 1, ctypes.addressof(text))
";
    let loaded = format!("{allow}call('seccomp', 1, 0, program)\ncall('unshare', 0x10000000)");
    let attempts = [
        (loaded.as_str(), "EPERM"),
        ("call('prctl', 22, 0, 0, 0, 0)", "EINVAL|EPERM"),
        ("call('prctl', 38, 0, 0, 0, 0)", "EINVAL"),
        // A child, a thread and a program that is started inherit it.
        ("run('unshare', '--user', 'true')", "EREMOTEIO"),
        (
            r"
import threading
found = []
def thread():
    try: found.append(call('bpf', 0, None, 0))
    except OSError as error: found.append(error)
t = threading.Thread(target=thread)
t.start(); t.join()
def result():
    raise found[0]
result()
",
            "EPERM",
        ),
    ];
    assert_refused_to_all(&attempts).await;
}
