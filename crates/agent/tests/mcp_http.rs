//! Our MCP client over real HTTP, with a server that forgets who it spoke to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bellglass_agent::mcp::http::{HttpPeer, Reach};
use bellglass_agent::mcp::{Connected, PATIENCE};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What came with a message: its method, and the headers about version and session.
type Heard = (String, Option<String>, Option<String>);

struct Server {
    address: SocketAddr,
    /// The conversation that it knows. The others are over.
    session: AtomicU32,
    heard: Mutex<Vec<Heard>>,
}

impl Server {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (session, heard) = (AtomicU32::new(1), Mutex::default());
        let server = Arc::new(Self { address, session, heard });
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.serve(stream).await;
            }
        });
        server
    }

    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
                None if line.trim().is_empty() => break,
                None => None,
            };
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let message: Value = serde_json::from_slice(&body).unwrap();
        let answer = self.answer(&message, &headers);
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }

    fn answer(&self, message: &Value, headers: &BTreeMap<String, String>) -> String {
        let header = |name: &str| headers.get(name).cloned();
        let (version, session) = (header("mcp-protocol-version"), header("mcp-session-id"));
        let method = message["method"].as_str().unwrap().to_owned();
        self.heard.lock().unwrap().push((method.clone(), version, session.clone()));
        let known = self.session.load(Ordering::SeqCst).to_string();
        let result = match method.as_str() {
            "initialize" => json!({ "protocolVersion": "2025-03-26" }),
            _ if session.as_ref() != Some(&known) => return respond("404 Not Found", "", ""),
            "tools/list" => json!({ "tools": [{ "name": "speak" }] }),
            "tools/call" => json!({ "content": [{ "type": "text", "text": "spoken" }] }),
            _ => return respond("202 Accepted", "", ""),
        };
        let body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string();
        respond("200 OK", &format!("mcp-session-id: {known}\r\n"), &body)
    }
}

fn respond(status: &str, header: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{header}connection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_session_that_is_over_is_begun_again_in_the_version_that_is_agreed_on() {
    let server = Server::start().await;
    let url = format!("http://{}/mcp", server.address);
    let peer = HttpPeer::new(&url, BTreeMap::new(), Reach::Anywhere).unwrap();
    let connected = Connected::greet("it", Box::new(peer), PATIENCE).await.ok().unwrap();
    for _ in 0..2 {
        let result = connected.call("mcp__it__speak", &json!({})).await.unwrap();
        assert_eq!((result.text.as_str(), result.failed), ("spoken", false));
        server.session.fetch_add(1, Ordering::SeqCst);
    }
    let heard = server.heard.lock().unwrap();
    let heard: Vec<(&str, Option<&str>, Option<&str>)> =
        heard.iter().map(|(m, v, s)| (m.as_str(), v.as_deref(), s.as_deref())).collect();
    let agreed = Some("2025-03-26");
    assert_eq!(
        heard,
        [
            ("initialize", None, None),
            ("notifications/initialized", agreed, Some("1")),
            ("tools/list", agreed, Some("1")),
            ("tools/call", agreed, Some("1")),
            ("tools/call", agreed, Some("1")),
            ("initialize", None, None),
            ("notifications/initialized", agreed, Some("2")),
            ("tools/call", agreed, Some("2")),
        ]
    );
}
