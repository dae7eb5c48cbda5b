//! What the proxy adds to a connection: the same requests through it and without it, in turn.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::network::{Connection, NetworkPolicy};
use bellglass_protocol::wire::Equipment;
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::egress::{ConnectionLog, Egress, EgressSettings};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::idle::kilobytes;
use crate::subject::{Failure, Ours, run};

struct Nobody;

impl ConnectionLog for Nobody {
    fn connection(&self, _: Connection) {}
}

/// A connection, a request and its answer, so many times; prints milliseconds. Run both on the host,
/// where the address is the server's, and inside, where it is the proxy's.
const CLIENT: &str = r#"
import json, socket, sys, time
host, port, target, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
times = []
for _ in range(count):
    start = time.perf_counter()
    with socket.create_connection((host, port)) as s:
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := s.recv(65536):
            answer += piece
    times.append((time.perf_counter() - start) * 1000)
    assert answer.endswith(b"hello"), answer
print(json.dumps(times))
"#;

/// So many connections are open at once while memory is looked at; a guest relays 48 at the most.
const AT_ONCE: usize = 40;

/// Holds connections that the proxy relays until its input ends.
const HOLDER: &str = r#"
import socket, sys, time, os
held = []
for _ in range(int(sys.argv[3])):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.sendall(f"CONNECT 127.0.0.1:{sys.argv[2]} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert b" 200 " in s.recv(65536)
    s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert s.recv(65536)
    held.append(s)
print("held", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"#;

pub(crate) async fn measure(ours: &Ours, connections: usize) -> Result<Value, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener));
    let settings = EgressSettings {
        private_exceptions: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        ..EgressSettings::default()
    };
    let egress = Arc::new(Egress::new(NetworkPolicy::Open, Arc::new(settings), Arc::new(Nobody)));
    let sandbox = ours.start().await?;
    sandbox.guest().open_way_out(egress, Equipment::default()).await?;
    let (mut direct, mut proxied): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    // A few at a time in turn, in the same Python for both.
    const TURNS: usize = 5;
    for turn in 0..TURNS {
        let count = (connections / TURNS).max(1);
        direct.extend(on_the_host(server, count).await?);
        proxied.extend(inside(&sandbox, server, count, turn).await?);
    }
    let memory = memory_of_held_connections(&sandbox, server).await?;
    sandbox.destroy().await?;
    serving.abort();
    Ok(json!({
        "direct": direct,
        "proxied": proxied,
        "held": AT_ONCE,
        "memory": memory,
    }))
}

async fn on_the_host(server: SocketAddr, count: usize) -> Result<Vec<f64>, Failure> {
    let port = server.port().to_string();
    let output = tokio::process::Command::new("python3")
        .args(["-c", CLIENT, "127.0.0.1", &port, "/", &count.to_string()])
        .output()
        .await?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned().into())
}

async fn inside(
    sandbox: &Sandbox,
    server: SocketAddr,
    count: usize,
    turn: usize,
) -> Result<Vec<f64>, Failure> {
    let id = CallId::of_step(turn as u32 + 1);
    let line = format!("python3 -c '{CLIENT}' 127.0.0.1 3128 http://{server}/ {count}");
    let output = run(sandbox, &id, &line).await?.text;
    serde_json::from_slice(&output)
        .map_err(|_| String::from_utf8_lossy(&output).into_owned().into())
}

/// How much this process grew by them, in bytes.
async fn memory_of_held_connections(sandbox: &Sandbox, server: SocketAddr) -> Result<u64, Failure> {
    let own = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        kilobytes(&text, "RssAnon:").unwrap_or(0)
    };
    let before = own();
    let id = CallId::of_step(100);
    let line = format!("python3 -c '{HOLDER}' 3128 {} {AT_ONCE} 2>&1", server.port());
    let holding = async {
        match run(sandbox, &id, &line).await?.text.as_slice() {
            b"held\n" => Ok(()),
            said => Err(Failure::from(String::from_utf8_lossy(said))),
        }
    };
    let looking = async {
        // Until every one of them is open, which the server hears of.
        while OPEN.load(Relaxed) < AT_ONCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let grown = own().saturating_sub(before);
        let go = futures::stream::iter([Ok(bytes::Bytes::new())]);
        sandbox.guest().write_file("go", false, go).await?;
        Ok(grown)
    };
    let ((), grown) = tokio::try_join!(holding, looking)?;
    Ok(grown)
}

/// Connections to the server that have asked for something and are still open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

async fn serve(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream));
    }
}

async fn answer(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut request).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n";
    let stays = !request.to_ascii_lowercase().windows(17).any(|part| part == b"connection: close");
    let end = if stays { "\r\n" } else { "Connection: close\r\n\r\n" };
    let _ = stream.write_all(format!("{head}{end}hello").as_bytes()).await;
    if stays {
        OPEN.fetch_add(1, Relaxed);
        let mut rest = [0; 1];
        let _ = stream.read(&mut rest).await;
        OPEN.fetch_sub(1, Relaxed);
    }
}
