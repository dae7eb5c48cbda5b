//! A running sandbox of the namespace backend.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::launch::Kernel;
use bellglass_protocol::report::{Check, Probe, Start};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::attestation::{self, Frame, Outside};
use super::control_groups::Relief;
use super::held::Holds;
use super::launcher::Building;
use super::record::{Record, WIRE, reap};
use super::{NextLauncher, Shared, Turn, UNDISTURBED, blocking, control_groups};
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
    /// What the host showed of it when it was taken up.
    frame: Option<Frame>,
    /// The first connection, until it is asked for.
    wire: Mutex<Option<StdUnixStream>>,
    /// Its start, until its guest has answered.
    start: Mutex<Option<Beginning>>,
    /// What is left of that for a moment. Held by whoever ends it until it has ended.
    started: Arc<Mutex<Option<Building>>>,
    /// Keeps sweeps away from it while it is in somebody's hands.
    _holds: Holds,
}

/// A sandbox whose guest is on its way.
pub(super) struct Beginning {
    pub(super) building: Building,
    pub(super) turn: Turn,
    pub(super) next: NextLauncher,
}

/// How we hold a sandbox. It can be taken hold of while its cage is built: its socket is there, and whoever
/// will live there answers in time.
pub(super) struct Grip {
    pidfd: Option<OwnedFd>,
    frame: Option<Frame>,
    wire: Option<StdUnixStream>,
}

impl Grip {
    pub(super) fn take(shared: &Shared, record: &Record) -> Self {
        Self {
            pidfd: record.pidfd(),
            frame: record.claims.as_ref().map(|claims| Frame::look(claims, record.pid)),
            // Whoever needs it tries again, and then tells why it cannot be had.
            wire: connect(shared, &record.name).ok(),
        }
    }
}

pub(super) fn connect(shared: &Shared, name: &str) -> io::Result<StdUnixStream> {
    let folder = std::fs::File::open(shared.folder.join(name))?;
    // Through the folder's descriptor, since a socket's path is limited to 108 bytes.
    let path = format!("/proc/self/fd/{}/{WIRE}", folder.as_raw_fd());
    Ok(Inward::connect(&path)?.stream)
}

fn take<T>(what: &Mutex<Option<T>>) -> Option<T> {
    what.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Its launcher has the sandbox's name, and nothing may be left that has. Nobody else ends it when this returns.
fn end(started: &Mutex<Option<Building>>) {
    let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
    drop(started.take());
}

impl NamespaceSandbox {
    fn end_of_start(&self) -> Option<Beginning> {
        take(&self.start)
    }

    pub(super) fn boxed(
        shared: Arc<Shared>,
        record: Record,
        grip: Grip,
        start: Option<Beginning>,
        holds: Holds,
    ) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let gone = || io::Error::other("it ended right after its start");
        let Grip { pidfd, frame, wire } = grip;
        let pidfd = pidfd.ok_or_else(gone).and_then(|pidfd| {
            // SAFETY: an `OwnedFd` keeps its descriptor open and the same for as long as it lives.
            unsafe { AsyncFd::register(pidfd) }.map_err(io::Error::from)
        });
        let name = SandboxName::parse(&record.name);
        match (pidfd, name) {
            (Ok(pidfd), Some(name)) => {
                let (wire, start) = (Mutex::new(wire), Mutex::new(start));
                let (started, _holds) = (Arc::default(), holds);
                Ok(Box::new(Self {
                    shared,
                    record,
                    name,
                    pidfd,
                    frame,
                    wire,
                    start,
                    started,
                    _holds,
                }))
            }
            (pidfd, _) => {
                let is_gone = record.pidfd().is_none();
                // If it cannot be ended, a later sweep finds and removes it.
                if record.kill_and_wait().is_ok() {
                    if let Some(name) = SandboxName::parse(&record.name) {
                        shared.remove_traces(&name);
                    }
                    shared.ids.give_back(record.ids);
                }
                let source = pidfd.err().unwrap_or_else(gone);
                let lost = BackendError::Io { action: "hold on to the sandbox".into(), source };
                // If it went by itself, it has said why.
                let cause =
                    start.filter(|_| is_gone).and_then(|start| start.building.ready().err());
                Err(cause.unwrap_or(lost))
            }
        }
    }
}

impl Drop for NamespaceSandbox {
    /// Whoever takes it up again, or removes it, finds only what is the sandbox's own.
    fn drop(&mut self) {
        end(&self.started);
    }
}

#[async_trait]
impl RunningSandbox for NamespaceSandbox {
    async fn connect(&self) -> Result<Box<dyn WireStream>, BackendError> {
        let failed = || BackendError::io("reach the guest");
        let first = take(&self.wire);
        let stream = match first {
            Some(stream) => stream,
            None => connect(&self.shared, self.name.as_str()).map_err(failed())?,
        };
        Ok(Box::new(UnixStream::from_std(stream).map_err(failed())?))
    }

    fn greeted(&self) {
        let Some(Beginning { building, turn, next }) = self.end_of_start() else { return };
        drop((turn, next));
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(building);
        // Somebody is about to use the sandbox, and its launcher, which would need a processor to end, can wait.
        let started = self.started.clone();
        tokio::spawn(async move {
            tokio::time::sleep(UNDISTURBED).await;
            let _ = tokio::task::spawn_blocking(move || end(&started)).await;
        });
    }

    async fn failure(&self) -> Option<BackendError> {
        let Beginning { building, .. } = self.end_of_start()?;
        blocking(move || Ok(building.ready().err())).await.ok().flatten()
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
        let start = self.end_of_start();
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
        Relief::for_good(&self.record.groups);
        if tokio::time::timeout(ENDING_TIME, self.gone()).await.is_err() {
            // Its traces stay, so that a later sweep finds and removes it.
            let why = format!("the kernel has not ended it within {} s", ENDING_TIME.as_secs());
            return Err(BackendError::io("end the sandbox")(io::Error::other(why)));
        }
        let (shared, name, ids) = (self.shared.clone(), self.name.clone(), self.record.ids);
        let started = self.started.clone();
        blocking(move || {
            drop(start);
            end(&started);
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
        let (Some(claims), Some(frame)) = (&self.record.claims, &self.frame) else {
            return Vec::new();
        };
        let outside = Outside::look(&self.record, &self.shared.host, frame);
        attestation::examine(claims, inside, &outside)
    }

    fn set_up(&self) -> SetUp {
        let start = if self.record.made_as.is_some() { Start::Warm } else { Start::Cold };
        let (enforced, missing) = (self.record.enforced.clone(), self.record.missing.clone());
        SetUp { enforced, missing, start }
    }
}
