//! An MCP server over streamable HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::is_public;
use eventsource_stream::Eventsource as _;
use futures::StreamExt as _;
use reqwest::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use super::{MOST_MESSAGE, McpError, Peer, answer_to, outcome};
use crate::model::Secret;

/// Which addresses may be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The operator named the server, wherever it is.
    Anywhere,
    /// A job did, which must not make the worker reach into the operator's network.
    PublicOnly,
}

/// How long to wait before a stream is gone on with, where the server does not say.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How often one answer is waited for in a new stream. How long it may take in all is for others to
/// say.
const MOST_STREAMS: usize = 100;

pub struct HttpPeer {
    client: reqwest::Client,
    url: String,
    headers: BTreeMap<String, Secret>,
    agreed: Mutex<Agreed>,
}

/// What was agreed on with the server.
#[derive(Clone, Default)]
struct Agreed {
    /// The version of the protocol.
    version: Option<String>,
    /// What the server calls our conversation.
    session: Option<String>,
}

impl HttpPeer {
    pub fn new(
        url: &str,
        headers: BTreeMap<String, Secret>,
        reach: Reach,
    ) -> Result<Self, McpError> {
        let unusable = |error: String| McpError::NotReached(error);
        let builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(20))
            // A redirection would carry headers elsewhere, and lead past the check of addresses.
            .redirect(reqwest::redirect::Policy::none());
        let builder = match reach {
            Reach::Anywhere => builder,
            Reach::PublicOnly => {
                let parsed =
                    reqwest::Url::parse(url).map_err(|error| unusable(error.to_string()))?;
                let host = parsed.host_str().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']');
                if let Ok(address) = host.parse()
                    && !is_public(address)
                {
                    return Err(unusable(not_public(host)));
                }
                builder.dns_resolver(Arc::new(PublicOnly)).no_proxy()
            }
        };
        let client = builder.build().map_err(|error| unusable(error.to_string()))?;
        Ok(Self { client, url: url.to_owned(), headers, agreed: Mutex::default() })
    }

    async fn post(&self, body: &Value) -> Result<reqwest::Response, McpError> {
        let request = self.client.post(&self.url).json(body);
        self.send(request.header(ACCEPT, "application/json, text/event-stream")).await
    }

    /// Goes on with a stream that ended, behind the last event of it that came.
    async fn go_on(&self, last_event: &str) -> Result<reqwest::Response, McpError> {
        let request = self.client.get(&self.url).header(ACCEPT, "text/event-stream");
        self.send(request.header("last-event-id", last_event)).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, McpError> {
        let Agreed { version, session } = self.agreed().clone();
        let mut request = request;
        for (name, value) in &self.headers {
            request = request.header(name, value.reveal());
        }
        if let Some(version) = version {
            request = request.header("mcp-protocol-version", version);
        }
        if let Some(session) = &session {
            request = request.header("mcp-session-id", session);
        }
        let response = request.send().await.map_err(|error| {
            let mut words = error.without_url().to_string();
            self.headers.values().for_each(|secret| words = secret.redact(&words));
            McpError::NotReached(words)
        })?;
        if response.status() == StatusCode::NOT_FOUND && session.is_some() {
            return Err(McpError::Forgotten);
        }
        if !response.status().is_success() {
            return Err(McpError::Refused(format!("status {}", response.status().as_u16())));
        }
        if let Some(session) = response.headers().get("mcp-session-id")
            && let Ok(session) = session.to_str()
            && session.len() <= 1024
        {
            self.agreed().session = Some(session.to_owned());
        }
        Ok(response)
    }

    fn agreed(&self) -> MutexGuard<'_, Agreed> {
        self.agreed.lock().expect("no code panics while it holds this lock")
    }
}

impl HttpPeer {
    /// Waits for an answer in a stream of events. A server may end the stream before it answers, and
    /// then wants to be asked for the rest a little later.
    async fn answer_in(&self, mut stream: reqwest::Response, id: u64) -> Result<Value, McpError> {
        let (mut bytes, mut last_event) = (0, String::new());
        let mut pause = FIRST_PAUSE;
        // It knew us when it took the call, which may be done by now, so it is not to be made again.
        let midway = |error| match error {
            McpError::Forgotten => McpError::Ended("it forgot the call before it answered".into()),
            other => other,
        };
        for _ in 0..MOST_STREAMS {
            let mut events = stream.bytes_stream().eventsource();
            while let Some(Ok(event)) = events.next().await {
                bytes += event.data.len() + event.id.len();
                if bytes > MOST_MESSAGE {
                    return Err(McpError::Nonsense("it is longer than 8 MiB".into()));
                }
                if !event.id.is_empty() {
                    last_event.clone_from(&event.id);
                }
                pause = event.retry.unwrap_or(pause).min(LONGEST_PAUSE);
                let Ok(message) = serde_json::from_str::<Value>(&event.data) else { continue };
                if let Some(answer) = answer_to(&message) {
                    // It waits for this, so that it can go on with what it was asked.
                    self.post(&answer).await.map_err(midway)?;
                } else if message["id"] == id {
                    return outcome(message);
                }
                // What else it says on the way, such as how far it is, is not for us.
            }
            if last_event.is_empty() {
                break;
            }
            tokio::time::sleep(pause).await;
            stream = self.go_on(&last_event).await.map_err(midway)?;
        }
        Err(McpError::Nonsense("the stream holds no answer".into()))
    }
}

#[async_trait]
impl Peer for HttpPeer {
    async fn request(&self, id: u64, method: &str, params: Value) -> Result<Value, McpError> {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let response = self.post(&body).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let broken = |error: &dyn std::fmt::Display| McpError::Ended(error.to_string());
        if is_stream {
            return self.answer_in(response, id).await;
        }
        let mut pieces = response.bytes_stream();
        let mut text = Vec::new();
        while let Some(piece) = pieces.next().await {
            text.extend_from_slice(&piece.map_err(|error| broken(&error))?);
            if text.len() > MOST_MESSAGE {
                return Err(McpError::Nonsense("it is longer than 8 MiB".into()));
            }
        }
        let message: Value =
            serde_json::from_slice(&text).map_err(|error| McpError::Nonsense(error.to_string()))?;
        match message["id"] == id {
            true => outcome(message),
            false => Err(McpError::Nonsense("it answers another question".into())),
        }
    }

    async fn notify(&self, method: &str, params: Value) -> Result<(), McpError> {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.post(&body).await.map(|_| ())
    }

    /// Before it is greeted there is no conversation either.
    fn agree(&self, version: Option<&str>) {
        let mut agreed = self.agreed();
        agreed.version = version.map(str::to_owned);
        if version.is_none() {
            agreed.session = None;
        }
    }
}

/// Resolves names to public addresses only.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|found| is_public(found.ip())).collect();
            if public.is_empty() {
                return Err(not_public(name.as_str()).into());
            }
            let addresses: Addrs = Box::new(public.into_iter());
            Ok(addresses)
        })
    }
}

fn not_public(host: &str) -> String {
    format!("{host} is not a public address; the operator can configure such a server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_reaches_no_private_server() {
        for url in
            ["http://127.0.0.1:9/mcp", "http://[::1]:9/", "http://10.0.0.1/", "http://localhost:9/"]
        {
            let refused = match HttpPeer::new(url, BTreeMap::new(), Reach::PublicOnly) {
                Err(error) => error,
                Ok(peer) => peer.request(1, "initialize", json!({})).await.unwrap_err(),
            };
            assert!(matches!(refused, McpError::NotReached(_)), "{url}: {refused}");
        }
    }
}
