//! Tools of MCP servers: offered to a model beside ours, under a prefix, with bounds on all that a
//! server says.
//!
//! How a server is reached is the trait [`Peer`]; over HTTP it is [`http::HttpPeer`], and whoever owns
//! sandboxes brings the one that runs inside. Written by hand because each message of a server is
//! hostile and has to be bounded before it is read.

pub mod http;
mod messages;
mod tools;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::drive::OtherResult;
use crate::model::ToolDefinition;
pub use messages::{answer_to, outcome};
pub use tools::result_text;

/// The version of the protocol that is asked for. A server may answer with an older one.
pub const PROTOCOL_VERSION: &str = "2025-06-18";

/// The longest message that is taken from a server.
pub const MOST_MESSAGE: usize = 8 << 20;

/// How long a server may take where nobody says.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pages of a server's list of tools.
const MOST_PAGES: usize = 20;

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
    /// Asks and waits for the result.
    async fn request(&self, method: &str, params: Value) -> Result<Value, McpError>;

    /// Says something that has no answer.
    async fn notify(&self, method: &str) -> Result<(), McpError>;
}

/// A server that answers, and what it offers.
pub struct Connected {
    /// Tools as a model sees them, each with its name at the server.
    tools: Vec<(ToolDefinition, String)>,
    peer: Box<dyn Peer>,
    patience: Duration,
}

impl Connected {
    /// Greets a server and asks for its tools. `name` becomes part of their names.
    pub async fn greet(
        name: &str,
        peer: Box<dyn Peer>,
        patience: Duration,
    ) -> Result<Self, McpError> {
        let greeted = tokio::time::timeout(patience, tools_of(name, &*peer)).await;
        let tools = greeted.map_err(|_| McpError::Silent(patience))??;
        Ok(Self { tools, peer, patience })
    }

    pub fn definitions(&self) -> impl Iterator<Item = &ToolDefinition> {
        self.tools.iter().map(|(tool, _)| tool)
    }

    /// Calls a tool, if this server has it.
    pub async fn call(&self, tool: &str, arguments: &Value) -> Option<OtherResult> {
        let (_, name) = self.tools.iter().find(|(offered, _)| offered.name == tool)?;
        let params = json!({ "name": name, "arguments": arguments });
        let asked =
            tokio::time::timeout(self.patience, self.peer.request("tools/call", params)).await;
        let asked = asked.unwrap_or(Err(McpError::Silent(self.patience)));
        Some(match asked {
            Ok(result) => tools::result(&result),
            Err(error) => OtherResult { text: format!("the call failed: {error}"), failed: true },
        })
    }
}

async fn tools_of(
    server: &str,
    peer: &dyn Peer,
) -> Result<Vec<(ToolDefinition, String)>, McpError> {
    let greeting = json!({
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": { "name": "bellglass", "version": env!("CARGO_PKG_VERSION") },
    });
    let welcome = peer.request("initialize", greeting).await?;
    if !welcome["protocolVersion"].is_string() {
        return Err(McpError::Nonsense("it names no version of the protocol".into()));
    }
    peer.notify("notifications/initialized").await?;
    let mut found = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..MOST_PAGES {
        let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
        let page = peer.request("tools/list", params).await?;
        tools::add_page(server, &page, &mut found);
        cursor = page["nextCursor"].clone();
        if !cursor.is_string() {
            break;
        }
    }
    Ok(found)
}
