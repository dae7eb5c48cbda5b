//! What the server asks of the part that runs sandboxes. Implemented elsewhere.

use std::io;
use std::pin::Pin;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::IsolationLevel;
use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::tunnel::{Inside, ListeningPort, LivePlace, Terminal, TerminalSize};
use bellglass_protocol::wire::Entry;
use bellglass_store::StoreError;
use bytes::Bytes;
use futures::Sink;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::mcp::{ToolAnswer, ToolListing};

/// The workspaces of jobs whose sandboxes run now. Paths are relative to the workspace; the empty
/// path is the workspace itself.
#[async_trait]
pub trait LiveJobs: Send + Sync + 'static {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError>;

    /// Creates a file or replaces its content, and records who did. If `data` ends with an error,
    /// nothing may be left in the file's place that looks whole.
    async fn write(
        &self,
        job: JobId,
        by: &str,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError>;

    /// Deletes a file or a folder, and records who did.
    async fn delete(&self, job: JobId, by: &str, path: &str) -> Result<(), LiveError>;

    /// The tools that every sandbox has.
    fn tools(&self) -> Vec<ToolListing>;

    /// Runs a tool in a job's sandbox, and records who did.
    async fn use_tool(&self, job: JobId, by: &str, call: ToolCall)
    -> Result<ToolAnswer, LiveError>;

    /// Connects to something inside. Dropping the stream ends the connection.
    async fn connect(&self, job: JobId, to: Inside) -> Result<LiveStream, LiveError>;

    /// Connects to the desktop's VNC server, and records who did.
    async fn view_desktop(&self, job: JobId, by: &str) -> Result<LiveStream, LiveError>;

    /// Gives the desktop to a person, so that the job waits with it, until what this returns is
    /// dropped.
    async fn take_desktop(&self, job: JobId, by: &str) -> Result<Taken, LiveError>;

    /// Opens a terminal for a person, and records who did.
    async fn open_terminal(
        &self,
        job: JobId,
        by: &str,
        terminal: Terminal,
    ) -> Result<LiveTerminal, LiveError>;

    /// What listens inside.
    async fn ports(&self, job: JobId) -> Result<Vec<ListeningPort>, LiveError>;

    /// Records that a person opened something inside.
    async fn note_visit(&self, job: JobId, by: &str, place: LivePlace) -> Result<(), LiveError>;

    /// The conversation of a task as its model sees it, or saw it at an event.
    async fn context(&self, job: JobId, at: Option<u64>) -> Result<Value, StoreError>;

    /// A memory as it may be kept: on one line, bounded, without what looks like a secret.
    fn fit_to_remember(&self, text: &str) -> String;

    /// Where a text lies by its meaning, where an embedding source is configured.
    async fn meaning(&self, text: &str) -> Option<Vec<f32>>;
}

/// A connection to something inside a sandbox.
pub type LiveStream = Box<dyn Duplex>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The desktop in a person's hands, for as long as this lives.
pub struct Taken(pub Box<dyn Send + Sync>);

/// A terminal inside a sandbox.
pub struct LiveTerminal {
    pub size: TerminalSize,
    pub input: Pin<Box<dyn Sink<TerminalInput, Error = io::Error> + Send>>,
    pub output: BoxStream<'static, io::Result<Bytes>>,
}

/// What a person does with a terminal.
#[derive(Debug)]
pub enum TerminalInput {
    Typed(Bytes),
    Resized(TerminalSize),
}

/// What stands at a path.
pub enum LiveContent {
    File { bytes: u64, data: BoxStream<'static, io::Result<Bytes>> },
    Folder(Vec<Entry>),
}

/// Sent by workers to servers as it is.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveError {
    #[error("no sandbox of this job runs now")]
    NotRunning,
    /// The sandbox said no.
    #[error("{}", .0.message)]
    Tool(ToolError),
    /// As many files of this job are on their way, or connections lead to it, as may be at once.
    #[error("as many connections lead to this job as may be at once")]
    Busy,
    /// Another person has the desktop.
    #[error("{0} works with the desktop")]
    Taken(String),
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
