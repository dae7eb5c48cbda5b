//! Models: what is asked of one, what it may answer, and why it may not.
//!
//! The same words for every provider; each wire module translates them. Knows nothing of jobs,
//! tools or the loop.

pub mod catalogue;
mod chat;
pub mod embeddings;
mod http;
mod messages;
pub mod pictures;
mod prices;
mod recorder;
mod recording;
mod replay;
mod responses;
pub mod retry;
mod secret;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, Usage};
use tokio::sync::mpsc::UnboundedSender;

use pictures::{Picture, Pictures, Sight};
pub use secret::Secret;

/// Answers requests.
#[async_trait]
pub trait Model: Send + Sync {
    /// Its whole name, such as `openai/gpt-5.1`.
    fn name(&self) -> &str;

    /// How many tokens it can read and write in one call.
    fn context_tokens(&self) -> u64;

    /// Whether it can be shown pictures.
    fn sight(&self) -> Sight;

    /// Asks once. Returns a whole answer, or an error that says whether to ask again.
    async fn ask(&self, request: &Request) -> Result<ModelAnswer, Failure>;
}

/// What a model is asked. The same at every turn but for what is added at its end, so that the
/// provider's cache can be used.
#[derive(Clone, Debug)]
pub struct Request {
    pub system: Arc<str>,
    pub tools: Arc<[ToolDefinition]>,
    /// Shared with the conversation, so that a turn costs the same however long that is.
    pub messages: Arc<Vec<Message>>,
    /// The most tokens that the answer may have; the model's own limit if it is not said.
    pub most_output: Option<u64>,
    /// Requests of one conversation share it, and with it the provider's cache.
    pub conversation: Arc<str>,
    pub pictures: Pictures,
    pub live: Live,
}

/// Who hears a model's words before its answer is whole, if anybody does.
#[derive(Clone, Debug, Default)]
pub struct Live(Option<UnboundedSender<String>>);

impl Live {
    pub fn to(listener: UnboundedSender<String>) -> Self {
        Self(Some(listener))
    }

    /// Passes a piece of text on. Nobody minds if nobody listens any more.
    fn say(&self, piece: Option<&str>) {
        if let (Some(listener), Some(piece)) = (&self.0, piece)
            && !piece.is_empty()
        {
            let _ = listener.send(piece.to_owned());
        }
    }
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// A JSON schema.
    pub parameters: serde_json::Value,
}

/// One message of a conversation. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Message {
    User(Arc<str>),
    Assistant(Arc<[AnswerBlock]>),
    /// The results of all tool calls of the answer before it.
    ToolResults(Vec<ToolResult>),
}

#[derive(Clone, Debug)]
pub struct ToolResult {
    pub call_id: Arc<str>,
    pub text: Arc<str>,
    pub failed: bool,
    pub pictures: Vec<Picture>,
}

/// A question without an answer, and what it cost all the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    #[source]
    pub error: ModelError,
    /// What the model had read and written, as far as it said so before it failed.
    pub usage: Option<Usage>,
    pub cost_usd: Option<f64>,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self { error, usage: None, cost_usd: None }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("the model server is busy (status {status}): {message}")]
    Busy { status: u16, message: String, retry_after: Option<Duration> },
    #[error("the model server failed (status {status}): {message}")]
    ServerFailed { status: u16, message: String },
    #[error("the model server cannot be reached: {0}")]
    NotReached(String),
    #[error("the model's answer was cut off: {0}")]
    Cut(String),
    #[error("the model said nothing for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("the model server's answer makes no sense: {0}")]
    Nonsense(String),
    #[error("the conversation is too long for the model: {0}")]
    ContextTooLong(String),
    #[error("the model server refused the key (status {status}): {message}")]
    KeyRefused { status: u16, message: String },
    #[error("the model server refused the request (status {status}): {message}")]
    Refused { status: u16, message: String },
    #[error("the conversation is not the recorded one: {0}")]
    Diverged(String),
}

impl ModelError {
    /// A stable word for the record.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "model_busy",
            Self::ServerFailed { .. } => "model_server_failed",
            Self::NotReached(_) => "model_not_reached",
            Self::Cut(_) => "model_answer_cut",
            Self::Idle(_) => "model_idle",
            Self::Nonsense(_) => "model_answer_invalid",
            Self::ContextTooLong(_) => "context_too_long",
            Self::KeyRefused { .. } => "model_key_refused",
            Self::Refused { .. } => "model_refused",
            Self::Diverged(_) => "replay_diverged",
        }
    }

    /// Whether the same request may well be answered a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::ServerFailed { .. }
            | Self::NotReached(_)
            | Self::Cut(_)
            | Self::Idle(_)
            | Self::Nonsense(_) => true,
            Self::ContextTooLong(_)
            | Self::KeyRefused { .. }
            | Self::Refused { .. }
            | Self::Diverged(_) => false,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The arguments of a call as JSON. Servers read the history again, and some fail at what is no
/// JSON object, so a model's mistake is shown to it inside of one.
fn arguments_object(arguments: &str) -> serde_json::Value {
    match serde_json::from_str(arguments) {
        Ok(object @ serde_json::Value::Object(_)) => object,
        _ if arguments.trim().is_empty() => serde_json::json!({}),
        _ => serde_json::json!({ "not_json": arguments }),
    }
}
