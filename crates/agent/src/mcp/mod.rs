//! Tools of MCP servers: offered to a model beside ours, under a prefix, with bounds on all that a
//! server says.
//!
//! How a server is reached is the trait [`Peer`]; over HTTP it is [`http::HttpPeer`], and whoever owns
//! sandboxes brings the one that runs inside. Written by hand because each message of a server is
//! hostile and has to be bounded before it is read.

pub mod http;
mod messages;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::drive::OtherResult;
use crate::model::ToolDefinition;
pub use messages::{answer_to, outcome};
pub use tools::result_text;

/// The version of the protocol that is asked for.
const PROTOCOL_VERSION: &str = "2025-06-18";

/// Those in which a server may answer: in all of them tools are listed and called in the same words.
const SPOKEN: [&str; 4] = ["2025-11-25", PROTOCOL_VERSION, "2025-03-26", "2024-11-05"];

/// The longest message that is taken from a server.
pub const MOST_MESSAGE: usize = 8 << 20;

/// How long a server may take where nobody says.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pages of a server's list of tools.
const MOST_PAGES: usize = 20;

/// How long a server may take to hear that a call is not waited for any more.
const LAST_WORD: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, thiserror::Error)]
pub enum McpError {
    #[error("it cannot be reached: {0}")]
    NotReached(String),
    #[error("it did not answer in {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it ended{}", in_words(.0))]
    Ended(String),
    #[error("it answers with an error: {0}")]
    Refused(String),
    #[error("its answer makes no sense: {0}")]
    Nonsense(String),
    #[error("it has forgotten who we are")]
    Forgotten,
}

fn in_words(said: &str) -> String {
    match said.trim() {
        "" => String::new(),
        said => format!(", and said: {said}"),
    }
}

/// The other side of a conversation in JSON-RPC.
#[async_trait]
pub trait Peer: Send + Sync {
    /// Asks under a number and waits for the result.
    async fn request(&self, id: u64, method: &str, params: Value) -> Result<Value, McpError>;

    /// Says something that has no answer.
    async fn notify(&self, method: &str, params: Value) -> Result<(), McpError>;

    /// Hears in which version of the protocol the server answers; `None` before it is greeted.
    fn agree(&self, version: Option<&str>);
}

/// A server that answers, and what it offers.
pub struct Connected {
    /// Tools as a model sees them, each with its name at the server.
    tools: Vec<(ToolDefinition, String)>,
    peer: Box<dyn Peer>,
    next_id: AtomicU64,
    patience: Duration,
}

impl Connected {
    /// Greets a server and asks for its tools. `name` becomes part of their names.
    pub async fn greet(
        name: &str,
        peer: Box<dyn Peer>,
        patience: Duration,
    ) -> Result<Self, McpError> {
        let (tools, next_id) = (Vec::new(), AtomicU64::new(1));
        let mut server = Self { tools, peer, next_id, patience };
        let greeted = async {
            server.introduce().await?;
            server.list_tools(name).await
        };
        let greeted = tokio::time::timeout(patience, greeted).await;
        server.tools = greeted.map_err(|_| McpError::Silent(patience))??;
        Ok(server)
    }

    pub fn definitions(&self) -> impl Iterator<Item = &ToolDefinition> {
        self.tools.iter().map(|(tool, _)| tool)
    }

    /// Calls a tool, if this server has it.
    pub async fn call(&self, tool: &str, arguments: &Value) -> Option<OtherResult> {
        let (_, name) = self.tools.iter().find(|(offered, _)| offered.name == tool)?;
        let params = json!({ "name": name, "arguments": arguments });
        let asked = match self.call_in_time(params.clone()).await {
            // It did nothing for somebody whom it does not know, so the call can be made again.
            Err(McpError::Forgotten) => match self.introduce_in_time().await {
                Ok(()) => self.call_in_time(params).await,
                Err(error) => Err(error),
            },
            asked => asked,
        };
        Some(match asked {
            Ok(result) => tools::result(&result),
            Err(error) => OtherResult { text: format!("the call failed: {error}"), failed: true },
        })
    }

    async fn call_in_time(&self, params: Value) -> Result<Value, McpError> {
        let id = self.next_id();
        let asking = self.peer.request(id, "tools/call", params);
        if let Ok(asked) = tokio::time::timeout(self.patience, asking).await {
            return asked;
        }
        // It need not go on. Whether it hears that does not matter to us.
        let over = json!({ "requestId": id, "reason": "it took too long" });
        let telling = self.peer.notify("notifications/cancelled", over);
        let _ = tokio::time::timeout(LAST_WORD, telling).await;
        Err(McpError::Silent(self.patience))
    }

    async fn introduce_in_time(&self) -> Result<(), McpError> {
        let introduced = tokio::time::timeout(self.patience, self.introduce()).await;
        introduced.unwrap_or(Err(McpError::Silent(self.patience)))
    }

    /// Says who we are, and agrees on a version of the protocol.
    async fn introduce(&self) -> Result<(), McpError> {
        self.peer.agree(None);
        let greeting = json!({
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": {},
            "clientInfo": { "name": "bellglass", "version": env!("CARGO_PKG_VERSION") },
        });
        let welcome = self.peer.request(self.next_id(), "initialize", greeting).await?;
        let Some(version) = welcome["protocolVersion"].as_str() else {
            return Err(McpError::Nonsense("it names no version of the protocol".into()));
        };
        if !SPOKEN.contains(&version) {
            let version: String = version.chars().take(40).collect();
            return Err(McpError::Nonsense(format!(
                "it speaks version `{version}` of the protocol; spoken here are {}",
                SPOKEN.join(", ")
            )));
        }
        self.peer.agree(Some(version));
        self.peer.notify("notifications/initialized", json!({})).await
    }

    async fn list_tools(&self, server: &str) -> Result<Vec<(ToolDefinition, String)>, McpError> {
        let mut found = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..MOST_PAGES {
            let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let page = self.peer.request(self.next_id(), "tools/list", params).await?;
            tools::add_page(server, &page, &mut found);
            cursor = page["nextCursor"].clone();
            if !cursor.is_string() {
                break;
            }
        }
        Ok(found)
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}
