//! The world, without and past the proxy; and addresses that no policy opens.

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::attempt::{assert_refused, assert_refused_in, look_in};
use crate::support::TestServer;

/// What every cloud serves its secrets on, in every spelling.
const METADATA: [&str; 14] = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "[::ffff:168.63.129.16]",
    "[fd00:ec2::254]",
    "[fe80::a9fe:a9fe]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
];

/// Asks the proxy for a tunnel to each place and prints the status of each answer.
pub(crate) fn tunnels(places: &[String]) -> String {
    format!(
        r"
statuses = {{}}
for place in json.loads({}):
    with socket.create_connection(('127.0.0.1', 3128), timeout=30) as proxy:
        proxy.sendall(f'CONNECT {{place}} HTTP/1.1\r\nHost: x\r\n\r\n'.encode())
        statuses[place] = proxy.makefile('rb').readline().decode(errors='replace')[9:12]
print(json.dumps(statuses))
",
        crate::attempt::python_text(&json!(places).to_string())
    )
}

/// No place was reached: the proxy refused each, or could not read it.
fn assert_none_reached(statuses: &Value, places: &[String]) {
    for place in places {
        let status = statuses[place].as_str().unwrap();
        assert!(["400", "403", "502"].contains(&status), "{place}: {status:?}");
    }
}

#[tokio::test]
async fn leaving_without_the_proxy() {
    let server = TestServer::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = |address: &str, port: u16| {
        format!("socket.create_connection(('{address}', {port}), timeout=5)")
    };
    let attempts = [
        (to("127.0.0.1", port), "ECONNREFUSED"),
        (to("::1", port), "ECONNREFUSED|EADDRNOTAVAIL"),
        (to("192.0.2.1", 80), "ENETUNREACH"),
        (to("169.254.169.254", 80), "ENETUNREACH"),
        (to("10.0.0.1", 80), "ENETUNREACH"),
        (to("2001:db8::1", 80), "ENETUNREACH|EADDRNOTAVAIL"),
        (
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
                .into(),
            "ENETUNREACH",
        ),
        (
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'eth0\\0')"
                .into(),
            "ENODEV|EPERM",
        ),
    ];
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused(&server, &attempts).await;
    // An open policy opens the proxy and nothing beside it.
    assert_refused_in(&server, json!({ "network": "open" }), &attempts).await;
    let knocked = std::future::poll_fn(|context| {
        std::task::Poll::Ready(listener.poll_accept(context).is_ready())
    });
    assert!(!knocked.await);
}

#[tokio::test]
async fn metadata_addresses() {
    let server = TestServer::start();
    let places: Vec<String> = METADATA.iter().map(|host| format!("{host}:80")).collect();
    let (statuses, job) = look_in(&server, json!({ "network": "open" }), &tunnels(&places)).await;
    assert_none_reached(&statuses, &places);
    let log = server.log(job["job_id"].as_str().unwrap()).await;
    assert!(log.contains("refused_private_address"), "{log}");
    // Not even tried: where there is no such service, a try would look like a refusal.
    for tried in ["allowed", "not_connected"] {
        assert!(!log.contains(&format!("\"verdict\":\"{tried}\"")), "{log}");
    }
}

#[tokio::test]
async fn private_ranges() {
    let server = TestServer::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let places: Vec<String> = [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "localhost",
        "LOCALHOST.",
        "127.1",
        "0",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fe80::1%25lo]",
        "[fc00::1]",
        "[ff02::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
    ]
    .iter()
    .map(|host| format!("{host}:{port}"))
    .collect();
    let (statuses, job) = look_in(&server, json!({ "network": "open" }), &tunnels(&places)).await;
    assert_none_reached(&statuses, &places);
    let knocked = std::future::poll_fn(|context| {
        std::task::Poll::Ready(listener.poll_accept(context).is_ready())
    });
    assert!(!knocked.await);
    let log = server.log(job["job_id"].as_str().unwrap()).await;
    assert!(!log.contains("\"verdict\":\"allowed\""), "{log}");
}
