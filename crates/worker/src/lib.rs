//! The worker: claims a job, opens its sandbox, drives it to its end, records, cleans up.
//!
//! Knows no HTTP. Whatever happens to a job becomes an event in the store, written with the
//! generation under which the job was claimed, so that a worker which lost its lease can do no harm.

mod attachments;
mod capture;
mod checkpoints;
mod clock;
mod connection_log;
mod control;
mod ending;
mod hands;
mod host_approval;
mod job;
mod job_log;
mod live;
mod live_output;
mod mcp;
mod mcp_lines;
mod memory;
mod on_behalf;
mod outcome;
mod pack;
mod past;
mod pictures;
mod queue;
mod recording;
mod resume;
mod retention;
mod spool;
mod stop;
mod sweep;
mod way_out;
mod world;
mod zip_names;

pub use control::Taken;
pub use live::{LiveError, LiveSandbox, LiveSandboxes, LiveTerminal, LiveTunnel};
pub use mcp::OperatorServer;
pub use memory::Embedder;
pub use on_behalf::Used;
pub use past::{Past, Placed};
pub use queue::{Worker, WorkerSettings};

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bellglass_sandbox::egress::{EgressSettings, Secret};
use tokio::sync::watch;

/// Where the root file systems of images are.
#[async_trait]
pub trait ImageSource: Send + Sync + 'static {
    /// The root file system of an image, if it was built.
    async fn rootfs(&self, image: &str) -> Option<PathBuf>;
}

/// What the operator decides about ways out of sandboxes. Asked only for jobs that have one.
#[async_trait]
pub trait NetworkSource: Send + Sync + 'static {
    async fn settings(&self) -> Arc<EgressSettings>;

    /// Tells that the settings are others now.
    fn changes(&self) -> watch::Receiver<()>;

    /// The secret of this name, if there is one.
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
}
