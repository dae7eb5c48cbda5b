//! The `gvisor` backend: the cages of the namespace backend with gVisor's kernel in them.
//!
//! What runs inside speaks to a kernel that is a program in user space; only that program speaks to
//! the host's kernel, with few calls, as an unprivileged user, inside the namespaces and limits of
//! the level below. So all that holds there holds here too, and sandboxes are found, ended and
//! cleaned up in the same way: the end of the cage's first process is the end of everything in it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bellglass_protocol::job::IsolationLevel;
use bellglass_protocol::launch::Kernel;

use crate::backend::{Backend, BackendError, RunningSandbox, SandboxName, SandboxOrder};
use crate::namespace::NamespaceBackend;

/// Makes sandboxes on gVisor's kernel.
pub struct GvisorBackend {
    cages: NamespaceBackend,
}

impl GvisorBackend {
    /// Sandboxes of this backend live under `folder`, which no other backend uses. `runsc` is the
    /// path of gVisor's executable; whether it works is found out when a sandbox is started.
    pub fn new(folder: PathBuf, runsc: &Path) -> Result<Self, BackendError> {
        let kernel = Kernel::Gvisor { runsc: runsc.to_string_lossy().into_owned() };
        Ok(Self { cages: NamespaceBackend::with_kernel(folder, kernel)? })
    }
}

#[async_trait]
impl Backend for GvisorBackend {
    fn name(&self) -> &'static str {
        "gvisor"
    }

    fn level(&self) -> IsolationLevel {
        IsolationLevel::Gvisor
    }

    async fn start(&self, order: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
        self.cages.start(order).await
    }

    async fn find(
        &self,
        name: &SandboxName,
    ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        self.cages.find(name).await
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), BackendError> {
        self.cages.remove(name).await
    }

    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        self.cages.names().await
    }

    async fn remove_orphans(&self, names: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        self.cages.remove_orphans(names).await
    }

    async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        self.cages.sweep(keep).await
    }
}
