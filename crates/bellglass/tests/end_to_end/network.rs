//! The one way out of a sandbox: what a policy allows is reached, all else is refused and recorded.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{Options, TestServer, shell, step};

/// A server on the host's loopback. It says hello and remembers what it was asked.
struct Host {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Host {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let remembered = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => request.push(byte),
                        Err(_) => break,
                    }
                }
                remembered.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// A server whose operator lets sandboxes reach this machine's loopback, as no default does.
fn trusting_server() -> TestServer {
    let config = "[network]\nprivate_exceptions = [\"127.0.0.1\"]\n";
    TestServer::with(Options { config, ..Options::default() })
}

async fn connections(server: &TestServer, job: &Value) -> Vec<(String, u64, String)> {
    let log = server.log(job["job_id"].as_str().unwrap()).await;
    log.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["type"] == "network.connection")
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            (text("host"), event["port"].as_u64().unwrap(), text("verdict"))
        })
        .collect()
}

#[tokio::test]
async fn what_is_allowed_is_reached_by_every_kind_of_client() {
    let (server, host) = (trusting_server(), Host::start().await);
    let port = host.port;
    // Programs leave loopback out of their proxies by themselves, so they are told not to.
    let proxy = "--noproxy '' -sS -x http://127.0.0.1:3128";
    let socks = "--noproxy '' -sS --socks5-hostname 127.0.0.1:3128";
    let job = server
        .run(&json!({
            "network": { "allow": [format!("127.0.0.1:{port}")] },
            "steps": [
                shell(&format!("curl {proxy} http://127.0.0.1:{port}/plain")),
                shell(&format!("curl {proxy} -p http://127.0.0.1:{port}/tunnel")),
                shell(&format!("curl {socks} http://127.0.0.1:{port}/socks")),
                shell(&format!("curl {proxy} -H 'Host: other.example' http://127.0.0.1:{port}/host")),
                shell(&format!("curl {proxy} -o /dev/null -w '%{{http_code}}' http://127.0.0.1:1/")),
                shell(&format!("curl {proxy} http://elsewhere.example/")),
                shell("echo $HTTPS_PROXY $http_proxy"),
            ],
        }))
        .await;
    for n in 1..=4 {
        assert_eq!(step(&job, n)["stdout"], "hello\n", "{}", step(&job, n));
    }
    assert_eq!(step(&job, 5)["stdout"], "403");
    let refusal = step(&job, 6)["stdout"].as_str().unwrap();
    assert!(
        refusal.contains("elsewhere.example:80 is not in this job's network policy"),
        "{refusal}"
    );
    assert_eq!(step(&job, 7)["stdout"], "http://127.0.0.1:3128 http://127.0.0.1:3128\n");

    let asked = host.asked();
    assert_eq!(asked.len(), 4);
    assert!(asked[0].starts_with("GET /plain HTTP/1.1\r\n"), "{}", asked[0]);
    assert!(!asked[0].to_lowercase().contains("proxy"), "{}", asked[0]);
    // The host that was judged is the host that is asked for.
    assert!(asked[3].contains(&format!("host: 127.0.0.1:{port}\r\n")), "{}", asked[3]);

    let seen = connections(&server, &job).await;
    let here = ("127.0.0.1".to_owned(), u64::from(port), "allowed".to_owned());
    assert!(seen.contains(&here), "{seen:?}");
    let refused = |host: &str, port| (host.to_owned(), port, "refused_by_policy".to_owned());
    assert!(seen.contains(&refused("127.0.0.1", 1)), "{seen:?}");
    assert!(seen.contains(&refused("elsewhere.example", 80)), "{seen:?}");
}

#[tokio::test]
async fn an_open_network_does_not_lead_back_to_the_host() {
    let (server, host) = (TestServer::start(), Host::start().await);
    let port = host.port;
    let ways = [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "2130706433",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "169.254.169.254",
        "10.0.0.1",
    ];
    // Raw requests: clients like curl would tidy up such names.
    let ask = |way: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; \
             printf 'CONNECT {way}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; head -n 1 <&3"
        )
    };
    let steps: Vec<Value> = ways.iter().map(|way| shell(&ask(way))).collect();
    let job = server.run(&json!({ "network": "open", "steps": steps })).await;
    for (n, way) in ways.iter().enumerate() {
        let answer = step(&job, n + 1)["stdout"].as_str().unwrap();
        let refused = ["HTTP/1.1 403", "HTTP/1.1 502", "HTTP/1.1 400"];
        assert!(refused.iter().any(|code| answer.starts_with(code)), "{way}: {answer}");
    }
    assert_eq!(host.asked(), Vec::<String>::new());
    let seen = connections(&server, &job).await;
    assert!(seen.iter().all(|(_, _, verdict)| verdict != "allowed"), "{seen:?}");
    assert!(seen.iter().any(|(_, _, verdict)| verdict == "refused_private_address"), "{seen:?}");
}

#[tokio::test]
async fn without_a_policy_there_is_no_proxy() {
    let server = TestServer::start();
    let command = "env | grep -ci proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>&1 | grep -q refused && echo refused";
    let job = server.run(&json!({ "steps": [shell(command)] })).await;
    assert_eq!(step(&job, 1)["stdout"], "0\nrefused\n");
    assert_eq!(connections(&server, &job).await, []);
}

#[tokio::test]
async fn garbage_harms_nobody_but_its_sender() {
    let (server, host) = (trusting_server(), Host::start().await);
    let send = |bytes: &str| {
        shell(&format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; printf '{bytes}' >&3; timeout 1 head -c 200 <&3; true"
        ))
    };
    let proxy = "--noproxy '' -sS -x http://127.0.0.1:3128";
    let job = server
        .run(&json!({
            "network": { "allow": [format!("127.0.0.1:{}", host.port)] },
            "steps": [
                send("\\x05\\xff"),
                send("\\x05\\x01\\x00\\x05\\x02\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50"),
                send("GET / HTTP/1.1\\r\\n\\r\\n"),
                send("\\x00\\x01\\x02\\x03\\r\\n\\r\\n"),
                shell("for i in $(seq 300); do (exec 3<>/dev/tcp/127.0.0.1/3128; sleep 5) & done; true"),
                shell(&format!("pkill sleep; curl {proxy} http://127.0.0.1:{}/", host.port)),
            ],
        }))
        .await;
    assert_eq!(job["status"], "completed");
    assert!(step(&job, 3)["stdout"].as_str().unwrap().starts_with("HTTP/1.1 400"));
    assert_eq!(step(&job, 6)["stdout"], "hello\n", "{}", step(&job, 6));
}
