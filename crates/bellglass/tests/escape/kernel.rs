//! The machine's kernel: its memory, its settings, its modules, its power.

use std::fs;

use crate::attempt::{
    assert_refused, assert_refused_to_nested_root, assert_refused_to_root_too, look, users,
};
use crate::support::{Options, TestServer};

/// A setting of the host's kernel.
fn setting(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap()
}

#[tokio::test]
async fn sysrq_trigger() {
    // `h` only prints a help text, should it come through.
    let attempts = [
        ("write('/proc/sysrq-trigger', b'h')", "ENOENT|EACCES|EROFS|ENODEV"),
        ("write('/proc/sys/kernel/sysrq', b'1')", "ENOENT|EACCES|EROFS"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn kernel_memory() {
    const ABSENT: &str = "ENOENT|EACCES|EPERM|ENODATA";
    let server = TestServer::start();
    let attempts = [
        ("read('/proc/kcore')", ABSENT),
        ("read('/dev/mem')", ABSENT),
        ("read('/dev/kmem')", ABSENT),
        ("read('/dev/port')", ABSENT),
        ("read('/dev/kmsg')", ABSENT),
        ("read('/proc/kmsg')", ABSENT),
        ("read('/proc/kallsyms')", ABSENT),
        ("read('/proc/kpagecount')", ABSENT),
        ("read('/proc/kpageflags')", ABSENT),
        ("read('/proc/vmallocinfo')", ABSENT),
        ("read('/proc/slabinfo')", ABSENT),
        ("read('/sys/kernel/notes')", ABSENT),
        ("call('syslog', 3, ctypes.create_string_buffer(64), 64)", "EPERM"),
        #[cfg(target_arch = "x86_64")]
        ("call('iopl', 3)", "EPERM"),
        #[cfg(target_arch = "x86_64")]
        ("call('ioperm', 0x70, 2, 1)", "EPERM"),
        #[cfg(target_arch = "x86_64")]
        ("call('modify_ldt', 0, ctypes.create_string_buffer(64), 64)", "EPERM"),
    ];
    assert_refused(&server, &attempts).await;
    assert_refused_to_nested_root(&attempts).await;
    // The kernel shows neither where a page lies nor where the machine's memory is.
    let shown = look(
        &server,
        r"
page = bytearray(b'x' * 8192)
pages = open('/proc/self/pagemap', 'rb')
pages.seek((ctypes.addressof(ctypes.c_char.from_buffer(page)) >> 12) * 8)
frame = struct.unpack('<Q', pages.read(8))[0] & ((1 << 55) - 1)
ranges = pathlib.Path('/proc/iomem').read_text()
print(json.dumps([frame, sorted(set(re.findall('[0-9a-f]{8,}', ranges)))]))
",
    )
    .await;
    assert_eq!(shown[0], 0);
    let ranges = shown[1].as_array().unwrap();
    assert!(ranges.iter().all(|n| n.as_str().unwrap().trim_matches('0').is_empty()), "{shown}");
}

#[tokio::test]
async fn core_pattern() {
    let before = setting("core_pattern");
    let attempts = [
        ("write('/proc/sys/kernel/core_pattern', b'|/workspace/x %p')", "EACCES|EROFS"),
        ("write('/proc/sys/kernel/core_pipe_limit')", "EACCES|EROFS|ENOENT"),
        ("os.remove('/proc/sys/kernel/core_pattern')", "EPERM|EACCES|EROFS"),
        ("os.chmod('/proc/sys/kernel/core_pattern', 0o666)", "EPERM|EACCES|EROFS"),
    ];
    assert_refused_to_root_too(&attempts).await;
    assert_eq!(setting("core_pattern"), before);
}

/// A limit of one byte is the only one at which the kernel starts no program of the host's for a core
/// dump, so no tool may have another, neither a higher one nor none at all.
#[tokio::test]
async fn starting_the_hosts_program_for_core_dumps() {
    const TRY: &str = r#"
core = resource.RLIMIT_CORE
none, many = struct.pack('<QQ', 0, 0), struct.pack('<QQ', 1 << 20, 1 << 20)
found = [resource.getrlimit(core)]
for limits in [none, many]:
    for attempt in [
        lambda: call('setrlimit', core, limits),
        lambda: call('setrlimit', 1 << 32 | core, limits),
        lambda: call('prlimit64', 0, core, limits, None),
        lambda: call('prlimit64', 0, 1 << 32 | core, limits, None),
        lambda: call('prlimit64', os.getpid(), core, limits, ctypes.create_string_buffer(16)),
        lambda: call('prlimit64', os.getppid(), core, limits, None),
    ]:
        try: attempt()
        except OSError: pass
        found.append(resource.getrlimit(core))
found.append(json.loads(run('bash', '-c', 'ulimit -c 0; ulimit -c unlimited; exec python3 -c "import resource; print(list(resource.getrlimit(4)))"')))
crashed = subprocess.run(['bash', '-c', 'kill -SEGV $$']).returncode
found = [sorted(set(map(tuple, found))), crashed, [name for name in os.listdir() if name.startswith('core')]]
print(json.dumps(found))
"#;
    for &user in users() {
        let server = TestServer::with(Options { user, ..Options::default() });
        let found = look(&server, TRY).await;
        assert_eq!(found, serde_json::json!([[[1, 1]], -11, []]), "{user:?}");
    }
}

#[tokio::test]
async fn every_kernel_setting() {
    let server = TestServer::start();
    // Not a sample: each file below /proc that is not about a process of the sandbox.
    let found = look(
        &server,
        r"
tried, open_to_all = 0, []
for folder, folders, files in os.walk('/proc'):
    if folder == '/proc':
        folders[:] = [name for name in folders if not name.isdigit() and 'self' not in name]
    for name in files:
        path, tried = f'{folder}/{name}', tried + 1
        try:
            write(path, b'')
            open_to_all.append(path)
        except OSError:
            pass
print(json.dumps([tried, open_to_all]))
",
    )
    .await;
    assert!(found[0].as_u64().unwrap() > 300, "{found}");
    assert_eq!(found[1], serde_json::json!([]));
}

#[tokio::test]
async fn cgroup_release_agent() {
    let attempts = [
        ("write('/sys/fs/cgroup/release_agent', b'/workspace/x')", "ENOENT|EACCES|EROFS"),
        ("write('/sys/fs/cgroup/memory/release_agent', b'/workspace/x')", "ENOENT|EACCES|EROFS"),
        ("write('/sys/fs/cgroup/notify_on_release')", "ENOENT|EACCES|EROFS"),
        ("write('/sys/fs/cgroup/cgroup.procs', b'0')", "ENOENT|EACCES|EROFS"),
        ("os.mkdir('/sys/fs/cgroup/mine')", "ENOENT|EACCES|EPERM|EROFS"),
        ("call('mount', b'none', b'/tmp', b'cgroup', 0, b'memory')", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'cgroup2', 0, None)", "EPERM"),
        ("call('unshare', 0x02000000)", "EPERM"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn kernel_modules() {
    let before = fs::read_to_string("/proc/modules").unwrap_or_default().lines().count();
    let attempts = [
        ("call('init_module', b'', 0, b'')", "EPERM"),
        ("call('finit_module', os.open('/bin/true', os.O_RDONLY), b'', 0)", "EPERM"),
        ("call('delete_module', b'loop', 0)", "EPERM"),
        ("write('/proc/sys/kernel/modprobe', b'/workspace/x')", "ENOENT|EACCES|EROFS"),
        // Each of these would have the kernel look for a module by itself.
        ("socket.socket(38, socket.SOCK_SEQPACKET)", "EPERM"),
        ("socket.socket(30, socket.SOCK_SEQPACKET)", "EPERM"),
        ("socket.socket(29, socket.SOCK_RAW)", "EPERM"),
        ("socket.socket(21, socket.SOCK_SEQPACKET)", "EPERM"),
        ("socket.socket(socket.AF_INET, socket.SOCK_SEQPACKET, 132)", "EPERM"),
        ("socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)", "EPERM"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 132)", "EPERM"),
        ("socket.socket(socket.AF_INET, 6, 33)", "EPERM"),
        ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 115)", "EPERM"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, 115)", "EPERM"),
        ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)", "EPERM"),
        ("fcntl.ioctl(socket.socket(), 0x8940, bytes(64))", "EPERM"), // bridges
        ("fcntl.ioctl(socket.socket(), 0x89a0, bytes(64))", "EPERM"),
        ("fcntl.ioctl(socket.socket(), 0x8982, bytes(64))", "EPERM"), // tagged networks
        ("call('mount', b'none', b'/tmp', b'squashfs', 0, None)", "EPERM"),
    ];
    assert_refused_to_root_too(&attempts).await;
    assert_eq!(fs::read_to_string("/proc/modules").unwrap_or_default().lines().count(), before);
}

#[tokio::test]
async fn foreign_binary_formats() {
    let attempts = [
        ("write('/proc/sys/fs/binfmt_misc/register', b':x:M::x::/x:')", "ENOENT|EACCES|EROFS"),
        ("write('/proc/sys/fs/binfmt_misc/status')", "ENOENT|EACCES|EROFS"),
        ("call('mount', b'none', b'/tmp', b'binfmt_misc', 0, None)", "EPERM"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn power_and_another_kernel() {
    // 0 disables Ctrl-Alt-Delete: the mildest that a reboot call can do.
    let attempts = [
        ("call('reboot', 0xfee1dead, 672274793, 0, None)", "EPERM"),
        ("call('kexec_load', 0, 0, None, 0)", "EPERM"),
        ("call('kexec_file_load', -1, -1, 0, None, 0)", "EPERM"),
        ("write('/sys/power/state', b'mem')", "ENOENT|EACCES|EROFS"),
        ("read('/dev/watchdog')", "ENOENT"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn swap_quota_and_accounting() {
    let attempts = [
        ("call('swapon', b'/workspace/x', 0)", "EPERM"),
        ("call('swapoff', b'/workspace/x')", "EPERM"),
        ("call('quotactl', 0x80000700, None, 0, None)", "EPERM"),
        ("call('quotactl_fd', os.open('/workspace', os.O_RDONLY), 0x80000700, 0, None)", "EPERM"),
        ("call('acct', b'/workspace/x')", "EPERM"),
        ("call('vhangup')", "EPERM"),
        ("call('sethostname', b'x', 1)", "EPERM"),
        ("call('setdomainname', b'x', 1)", "EPERM"),
    ];
    let before = setting("hostname");
    assert_refused_to_root_too(&attempts).await;
    assert_eq!(setting("hostname"), before);
}

/// Memory that no control group counts, where a host has set some aside.
#[tokio::test]
async fn huge_pages() {
    let attempts = [
        // Private and shared, of the usual size and of 2 MiB by its own flag.
        ("call('mmap', None, 1 << 21, 3, 0x40022, -1, 0)", "EPERM"),
        ("call('mmap', None, 1 << 21, 3, 0x40021, -1, 0)", "EPERM"),
        ("call('mmap', None, 1 << 21, 3, 0x40022 | 21 << 26, -1, 0)", "EPERM"),
        // Where the guest counts memory, there is none without a file or a process at all.
        ("call('memfd_create', b'x', 4)", "EPERM|ENOSYS"),
        ("call('memfd_create', b'x', 4 | 1 | 21 << 26)", "EPERM|ENOSYS"),
        ("call('shmget', 0, 1 << 21, 0o4000 | 0o1600)", "EPERM|ENOSYS"),
        ("write('/proc/sys/vm/nr_hugepages', b'8')", "EACCES|EROFS|ENOENT"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn keyrings() {
    let attempts = [
        ("call('keyctl', 0, -5, 1)", "EPERM"),
        ("call('keyctl', 1, None)", "EPERM"),
        ("call('keyctl', 11, -4, ctypes.create_string_buffer(64), 64)", "EPERM"),
        ("call('add_key', b'user', b'x', b'y', 1, -4)", "EPERM"),
        ("call('request_key', b'user', b'x', None, 0)", "EPERM"),
        ("read('/proc/keys')", "ENODATA|ENOENT|EACCES"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn userfaultfd() {
    let attempts = [
        ("call('userfaultfd', 0)", "EPERM"),
        // Only for faults in user mode, which the kernel itself would give to everybody.
        ("call('userfaultfd', 1)", "EPERM"),
        ("os.open('/dev/userfaultfd', os.O_RDWR)", "ENOENT"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn bpf() {
    let attempts = [
        ("call('bpf', 0, struct.pack('<IIII', 2, 4, 4, 1) + bytes(112), 128)", "EPERM"),
        ("call('bpf', 5, bytes(128), 128)", "EPERM"),
        ("os.listdir('/sys/fs/bpf')", "ENOENT|EACCES"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn io_uring() {
    let attempts = [
        ("call('io_uring_setup', 4, ctypes.create_string_buffer(120))", "EPERM"),
        ("call('io_uring_enter', 0, 0, 0, 0, None, 0)", "EPERM"),
        ("call('io_uring_register', 0, 0, None, 0)", "EPERM"),
    ];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn performance_counters() {
    let attempts = [
        ("call('perf_event_open', struct.pack('<II', 1, 128) + bytes(120), 0, -1, -1, 0)", "EPERM"),
        ("call('perf_event_open', struct.pack('<II', 0, 128) + bytes(120), -1, 0, -1, 0)", "EPERM"),
        ("os.listdir('/sys/kernel/tracing')", "ENOENT|EACCES"),
        ("os.listdir('/sys/kernel/debug')", "ENOENT|EACCES"),
    ];
    assert_refused_to_root_too(&attempts).await;
}
