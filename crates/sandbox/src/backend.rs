//! A backend's whole duty: start a sandbox, give one byte stream to its guest, stop it.
//!
//! Everything that a sandbox can do goes over that stream, so every backend gives every feature.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::report::{Check, Probe, Start};
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::inward::SideDoor;
pub use crate::namespace::Relief;

/// How sandboxes are made. One implementation for each isolation technology.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn level(&self) -> IsolationLevel;

    /// Makes a sandbox, whose guest may still be on its way. When this returns an error, nothing of it is
    /// left.
    async fn start(&self, order: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError>;

    /// Makes a sandbox ahead of its job, under a name of its own; none if this backend cannot.
    async fn prepare(
        &self,
        _order: &SandboxOrder,
    ) -> Result<Option<Box<dyn PreparedSandbox>>, BackendError> {
        Ok(None)
    }

    /// Finds a sandbox that an earlier process of ours started and that still runs.
    async fn find(
        &self,
        name: &SandboxName,
    ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError>;

    /// Ends the sandbox of this name, if there is one, and removes every trace of it.
    async fn remove(&self, name: &SandboxName) -> Result<(), BackendError>;

    /// The names of all sandboxes that run or have left a trace.
    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError>;

    /// Removes those of these sandboxes that this process does not hold. Returns how many.
    ///
    /// Whoever sweeps while jobs come and go asks for the names first and then which of them have a
    /// job: a job that starts in between is in the second answer, and its sandbox not in the first.
    async fn remove_orphans(&self, names: &HashSet<SandboxName>) -> Result<usize, BackendError>;

    /// Removes every sandbox, and every trace of one, whose name is not in `keep`. Returns how many.
    /// For times when nobody starts sandboxes here.
    async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError>;
}

/// A sandbox that belongs to no job yet. It ends with this process, its traces with the next sweep.
#[async_trait]
pub trait PreparedSandbox: Send + Sync {
    /// Whether it can become the sandbox of this order, whose image is the one that it was prepared
    /// with.
    fn fits(&self, order: &SandboxOrder) -> bool;

    /// Whether it still waits.
    fn is_alive(&self) -> bool;

    /// Makes it the sandbox of this order, name and limits and all, as if it had been started so.
    /// When this returns an error, nothing of it is left. The order must fit.
    async fn adopt(
        self: Box<Self>,
        order: &SandboxOrder,
    ) -> Result<Box<dyn RunningSandbox>, BackendError>;

    /// Ends it and removes every trace of it.
    async fn discard(self: Box<Self>);
}

/// A sandbox that has been started. Dropping this does not stop it: see [`RunningSandbox::stop`].
#[async_trait]
pub trait RunningSandbox: Send + Sync {
    /// A byte stream to the guest. A new one replaces the one before.
    async fn connect(&self) -> Result<Box<dyn WireStream>, BackendError>;

    /// Says that the guest has answered, so that nothing is kept any more that its start needed.
    fn greeted(&self) {}

    /// Why the guest cannot be reached, if it never came and that is known.
    async fn failure(&self) -> Option<BackendError> {
        None
    }

    /// A way to sockets inside that does not lead through the guest, where there is one.
    fn side_door(&self) -> Option<SideDoor> {
        None
    }

    /// Makes the sandbox's limit on processor time a whole processor until what this returns is dropped.
    fn relieve(&self) -> Relief {
        Relief::default()
    }

    /// Ends every process of the sandbox and removes what it used. Nothing of it runs afterwards.
    async fn stop(&self) -> Result<(), BackendError>;

    /// Returns when the guest is gone, whoever ended it.
    async fn gone(&self);

    /// How often the kernel ended a process for want of memory.
    async fn out_of_memory_kills(&self) -> u64;

    /// What was set up, and what this host could not give; one short sentence each.
    fn set_up(&self) -> SetUp;

    /// Holds what is claimed about the sandbox against what was found inside it.
    fn attest(&self, _inside: &Probe) -> Vec<Check> {
        Vec::new()
    }
}

/// The wire before it is multiplexed.
pub trait WireStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> WireStream for T {}

#[derive(Clone, Debug, Default)]
pub struct SetUp {
    pub enforced: Vec<String>,
    pub missing: Vec<String>,
    pub start: Start,
}

/// What a sandbox is to be like.
#[derive(Clone, Debug)]
pub struct SandboxOrder {
    pub name: SandboxName,
    /// The image's root file system.
    pub rootfs: PathBuf,
    pub limits: Limits,
    /// Whether tools may make user namespaces of their own.
    pub nested_sandboxing: bool,
    /// How long the guest waits for a worker before it ends by itself; for ever if not given.
    pub orphaned_after: Option<Duration>,
}

/// A sandbox's name: safe as a file name, a host name and a control group's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxName(String);

/// As long as a host name may be, which it becomes.
pub(crate) const LONGEST_NAME: usize = 63;

impl SandboxName {
    /// The sandbox of a job. One job, one sandbox, so the job's id is name enough.
    pub fn of_job(job: JobId) -> Self {
        Self(job.to_string())
    }

    /// For a sandbox that belongs to no job.
    pub fn throwaway() -> Self {
        Self(format!("throwaway-{}", JobId::generate()))
    }

    /// Reads a name back from where it was used as one.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (!text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(fits))
            .then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a backend could not do its duty.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("could not {stage}: {error}")]
    Launch { stage: String, error: String },
    #[error("could not {action}")]
    Io {
        action: String,
        #[source]
        source: std::io::Error,
    },
    #[error("this host cannot run such a sandbox: {0}")]
    Unsupported(String),
}

impl BackendError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
