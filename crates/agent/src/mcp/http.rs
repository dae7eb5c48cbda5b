//! An MCP server over streamable HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::is_public;
use eventsource_stream::Eventsource as _;
use futures::StreamExt as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use super::{MOST_MESSAGE, McpError, PROTOCOL_VERSION, Peer, outcome};
use crate::model::Secret;

/// Which addresses may be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The operator named the server, wherever it is.
    Anywhere,
    /// A job did, which must not make the worker reach into the operator's network.
    PublicOnly,
}

pub struct HttpPeer {
    client: reqwest::Client,
    url: String,
    headers: BTreeMap<String, Secret>,
    /// What the server calls our conversation.
    session: Mutex<Option<String>>,
    next_id: AtomicU64,
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
        let (url, session, next_id) = (url.to_owned(), Mutex::default(), AtomicU64::new(1));
        Ok(Self { client, url, headers, session, next_id })
    }

    async fn post(&self, body: &Value) -> Result<reqwest::Response, McpError> {
        let session = self.session.lock().expect("no code panics while it holds this lock").clone();
        let mut request = self
            .client
            .post(&self.url)
            .header(ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", PROTOCOL_VERSION)
            .json(body);
        for (name, value) in &self.headers {
            request = request.header(name, value.reveal());
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let response = request.send().await.map_err(|error| {
            let mut words = error.without_url().to_string();
            self.headers.values().for_each(|secret| words = secret.redact(&words));
            McpError::NotReached(words)
        })?;
        if !response.status().is_success() {
            return Err(McpError::Refused(format!("status {}", response.status().as_u16())));
        }
        if let Some(session) = response.headers().get("mcp-session-id")
            && let Ok(session) = session.to_str()
            && session.len() <= 1024
        {
            let mut known = self.session.lock().expect("no code panics while it holds this lock");
            *known = Some(session.to_owned());
        }
        Ok(response)
    }
}

#[async_trait]
impl Peer for HttpPeer {
    async fn request(&self, method: &str, params: Value) -> Result<Value, McpError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let response = self.post(&body).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let broken = |error: &dyn std::fmt::Display| McpError::Ended(error.to_string());
        if is_stream {
            let mut events = response.bytes_stream().eventsource();
            let mut bytes = 0;
            while let Some(event) = events.next().await {
                let event = event.map_err(|error| broken(&error))?;
                bytes += event.data.len();
                if bytes > MOST_MESSAGE {
                    break;
                }
                // What else it says on the way, such as how far it is, is not for us.
                match serde_json::from_str::<Value>(&event.data) {
                    Ok(message) if message["id"] == id => return outcome(message),
                    _ => {}
                }
            }
            return Err(McpError::Nonsense("the stream holds no answer".into()));
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

    async fn notify(&self, method: &str) -> Result<(), McpError> {
        self.post(&json!({ "jsonrpc": "2.0", "method": method })).await.map(|_| ())
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
                Ok(peer) => peer.request("initialize", json!({})).await.unwrap_err(),
            };
            assert!(matches!(refused, McpError::NotReached(_)), "{url}: {refused}");
        }
    }
}
