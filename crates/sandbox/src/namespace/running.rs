//! A running sandbox of the namespace backend.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::launch::Kernel;
use bellglass_protocol::report::{Check, Probe, Start};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::attestation::{self, Groups, Outside};
use super::control_groups::Relief;
use super::held::Holds;
use super::record::{Record, WIRE, reap};
use super::{Shared, blocking, control_groups};
use crate::backend::{BackendError, RunningSandbox, SandboxName, SetUp, WireStream};
use crate::inward::{Inward, SideDoor};

/// How long the processes of a killed sandbox may take to be gone. Longer means that one of them
/// waits in the kernel for a device or a file system that does not answer.
const ENDING_TIME: Duration = Duration::from_secs(30);

pub(super) struct NamespaceSandbox {
    shared: Arc<Shared>,
    record: Record,
    name: SandboxName,
    /// Readable once the guest is gone. All processes of the sandbox are gone then too: the guest
    /// is the first process of their pid namespace, and the kernel ends them before it.
    pidfd: AsyncFd<OwnedFd>,
    /// What the host showed of its control groups when it was taken up.
    groups: Option<Groups>,
    /// Keeps sweeps away from it while it is in somebody's hands.
    _holds: Holds,
}

impl NamespaceSandbox {
    pub(super) fn boxed(
        shared: Arc<Shared>,
        record: Record,
        holds: Holds,
    ) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let gone = || io::Error::other("it ended right after its start");
        let pidfd = record.pidfd().ok_or_else(gone).and_then(|pidfd| {
            // SAFETY: an `OwnedFd` keeps its descriptor open and the same for as long as it lives.
            unsafe { AsyncFd::register(pidfd) }.map_err(io::Error::from)
        });
        let name = SandboxName::parse(&record.name);
        match (pidfd, name) {
            (Ok(pidfd), Some(name)) => {
                let groups = record.claims.as_ref().map(|claims| Groups::look(claims, record.pid));
                Ok(Box::new(Self { shared, record, name, pidfd, groups, _holds: holds }))
            }
            (pidfd, _) => {
                // If it cannot be ended, a later sweep finds and removes it.
                if record.kill_and_wait().is_ok() {
                    if let Some(name) = SandboxName::parse(&record.name) {
                        shared.remove_traces(&name);
                    }
                    shared.ids.give_back(record.ids);
                }
                let source = pidfd.err().unwrap_or_else(gone);
                Err(BackendError::Io { action: "hold on to the sandbox".into(), source })
            }
        }
    }
}

#[async_trait]
impl RunningSandbox for NamespaceSandbox {
    async fn connect(&self) -> Result<Box<dyn WireStream>, BackendError> {
        let failed = || BackendError::io("reach the guest");
        let folder = self.shared.folder.join(self.name.as_str());
        let folder = std::fs::File::open(folder).map_err(failed())?;
        // Through the folder's descriptor, since a socket's path is limited to 108 bytes.
        let path = format!("/proc/self/fd/{}/{WIRE}", folder.as_raw_fd());
        let Inward { stream, .. } = Inward::connect(&path).map_err(failed())?;
        Ok(Box::new(UnixStream::from_std(stream).map_err(failed())?))
    }

    fn side_door(&self) -> Option<SideDoor> {
        // Another kernel has files and sockets of its own.
        let pidfd = (self.shared.kernel == Kernel::Host).then(|| self.pidfd.get_ref().try_clone());
        Some(SideDoor { pid: self.record.pid, pidfd: pidfd?.ok()? })
    }

    fn relieve(&self) -> Relief {
        Relief::of(&self.record.groups)
    }

    async fn stop(&self) -> Result<(), BackendError> {
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
        Relief::for_good(&self.record.groups);
        if tokio::time::timeout(ENDING_TIME, self.gone()).await.is_err() {
            // Its traces stay, so that a later sweep finds and removes it.
            let why = format!("the kernel has not ended it within {} s", ENDING_TIME.as_secs());
            return Err(BackendError::io("end the sandbox")(io::Error::other(why)));
        }
        let (shared, name, ids) = (self.shared.clone(), self.name.clone(), self.record.ids);
        blocking(move || {
            shared.remove_traces(&name);
            shared.ids.give_back(ids);
            Ok(())
        })
        .await
    }

    async fn gone(&self) {
        // An error here would mean that the descriptor cannot be polled, so nothing could be known.
        let _ = self.pidfd.readable().await;
        reap(self.pidfd.get_ref());
    }

    async fn out_of_memory_kills(&self) -> u64 {
        let groups = match self.record.groups.as_slice() {
            // A record from before they were written down.
            [] => self.shared.groups.folders(self.name.as_str()),
            groups => groups.to_vec(),
        };
        control_groups::out_of_memory_kills(&groups)
    }

    fn attest(&self, inside: &Probe) -> Vec<Check> {
        let (Some(claims), Some(groups)) = (&self.record.claims, &self.groups) else {
            return Vec::new();
        };
        let outside = Outside::look(&self.record, &self.shared.host, groups);
        attestation::examine(claims, inside, &outside)
    }

    fn set_up(&self) -> SetUp {
        let start = if self.record.made_as.is_some() { Start::Warm } else { Start::Cold };
        let (enforced, missing) = (self.record.enforced.clone(), self.record.missing.clone());
        SetUp { enforced, missing, start }
    }
}
