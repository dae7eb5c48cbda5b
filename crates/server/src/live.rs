//! What the server asks of the part that runs sandboxes. Implemented elsewhere.

use std::io;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::IsolationLevel;
use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::Entry;
use bellglass_store::StoreError;
use bytes::Bytes;
use futures::stream::BoxStream;
use serde_json::Value;

use crate::mcp::{ToolAnswer, ToolListing};

/// The workspaces of jobs whose sandboxes run now. Paths are relative to the workspace; the empty
/// path is the workspace itself.
#[async_trait]
pub trait LiveJobs: Send + Sync + 'static {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError>;

    /// Creates a file or replaces its content. If `data` ends with an error, nothing may be left
    /// in the file's place that looks whole.
    async fn write(
        &self,
        job: JobId,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError>;

    async fn delete(&self, job: JobId, path: &str) -> Result<(), LiveError>;

    /// The tools that every sandbox has.
    fn tools(&self) -> Vec<ToolListing>;

    /// Runs a tool in a job's sandbox, and records who did.
    async fn use_tool(&self, job: JobId, by: &str, call: ToolCall)
    -> Result<ToolAnswer, LiveError>;

    /// The conversation of a task as its model sees it, or saw it at an event.
    async fn context(&self, job: JobId, at: Option<u64>) -> Result<Value, StoreError>;

    /// A memory as it may be kept: on one line, bounded, without what looks like a secret.
    fn fit_to_remember(&self, text: &str) -> String;

    /// Where a text lies by its meaning, where an embedding source is configured.
    async fn meaning(&self, text: &str) -> Option<Vec<f32>>;
}

/// What stands at a path.
pub enum LiveContent {
    File { bytes: u64, data: BoxStream<'static, io::Result<Bytes>> },
    Folder(Vec<Entry>),
}

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("no sandbox of this job runs now")]
    NotRunning,
    /// The sandbox said no.
    #[error("{}", .0.message)]
    Tool(ToolError),
    /// As many files of this job are on their way as may be at once.
    #[error("too many files of this job are on their way")]
    Busy,
    /// The sandbox could not be asked.
    #[error("the sandbox cannot be reached: {0}")]
    Broken(String),
}

/// Which images exist.
#[async_trait]
pub trait Images: Send + Sync + 'static {
    async fn exists(&self, name: &str) -> bool;

    /// The names of all, sorted.
    async fn names(&self) -> Vec<String>;
}

/// How strongly sandboxes can be separated from this host.
#[async_trait]
pub trait Isolation: Send + Sync + 'static {
    /// Why there are no sandboxes of at least this level here, and how to get them; nothing if there
    /// are. The first answer about a level may take a moment, since it is found out by trying.
    async fn lacks(&self, level: IsolationLevel) -> Option<String>;
}
