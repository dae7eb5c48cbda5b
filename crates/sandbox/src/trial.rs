//! Tries a backend out: a sandbox is started, greets, and is removed. Nothing else proves that the
//! host can give such sandboxes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::job::Limits;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::report::SandboxReport;

use crate::backend::{Backend, BackendError, SandboxName, SandboxOrder};
use crate::sandbox::{Sandbox, SandboxError};

/// Far more than any start takes that people would wait for.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("no sandbox was up within {} s", DEADLINE.as_secs())]
    TooSlow,
}

/// Needs no image: the guest is all that runs.
pub async fn try_out(backend: Arc<dyn Backend>) -> Result<SandboxReport, TrialError> {
    // A task of its own: if it takes too long, it still goes on to the end and cleans up.
    let trial = tokio::spawn(async move {
        let io = |action: &str| BackendError::io(action.to_owned());
        let rootfs = tempfile::Builder::new().prefix("bellglass-trial-").tempdir();
        let rootfs = rootfs.map_err(io("make a folder"))?;
        fs::set_permissions(rootfs.path(), Permissions::from_mode(0o755))
            .map_err(io("open a folder"))?;
        for folder in ["dev", "etc", "home/agent", "proc", "run", "sys", "tmp", "workspace"] {
            fs::create_dir_all(rootfs.path().join(folder)).map_err(io("make a folder"))?;
        }
        let order = SandboxOrder {
            name: SandboxName::throwaway(),
            rootfs: rootfs.path().to_path_buf(),
            limits: Limits { memory: ByteSize::mib(512), ..Limits::default() },
            nested_sandboxing: false,
            orphaned_after: Some(DEADLINE),
        };
        let sandbox = Sandbox::start(&*backend, &order, "none").await?;
        sandbox.destroy().await?;
        Ok(sandbox.report().clone())
    });
    match tokio::time::timeout(DEADLINE, trial).await {
        Ok(Ok(result)) => result,
        Ok(Err(stopped)) => std::panic::resume_unwind(stopped.into_panic()),
        Err(_) => Err(TrialError::TooSlow),
    }
}
