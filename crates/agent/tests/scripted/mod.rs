//! A scripted model server: real HTTP on loopback, three wire formats, and able to misbehave.
//!
//! Answers come from a script, one for each request, whatever is asked; what was asked is kept.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

mod wire_formats;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A whole answer.
    Say(Said),
    /// A whole answer that the rest of the script waits for: it is given when [`Scripted::go_on`]
    /// is called.
    SayLater(Said),
    /// A whole answer whose second half waits until [`Scripted::go_on`] is called.
    SayInHalves(Said),
    /// An error with a status and a body, and perhaps a header.
    Fail { status: u16, body: String, header: Option<(&'static str, &'static str)> },
    /// An answer that breaks off in the middle.
    Cut(Said),
    /// Status 200, and then an error inside the stream.
    ErrorInside { kind: &'static str, message: &'static str },
    /// A stream that begins and ends without saying anything.
    NoChoices,
    /// An answer that breaks off in the middle of a call's arguments.
    CutCall(Said),
    /// An event that is no JSON.
    NotJson,
    /// A server that takes the request and says nothing.
    Silence,
    /// The first half of an answer, and then nothing, though the connection stays.
    SilenceInside(Said),
}

/// What a model says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) reasoning: Option<String>,
    pub(crate) text: String,
    /// Names and arguments. Arguments are sent in fragments of a few bytes.
    pub(crate) calls: Vec<(String, String)>,
    /// Tokens read, those of them that were cached, and tokens written.
    pub(crate) usage: Option<(u64, u64, u64)>,
}

impl Said {
    pub(crate) fn text(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub(crate) fn call(name: &str, arguments: Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    pub(crate) fn and_call(mut self, name: &str, arguments: Value) -> Self {
        self.calls.push((name.into(), arguments.to_string()));
        self
    }

    pub(crate) fn finish(summary: &str) -> Self {
        Self::call("finish", serde_json::json!({ "outcome": "done", "summary": summary }))
    }
}

/// A request as the server got it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// All header lines, names in lower case.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Value,
}

/// A running server. It ends with the test.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    script: Mutex<VecDeque<Reply>>,
    /// What requests without tools are answered, such as those for a summary. Else the script counts.
    aside: Mutex<Option<Said>>,
    asked: Mutex<Vec<Asked>>,
    /// Somebody has asked.
    news: Notify,
    go_on: Notify,
}

impl Scripted {
    pub(crate) async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self(Arc::new(Inner {
            address: listener.local_addr().unwrap(),
            script: Mutex::new(script.into_iter().collect()),
            aside: Mutex::default(),
            asked: Mutex::default(),
            news: Notify::new(),
            go_on: Notify::new(),
        }));
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = serving.clone();
                tokio::spawn(async move {
                    // A client that goes away is no failure of the server's.
                    let _ = server.serve(stream).await;
                });
            }
        });
        server
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.0.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap().clone()
    }

    pub(crate) fn left(&self) -> usize {
        self.0.script.lock().unwrap().len()
    }

    /// Adds to the end of the script what only now is known.
    pub(crate) fn then(&self, reply: Reply) {
        self.0.script.lock().unwrap().push_back(reply);
    }

    /// Answers every request without tools so from now on, apart from the script.
    pub(crate) fn answer_aside(&self, said: Said) {
        *self.0.aside.lock().unwrap() = Some(said);
    }

    /// Waits until so many requests have come.
    pub(crate) async fn asked_times(&self, times: usize) {
        loop {
            let news = self.0.news.notified();
            if self.0.asked.lock().unwrap().len() >= times {
                return;
            }
            news.await;
        }
    }

    /// Lets an answer go that waits, or the next that will.
    pub(crate) fn go_on(&self) {
        self.0.go_on.notify_one();
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let Some(asked) = read_request(&mut stream).await? else { return Ok(()) };
        let path = asked.path.clone();
        if path.ends_with("/models") {
            let body = r#"{"data":[{"id":"scripted"},{"id":"other"}]}"#;
            return respond(&mut stream, 200, "application/json", None, body).await;
        }
        let aside = match asked.body["tools"].is_null() {
            true => self.0.aside.lock().unwrap().clone().map(Reply::Say),
            false => None,
        };
        self.0.asked.lock().unwrap().push(asked);
        self.0.news.notify_waiters();
        let reply = aside.or_else(|| self.0.script.lock().unwrap().pop_front());
        let (reply, later) = match reply {
            Some(Reply::SayLater(said)) => (Some(Reply::Say(said)), true),
            reply => (reply, false),
        };
        if later {
            self.0.go_on.notified().await;
        }
        match reply {
            None => {
                let body =
                    r#"{"error":{"type":"invalid_request_error","message":"the script is over"}}"#;
                respond(&mut stream, 400, "application/json", None, body).await
            }
            Some(Reply::Fail { status, body, header }) => {
                respond(&mut stream, status, "application/json", header, &body).await
            }
            Some(Reply::Silence) => std::future::pending().await,
            Some(reply) => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                let events = wire_formats::events(&path, &reply);
                let half = events.len() / 2;
                for (at, event) in events.into_iter().enumerate() {
                    match &reply {
                        Reply::SayInHalves(_) if at == half => self.0.go_on.notified().await,
                        Reply::SilenceInside(_) if at == half => std::future::pending().await,
                        _ => {}
                    }
                    // One event in two chunks, as networks do.
                    for piece in event.as_bytes().chunks(event.len().div_ceil(2).max(1)) {
                        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
                        stream.write_all(piece).await?;
                        stream.write_all(b"\r\n").await?;
                        stream.flush().await?;
                    }
                }
                // A stream that is cut has no last chunk.
                if !matches!(reply, Reply::Cut(_) | Reply::CutCall(_)) {
                    stream.write_all(b"0\r\n\r\n").await?;
                }
                stream.shutdown().await
            }
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Asked>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let path = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
    let headers: Vec<String> = lines[1..]
        .iter()
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            format!("{}: {}", name.to_lowercase(), value.trim())
        })
        .collect();
    let length = headers.iter().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Some(Asked { path, headers, body }))
}

async fn respond(
    stream: &mut BufReader<TcpStream>,
    status: u16,
    kind: &str,
    header: Option<(&str, &str)>,
    body: &str,
) -> std::io::Result<()> {
    let header = header.map_or(String::new(), |(name, value)| format!("{name}: {value}\r\n"));
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
