//! How sandboxes are made and spoken to: backends, the client of the guest, images.
//!
//! Knows nothing of jobs' histories, databases or HTTP: it gives hands, and somebody else moves them.

pub mod backend;
mod backends;
pub mod client;
pub mod egress;
pub mod gvisor;
pub mod host;
pub mod image;
mod inward;
pub mod namespace;
pub mod pool;
mod sandbox;
pub mod trial;

pub use backend::{
    Backend, BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder, WireStream,
};
pub use backends::{Backends, Lacking};
pub use gvisor::GvisorBackend;
pub use namespace::NamespaceBackend;
pub use pool::WarmPool;
pub use sandbox::{Sandbox, SandboxError};
