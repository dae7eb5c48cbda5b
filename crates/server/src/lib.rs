//! The HTTP side of Bellglass: the API, event streams, downloads, operations, the OpenAPI document, the page.
//!
//! [`router`] is the table of contents. Each resource has one file under `controllers`. This crate
//! knows the store and three small traits, [`LiveJobs`], [`Images`] and [`Isolation`]; how a sandbox or an agent
//! works it must not know.

mod apps;
mod archive;
mod attempts;
mod caller;
mod content;
mod controllers;
mod door;
mod event_log;
mod extract;
mod guard;
mod idle;
mod leftovers;
mod links;
mod live;
pub mod mcp;
mod metrics;
mod openapi;
mod page;
mod private_file;
mod problem;
mod quota;
mod relay;
mod rfb;
mod rights;
mod router;
mod serve;
mod session;
mod settings;
mod share;
mod sockets;
mod standing;
mod token;
mod tree_archive;
mod tree_diff;
mod vnc;
mod withheld;

use std::sync::Arc;

use bellglass_protocol::request::Offer;
use bellglass_store::Store;
use bellglass_store::artifacts::Artifacts;
use tokio_util::sync::CancellationToken;

pub use controllers::mcp::tool_call;
pub use idle::{FileData, IDLE, end_when_idle, let_go_of_idle_readers};
pub use live::{
    Duplex, Images, Isolation, LiveContent, LiveError, LiveJobs, LiveStream, LiveTerminal, Taken,
    TerminalInput,
};
pub use openapi::openapi;
pub use problem::Problem;
pub use quota::Quotas;
pub use relay::Cluster;
pub use router::router;
pub use serve::{Listeners, serve, serve_on};
pub use settings::{Secret, ServerSettings};
pub use vnc::VncSettings;

/// Everything that the server is made of.
pub struct App {
    pub store: Arc<dyn Store>,
    pub artifacts: Arc<Artifacts>,
    /// The workspaces of jobs that run now.
    pub live: Arc<dyn LiveJobs>,
    /// What this installation gives to jobs.
    pub offer: Offer,
    pub images: Arc<dyn Images>,
    pub isolation: Arc<dyn Isolation>,
    pub settings: ServerSettings,
    /// What the other parts of this process count, as Prometheus text; goes to `/metrics` too.
    pub other_metrics: OtherMetrics,
    /// Whether somebody works on the jobs that are accepted.
    pub worker_runs: WorkerCheck,
    /// The others that share the store, if there are any.
    pub cluster: Option<Cluster>,
}

/// Tells whether a part that this crate does not know still runs.
pub type WorkerCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Writes Prometheus text about something that this crate does not know.
pub type OtherMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// What handlers share.
struct Server {
    app: App,
    guard: guard::Guard,
    /// What users use of the server.
    meter: quota::Meter,
    /// Tokens that were none.
    attempts: attempts::Attempts,
    /// What sessions with the token of the configuration are sealed with, and those that somebody ended.
    session_key: settings::Secret,
    ended_sessions: session::EndedSessions,
    /// Told of each token and link that is taken away.
    revoked: tokio::sync::watch::Sender<()>,
    apps: apps::Apps,
    /// Ports of desktops, where they are configured.
    vnc: Option<vnc::VncPorts>,
    metrics: metrics::Metrics,
    /// Places for readers of files of jobs that have ended.
    archive_readers: Arc<tokio::sync::Semaphore>,
    /// Cancelled when the server is to stop: streams that would go on for ever end then.
    stopping: CancellationToken,
}

type SharedServer = Arc<Server>;
