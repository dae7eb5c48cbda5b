//! The one way out of a sandbox: what a policy allows is reached, all else is refused and recorded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Options, TestServer, python, shell, step};

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

/// A server that says nothing and never closes, whatever its clients do.
async fn deaf_server() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Python that has a tunnel to this port of the host's loopback in `s`, through which it has sent four bytes.
fn tunnel(port: u16) -> String {
    format!(
        "import socket, struct, time\n\
         def tunnel():\n\
         \x20   s = socket.create_connection(('127.0.0.1', 3128))\n\
         \x20   s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n\
         \x20   assert s.recv(100).split()[1] == b'200'\n\
         \x20   s.sendall(b'sent')\n\
         \x20   return s\n"
    )
}

/// Waits until nobody has the other end of a connection any more.
async fn wait_until_gone(mut connection: TcpStream) {
    while connection.write_all(b"x").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_connection_whose_server_never_closes_ends_with_its_job_and_is_recorded() {
    let server = trusting_server();
    let (listener, port) = deaf_server().await;
    let place = format!("127.0.0.1:{port}");
    let code = format!("{}tunnel().close()", tunnel(port));
    let body = json!({ "network": { "allow": [place] }, "steps": [python(&code)] });
    let job = server.submit(&body).await;
    let (mut far, _) = listener.accept().await.unwrap();
    let mut sent = Vec::new();
    far.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, b"sent");
    let done = server.wait_for_end(&job).await;
    assert_eq!(done["status"], "completed", "{done:#}");
    let here = ("127.0.0.1".to_owned(), u64::from(port), "allowed".to_owned());
    assert_eq!(connections(&server, &done).await, [here]);
    wait_until_gone(far).await;
}

#[tokio::test]
async fn a_connection_that_is_open_when_the_server_is_stopped_is_recorded() {
    let mut server = trusting_server();
    let (listener, port) = deaf_server().await;
    let place = format!("127.0.0.1:{port}");
    let code = format!("{}s = tunnel()\nwhile True: time.sleep(1)", tunnel(port));
    let body = json!({ "network": { "allow": [place] }, "steps": [python(&code)] });
    let job = server.submit(&body).await;
    let (mut far, _) = listener.accept().await.unwrap();
    let mut sent = [0; 4];
    far.read_exact(&mut sent).await.unwrap();
    assert!(server.stop().success());
    wait_until_gone(far).await;
    server.start_again();
    let here = ("127.0.0.1".to_owned(), u64::from(port), "allowed".to_owned());
    assert_eq!(connections(&server, &json!({ "job_id": job })).await, [here]);
    server.cancel(&job).await;
    server.wait_for_end(&job).await;
}

/// More of them than one wire has room for: what is left of each must go with it.
#[tokio::test]
async fn connections_that_are_broken_off_cost_nobody_the_sandbox() {
    let server = trusting_server();
    let (listener, port) = deaf_server().await;
    let place = format!("127.0.0.1:{port}");
    let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    }));
    let code = format!(
        "{}for _ in range(400):\n\
         \x20   s = tunnel()\n\
         \x20   s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
         \x20   s.close()",
        tunnel(port)
    );
    let steps = [python(&code), shell("echo still here")];
    let done = server.run(&json!({ "network": { "allow": [place] }, "steps": steps })).await;
    assert_eq!(done["status"], "completed", "{done:#}");
    assert_eq!(step(&done, 2)["stdout"], "still here\n");
    drop(accepting);
    let log = server.log(done["job_id"].as_str().unwrap()).await;
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let connections = events.filter(|event| event["type"] == "network.connection");
    let counted: u64 = connections.map(|event| event["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(counted, 400);
    assert!(!log.contains("sandbox.lost"), "{log}");
}
