//! Tricks with the proxy's requests: to ask one host and reach another, or to ask twice at once.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::attempt::{look_in, python_text};
use crate::support::{Options, TestServer};

/// A server on the host's loopback that keeps every byte of every connection.
struct Recorder {
    port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    connections: TaskTracker,
}

impl Recorder {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let connections = TaskTracker::new();
        let (kept, tracker) = (heard.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let kept = kept.clone();
                tracker.spawn(async move {
                    let mut bytes = Vec::new();
                    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
                        if !matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {
                            break;
                        }
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
                    let _ = stream.write_all(answer).await;
                    // The whole of what is sent, up to its end.
                    let _ = stream.read_to_end(&mut bytes).await;
                    kept.lock().unwrap().push(bytes);
                });
            }
        });
        Self { port, heard, connections }
    }

    /// What was heard, once all connections are over.
    async fn heard(&self) -> Vec<String> {
        self.connections.close();
        self.connections.wait().await;
        let heard = self.heard.lock().unwrap();
        heard.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

/// The one request in a text. Panics where a server could see a second one, or see none.
fn only_request(text: &str) -> (Vec<&str>, &str) {
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let lines: Vec<&str> = head.split("\r\n").collect();
    assert!(lines.iter().all(|line| !line.contains(['\r', '\n'])), "a broken line: {text:?}");
    let all = |name: &str| -> Vec<String> {
        let headers = lines[1..].iter().map(|line| line.split_once(':').expect("a header"));
        let wanted = headers.filter(|(header, _)| header.eq_ignore_ascii_case(name));
        wanted.map(|(_, value)| value.trim().to_ascii_lowercase()).collect()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    assert!(lengths.len() + codings.len() <= 1, "two lengths: {text:?}");
    assert_eq!(all("host").len(), 1, "{text:?}");
    let body = match (lengths.first(), codings.first()) {
        (Some(length), _) => length.parse().unwrap(),
        (_, Some(coding)) => {
            assert_eq!(coding, "chunked", "{text:?}");
            chunked_length(rest)
        }
        _ => 0,
    };
    assert!(rest.len() <= body, "{:?} comes after the request in {text:?}", &rest[body..]);
    (lines, rest)
}

fn chunked_length(text: &str) -> usize {
    let mut at = 0;
    loop {
        let Some((size, _)) = text[at..].split_once("\r\n") else { return text.len() };
        let data = usize::from_str_radix(size, 16).expect("a plain chunk size");
        at += size.len() + 2 + data + 2;
        if data == 0 || at >= text.len() {
            return at;
        }
    }
}

/// Sends each text to the proxy on a connection of its own; the answers are returned.
fn sending(requests: &[String]) -> String {
    format!(
        r"
answers = []
for request in json.loads({}):
    with socket.create_connection(('127.0.0.1', 3128), timeout=30) as proxy:
        proxy.sendall(request.encode('latin-1'))
        answer = b''
        try:
            while piece := proxy.recv(65536): answer += piece
        except OSError: pass
        answers.append(answer.decode('latin-1'))
print(json.dumps(answers))
",
        python_text(&json!(requests).to_string())
    )
}

/// Whatever was sent: the forbidden host hears nothing, and the allowed one whole single requests.
async fn assert_harmless(requests: impl Fn(&str, &str) -> Vec<String>) -> (Value, Vec<String>) {
    let config = "[network]\nprivate_exceptions = [\"127.0.0.1\"]\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    let (allowed, forbidden) = (Recorder::start().await, Recorder::start().await);
    let place = |recorder: &Recorder| format!("127.0.0.1:{}", recorder.port);
    let requests = requests(&place(&allowed), &place(&forbidden));
    let job = json!({ "network": { "allow": [place(&allowed)] } });
    let (answers, _) = look_in(&server, job, &sending(&requests)).await;
    // All connections of the sandbox are over with it.
    drop(server);
    assert_eq!(forbidden.heard().await, Vec::<String>::new());
    let heard = allowed.heard().await;
    // A connection that was broken off before its request brought nothing.
    for text in heard.iter().filter(|text| !text.is_empty()) {
        let (lines, _) = only_request(text);
        assert!(!lines[0].contains("smuggled"), "{text:?}");
        assert!(lines.contains(&format!("host: {}", place(&allowed)).as_str()), "{text:?}");
        assert!(lines.iter().all(|line| !line.to_lowercase().starts_with("proxy-")), "{text:?}");
    }
    (answers, heard)
}

#[tokio::test]
async fn request_smuggling() {
    let (answers, heard) = assert_harmless(|allowed, forbidden| {
        let last = "Connection: close\r\n\r\n";
        let hidden =
            format!("GET http://{forbidden}/smuggled HTTP/1.1\r\nHost: {forbidden}\r\n{last}");
        let plain = &format!("GET /smuggled HTTP/1.1\r\nHost: x\r\n{last}");
        let kept = |headers: &str, body: &str| {
            format!("POST http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\n{headers}\r\n{body}")
        };
        let post =
            |headers: &str, body: &str| kept(&format!("Connection: close\r\n{headers}"), body);
        let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let coded = |coding: &str| post(coding, &chunked(plain));
        let length = plain.len();
        vec![
            // Which length counts?
            kept(
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                &format!("0\r\n\r\n{hidden}"),
            ),
            kept(
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                &format!("0\r\n\r\n{plain}"),
            ),
            post(&format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), plain),
            post(&format!("Content-Length: {length}, 0\r\n"), plain),
            post(&format!("Content-Length: +{length}\r\n"), plain),
            post(&format!("Content-Length: -{length}\r\n"), plain),
            // Codings that one reads and the other does not.
            coded("Transfer-Encoding: xchunked\r\n"),
            coded("Transfer-Encoding: chunked, identity\r\n"),
            coded("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
            coded("Transfer-Encoding : chunked\r\n"),
            coded("Transfer-Encoding:\u{b}chunked\r\n"),
            coded("X: y\r\n Transfer-Encoding: chunked\r\n"),
            coded("X: y\nTransfer-Encoding: chunked\r\n"),
            coded("X: y\rTransfer-Encoding: chunked\r\n"),
            post("Transfer-Encoding: chunked\r\n", &format!("0;a=\n{plain}\r\n\r\n0\r\n\r\n")),
            post(
                "Transfer-Encoding: chunked\r\n",
                &format!("ffffffffffffffff0\r\n{plain}\r\n0\r\n\r\n"),
            ),
            kept(
                "Transfer-Encoding: chunked\r\n",
                &format!("0\r\nHost: {forbidden}\r\n\r\n{hidden}"),
            ),
            // Headers that are said to concern only this connection.
            post(&format!("Connection: content-length\r\nContent-Length: {length}\r\n"), plain),
            coded("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n"),
            post("Connection: host\r\nContent-Length: 0\r\n", ""),
            // A second request on a connection whose first was allowed.
            kept("Content-Length: 0\r\n", &hidden),
            kept("Expect: 100-continue\r\nContent-Length: 0\r\n", &hidden),
            // An upgrade would end the reading of requests.
            kept("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n", &hidden),
            kept(
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
                &hidden,
            ),
        ]
    })
    .await;
    // Some are plain requests and come through; where two readings are possible, none does.
    assert!(heard.len() >= 4, "{heard:#?}\n{answers:#}");
    for refused in [2, 3, 4, 5, 6, 9, 10] {
        let answer = answers[refused].as_str().unwrap();
        assert!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{refused}: {answer}");
    }
    let second = answers[20].as_str().unwrap();
    assert!(second.starts_with("HTTP/1.1 200") && second.contains("HTTP/1.1 403"), "{second}");
}

#[tokio::test]
async fn one_host_asked_and_another_meant() {
    let (answers, heard) = assert_harmless(|allowed, forbidden| {
        let get = |target: &str, host: &str| {
            format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        };
        let tunnel = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: {allowed}\r\nConnection: close\r\n\r\n");
        vec![
            get(&format!("http://{allowed}/"), forbidden),
            get(&format!("http://{forbidden}/"), allowed),
            get(&format!("http://{allowed}@{forbidden}/"), allowed),
            get(&format!("http://{allowed}%40{forbidden}/"), allowed),
            get(&format!("http://{allowed}#@{forbidden}/"), allowed),
            get(&format!("http://{allowed}?@{forbidden}/"), allowed),
            get(&format!("http://{allowed}\\@{forbidden}/"), allowed),
            get(&format!("http://{forbidden}%00.{allowed}/"), allowed),
            get(&format!("http://{forbidden}%0d%0aHost:{allowed}/"), allowed),
            get(&format!("http://{allowed}/a%0d%0aHost:%20{forbidden}"), allowed),
            get(&format!("http://{allowed}/ HTTP/1.1\r\nHost: {forbidden}\r\n\r\nGET /smuggled"), allowed),
            get("/", forbidden),
            get("*", forbidden),
            get(&format!("https://{allowed}/"), allowed),
            get(&format!("ftp://{allowed}/"), allowed),
            get(&format!("//{forbidden}/"), allowed),
            tunnel(forbidden),
            tunnel(&format!("{allowed}@{forbidden}")),
            tunnel(&format!("{forbidden}#{allowed}")),
            tunnel(&format!("http://{forbidden}/")),
            tunnel(""),
            format!("CONNECT {forbidden} HTTP/1.0\r\n\r\n"),
            format!("GET http://{forbidden}/\r\n\r\n"),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
            format!("GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nHost: {forbidden}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{allowed}/ HTTP/1.1\r\nHost: {allowed}\r\nX-Forwarded-Host: {forbidden}\r\nProxy-Authorization: Basic eDp5\r\nConnection: close\r\n\r\n"),
        ]
    })
    .await;
    assert!(heard.len() >= 4, "{heard:#?}");
    for refused in [1, 2, 3, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 23] {
        let answer = answers[refused].as_str().unwrap();
        let ok = ["HTTP/1.1 4", "HTTP/1.0 4", "HTTP/1.1 5"];
        assert!(
            answer.is_empty() || ok.iter().any(|ok| answer.starts_with(ok)),
            "{refused}: {answer}"
        );
    }
}

#[tokio::test]
async fn names_that_are_no_names() {
    let (answers, _) = assert_harmless(|allowed, forbidden| {
        let port = forbidden.rsplit(':').next().unwrap().parse::<u16>().unwrap();
        let [high, low] = port.to_be_bytes().map(char::from);
        // SOCKS 5: the name is so many bytes, and nothing says which.
        let ask = |name: &str| {
            let length = char::from(name.len() as u8);
            format!("\x05\x01\0\x05\x01\0\x03{length}{name}{high}{low}")
        };
        vec![
            ask("127.0.0.1"),
            ask(&format!("{allowed}\0127.0.0.1")),
            ask("127.0.0.1\r\nHost: x\r\n\r\nGET /smuggled HTTP/1.1"),
            ask("127.0.0.1\0"),
            ask(""),
            ask("[127.0.0.1]"),
            ask("127.0.0.1."),
            ask("\u{ff}\u{fe}"),
            ask(&".".repeat(255)),
            format!("\x05\x01\0\x05\x02\0\x01\x7f\0\0\x01{high}{low}"),
            format!("\x05\x01\0\x05\x03\0\x01\x7f\0\0\x01{high}{low}"),
            format!(
                "\x05\x01\0\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\u{ff}\u{ff}\x7f\0\0\x01{high}{low}"
            ),
            format!("\x05\x01\x02\x05\x01\0\x01\x7f\0\0\x01{high}{low}"),
            format!("\x04\x01{high}{low}\x7f\0\0\x01\0\r\n\r\n"),
        ]
    })
    .await;
    for answer in answers.as_array().unwrap() {
        let answer = answer.as_str().unwrap();
        let granted = answer.starts_with("\x05\0\x05\0");
        assert!(!granted, "{answer:?}");
    }
}
