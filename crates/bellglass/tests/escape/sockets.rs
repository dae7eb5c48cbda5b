//! Sockets of the host, and sockets that see more than their own network.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::json;

use crate::attempt::{
    assert_refused, assert_refused_to_all, assert_refused_to_nested_root,
    assert_refused_to_root_too, look,
};
use crate::support::TestServer;

/// Whether somebody has connected.
fn was_knocked_at(listener: &UnixListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    listener.accept().is_ok()
}

#[tokio::test]
async fn docker_and_other_sockets_of_the_host() {
    let server = TestServer::start();
    let path = server.folder().join("host.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let own = format!("connect({:?})", path.to_str().unwrap());
    let mut attempts = vec![(own.as_str(), "ENOENT")];
    for place in [
        "connect('/var/run/docker.sock')",
        "connect('/run/docker.sock')",
        "connect('/run/containerd/containerd.sock')",
        "connect('/run/crio/crio.sock')",
        "connect('/run/podman/podman.sock')",
        "connect('/run/dbus/system_bus_socket')",
        "connect('/run/systemd/private')",
        "connect('/run/systemd/notify', kind=socket.SOCK_DGRAM)",
        "connect('/dev/log', kind=socket.SOCK_DGRAM)",
        "connect('/tmp/.X11-unix/X0')",
        "connect('/run/user/0/bus')",
    ] {
        attempts.push((place, "ENOENT"));
    }
    assert_refused(&server, &attempts).await;
    let there = look(
        &server,
        r"
found = []
for folder, folders, files in os.walk('/'):
    if folder == '/proc': folders.clear(); continue
    for name in files:
        try: mode = os.lstat(f'{folder}/{name}').st_mode
        except OSError: continue
        if stat.S_ISSOCK(mode): found.append(f'{folder}/{name}')
print(json.dumps(found))
",
    )
    .await;
    assert_eq!(there, json!([]), "there is no socket in a sandbox's files");
    assert!(!was_knocked_at(&listener));
}

#[tokio::test]
async fn abstract_sockets_of_the_host() {
    let server = TestServer::start();
    let name = format!("bellglass-escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let attempts = [
        (format!("connect('\\0{name}')"), "ECONNREFUSED"),
        (format!("connect('\\0{name}', kind=socket.SOCK_DGRAM)"), "ECONNREFUSED"),
        ("connect('\\0/tmp/.X11-unix/X0')".into(), "ECONNREFUSED"),
        (
            format!(
                "assert '{name}' not in pathlib.Path('/proc/net/unix').read_text()\nos.stat('/not-there')"
            ),
            "ENOENT",
        ),
    ];
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused(&server, &attempts).await;
    assert!(!was_knocked_at(&listener));
}

#[tokio::test]
async fn raw_and_packet_sockets() {
    let attempts = [
        ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "EPERM"),
        ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)", "EPERM"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)", "EPERM"),
        ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)", "EPERM"),
        ("socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x300)", "EPERM"),
        ("socket.socket(socket.AF_INET, 10)", "EPERM"),
        // Flags beside the kind must not hide it.
        ("socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 1)", "EPERM"),
        ("call('socketpair', 17, 3, 0, bytes(8))", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn netlink() {
    // An answer of the kernel's own: the error stands in the message.
    let ask = |kind: u16, body: &str| {
        format!(
            r"
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
body = {body}
link.send(struct.pack('<IHHII', 16 + len(body), {kind}, 5, 1, 0) + body)
answer = link.recv(4096)
number = -struct.unpack('<i', answer[16:20])[0]
def fail():
    raise OSError(number, 'answered')
fail()
"
        )
    };
    let set_link = ask(16, "struct.pack('<BxHiII', 0, 0, 1, 0, 1)");
    let add_address = ask(
        20,
        "struct.pack('<BBBBi', 2, 32, 0, 0, 1) + struct.pack('<HH4s', 8, 2, b'\\x0a\\0\\0\\1')",
    );
    let add_route = ask(24, "struct.pack('<BBBBBBBBI', 2, 0, 0, 0, 254, 3, 0, 1, 0)");
    let attempts = [
        (set_link.as_str(), "EPERM"),
        (add_address.as_str(), "EPERM"),
        (add_route.as_str(), "EPERM"),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)", "EPERM"), // device events
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)", "EPERM"),  // audit
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)", "EPERM"), // packet filters
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)", "EPERM"), // generic
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)", "EPERM"),  // ipsec
        // The kernel looks at 32 bits of the protocol.
        ("call('socket', 16, 3, 0x10000000f)", "EPERM"),
    ];
    assert_refused_to_root_too(&attempts).await;
    // Who is root of a network asks the kernel for nothing there, neither devices nor queues.
    let make_device =
        ask(16, "struct.pack('<BxHiII', 0, 0, 0, 0, 0) + struct.pack('<HH8s', 12, 3, b'tap7')");
    let make_queue = ask(36, "struct.pack('<BxxxiIII', 0, 1, 0, 0xffffffff, 0)");
    let attempts = [(make_device.as_str(), "EPERM"), (make_queue.as_str(), "EPERM")];
    assert_refused_to_root_too(&attempts).await;
}

#[tokio::test]
async fn vsock() {
    let attempts = [
        ("socket.socket(40, socket.SOCK_STREAM)", "EPERM"),
        ("socket.socket(40, socket.SOCK_DGRAM)", "EPERM"),
        ("call('socket', 0x100000028, 1, 0)", "EPERM"),
        ("os.open('/dev/vsock', os.O_RDWR)", "ENOENT"),
        ("os.open('/dev/vhost-vsock', os.O_RDWR)", "ENOENT"),
    ];
    assert_refused_to_all(&attempts).await;
}

/// Root of a user namespace has a network of its own to filter, by code of the kernel that had many
/// holes. Without the rule the kernel itself would let it.
#[tokio::test]
async fn packet_filters() {
    const BLOCKS: [(u32, std::ops::Range<u32>); 5] =
        [(0, 64..68), (41, 64..66), (41, 68..70), (0, 96..100), (0, 128..132)];
    let options =
        BLOCKS.into_iter().flat_map(|(level, block)| block.map(move |option| (level, option)));
    let tries = options.flat_map(|(level, option)| {
        let family = if level == 41 { "socket.AF_INET6" } else { "socket.AF_INET" };
        let socket = format!("socket.socket({family}, socket.SOCK_DGRAM)");
        [
            format!("{socket}.setsockopt({level}, {option}, bytes(128))"),
            format!("{socket}.getsockopt({level}, {option}, 128)"),
        ]
    });
    let tries: Vec<String> = tries.collect();
    let mut attempts: Vec<_> = tries.iter().map(|code| (code.as_str(), "EPERM")).collect();
    attempts.push(("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)", "EPERM"));
    assert_refused_to_nested_root(&attempts).await;
}
