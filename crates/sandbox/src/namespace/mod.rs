//! The `namespace` backend: Linux namespaces, control groups, a system-call filter; no daemon.
//!
//! Each sandbox has a folder with its wire's socket and a record of its process. The sandbox does
//! not die with us: a later process of ours finds it by that folder.

mod attestation;
pub(crate) mod control_groups;
mod guest_binary;
mod held;
mod id_blocks;
pub(crate) mod ids;
mod launcher;
mod prepared;
pub(crate) mod record;
mod resources;
mod running;
#[cfg(test)]
mod tests;
mod unrecorded;

pub use control_groups::Relief;
pub use record::images_in_use;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::cage::WORKSPACE;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::launch::{GuestConfig, IdMapping, Kernel, LaunchOrder};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backend::{
    Backend, BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder, SetUp,
};
use attestation::{Claims, Host};
use control_groups::ControlGroups;
use guest_binary::GuestBinary;
use held::{HeldNames, Holds};
use ids::IdRanges;
use launcher::{Building, WaitingLauncher};
use prepared::PreparedCage;
use record::Record;
use resources::Disks;
use running::{Beginning, Grip, NamespaceSandbox};

/// The user that tools run as, inside.
const TOOL_ID: u32 = 1000;

/// Makes sandboxes out of namespaces.
pub struct NamespaceBackend {
    shared: Arc<Shared>,
}

/// What the backend and its sandboxes use together.
struct Shared {
    /// Holds a folder for each sandbox.
    folder: PathBuf,
    guest: GuestBinary,
    launcher: WaitingLauncher,
    groups: ControlGroups,
    ids: IdRanges,
    /// What runs in the cages.
    kernel: Kernel,
    disks: Disks,
    held: Arc<HeldNames>,
    host: Host,
    /// Cages that are built at once. More would only make all of them wait for the same locks of
    /// the kernel, and the first of many be ready as late as the last.
    builders: Arc<Semaphore>,
}

impl NamespaceBackend {
    /// Sandboxes of this backend live under `folder`.
    pub fn new(folder: PathBuf) -> Result<Self, BackendError> {
        Self::with_kernel(folder, Kernel::Host)
    }

    /// The same cages with another kernel in them. No two backends share a folder.
    pub(crate) fn with_kernel(folder: PathBuf, kernel: Kernel) -> Result<Self, BackendError> {
        let folder = private_folder(&folder)
            .and_then(|()| fs::canonicalize(&folder))
            .map_err(BackendError::io(format!("make the folder {}", folder.display())))?;
        let guest = GuestBinary::load().map_err(BackendError::io("load the guest"))?;
        let digest = hex::encode(Sha256::digest(folder.as_os_str().as_encoded_bytes()));
        let groups = ControlGroups::detect(&format!("{}-", &digest[..8]));
        let ids = IdRanges::detect(&folder);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Shared {
            folder,
            guest,
            launcher: WaitingLauncher::default(),
            groups,
            ids,
            kernel,
            disks: Disks::detect(),
            held: Arc::default(),
            host: Host::look(),
            builders: Arc::new(Semaphore::new(2 * cores)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

#[async_trait]
impl Backend for NamespaceBackend {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn level(&self) -> IsolationLevel {
        IsolationLevel::Namespace
    }

    async fn start(&self, order: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let (shared, order) = (self.shared.clone(), order.clone());
        let turn = self.shared.turn_to_build().await;
        let next = NextLauncher::of(&self.shared, UNDISTURBED);
        blocking(move || {
            let holds = Holds { _name: shared.held.hold(&order.name), _made_as: None };
            let (record, (grip, building)) = shared.start(&order)?;
            Ok((shared, record, grip, building, holds))
        })
        .await
        .and_then(|(shared, record, grip, building, holds)| {
            let start = Some(Beginning { building, turn, next });
            NamespaceSandbox::boxed(shared, record, grip, start, holds)
        })
    }

    async fn prepare(
        &self,
        order: &SandboxOrder,
    ) -> Result<Option<Box<dyn PreparedSandbox>>, BackendError> {
        let (shared, order) = (self.shared.clone(), order.clone());
        let _turn = self.shared.turn_to_build().await;
        // Nobody waits for this one, so there is time to be ready for those who will.
        let _next = NextLauncher::of(&self.shared, Duration::ZERO);
        let prepared = blocking(move || PreparedCage::make(shared, order)).await?;
        Ok(Some(Box::new(prepared)))
    }

    async fn find(
        &self,
        name: &SandboxName,
    ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        let (shared, name) = (self.shared.clone(), name.clone());
        let found = blocking(move || {
            let hold = shared.held.hold(&name);
            let Some(record) = shared.record_of(&name).filter(Record::is_alive) else {
                return Ok(None);
            };
            let made_as = record.made_as.as_deref().and_then(SandboxName::parse);
            let made_as = made_as.map(|made_as| shared.held.hold(&made_as));
            // Whoever held it before may have been killed while it had more than its share.
            record.claims.iter().for_each(|claims| claims.end_relief());
            let grip = Grip::take(&shared, &record);
            Ok(Some((shared, record, grip, Holds { _name: hold, _made_as: made_as })))
        })
        .await?;
        let Some((shared, record, grip, holds)) = found else { return Ok(None) };
        shared.ids.reserve(record.ids);
        NamespaceSandbox::boxed(shared, record, grip, None, holds).map(Some)
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), BackendError> {
        let (shared, name) = (self.shared.clone(), name.clone());
        blocking(move || shared.remove(&name).map_err(BackendError::io("end the sandbox"))).await
    }

    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        let shared = self.shared.clone();
        blocking(move || shared.names()).await
    }

    async fn remove_orphans(&self, names: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let (shared, names) = (self.shared.clone(), names.clone());
        blocking(move || Ok(shared.remove_orphans(&names))).await
    }

    async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let (shared, keep) = (self.shared.clone(), keep.clone());
        blocking(move || shared.sweep(&keep)).await
    }
}

/// How long nothing else is started after a sandbox: it has a guest that starts, and somebody who waits for it.
const UNDISTURBED: Duration = Duration::from_millis(20);

/// Has a launcher wait for the next sandbox once this one had its time, however its making ended.
struct NextLauncher {
    shared: Weak<Shared>,
    after: Duration,
}

impl NextLauncher {
    fn of(shared: &Arc<Shared>, after: Duration) -> Self {
        Self { shared: Arc::downgrade(shared), after }
    }
}

impl Drop for NextLauncher {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (shared, after) = (self.shared.clone(), self.after);
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(shared) = shared.upgrade() {
                let _ =
                    tokio::task::spawn_blocking(move || shared.launcher.fill(&shared.guest)).await;
            }
        });
    }
}

/// Somebody's turn to build a cage: until its guest greets, but not longer than most guests take. A job may
/// have so little processor time that others would wait for it.
struct Turn {
    _permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

const LONGEST_TURN: Duration = Duration::from_secs(1);

impl Turn {
    fn of(permit: OwnedSemaphorePermit) -> Self {
        let permit = Arc::new(Mutex::new(Some(permit)));
        let turn = Arc::downgrade(&permit);
        tokio::spawn(async move {
            tokio::time::sleep(LONGEST_TURN).await;
            if let Some(permit) = turn.upgrade() {
                permit.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        });
        Self { _permit: permit }
    }
}

/// Why there is no sandbox, and what became of its processes.
#[derive(Debug, thiserror::Error)]
enum NotMade {
    #[error(transparent)]
    Gone(BackendError),
    /// One of them does not end, so its ids and its traces stay its own.
    #[error(transparent)]
    Remains(BackendError),
}

impl From<BackendError> for NotMade {
    fn from(error: BackendError) -> Self {
        Self::Gone(error)
    }
}

impl Shared {
    async fn turn_to_build(&self) -> Turn {
        let permit = self.builders.clone().acquire_owned().await;
        Turn::of(permit.expect("the semaphore is never closed"))
    }

    /// Makes a sandbox for a job that is there. When this returns, its cage is being built.
    fn start(&self, order: &SandboxOrder) -> Result<(Record, (Grip, Building)), BackendError> {
        self.make(order, false, |record, folder, building| {
            record.write(folder).map_err(not_recorded())?;
            Ok((Grip::take(self, record), building))
        })
    }

    /// Makes one for a job that may come. When this returns, its cage stands.
    fn start_ahead(&self, order: &SandboxOrder) -> Result<Record, BackendError> {
        let made = self.make(order, true, |record, folder, building| {
            // Nobody is in a hurry, and whoever finds a record then finds a cage that stands.
            building.ready()?;
            record.write(folder).map_err(not_recorded())
        });
        made.map(|(record, ())| record)
    }

    /// Makes a sandbox, or leaves nothing behind. `meanwhile` has the record written, while the cage is built.
    fn make<T>(
        &self,
        order: &SandboxOrder,
        held: bool,
        meanwhile: impl FnOnce(&Record, &Path, Building) -> Result<T, BackendError>,
    ) -> Result<(Record, T), BackendError> {
        let folder = self.folder.join(order.name.as_str());
        if folder.exists() {
            // An earlier sandbox of this name ended together with whoever would have cleaned up.
            self.remove(&order.name).map_err(BackendError::io("end an earlier sandbox"))?;
        }
        let launch = |ids| {
            let launch_order = LaunchOrder { held, ..self.launch_order(order, &folder, ids) };
            self.launch(order, &launch_order, &folder, |record, building| {
                meanwhile(record, &folder, building)
            })
        };
        self.with_ids(launch).map_err(|not_made| match not_made {
            NotMade::Gone(error) => {
                self.remove_traces(&order.name);
                error
            }
            // A later sweep finds it by its traces.
            NotMade::Remains(error) => error,
        })
    }

    /// Takes ids for a sandbox; they come back if it is not made.
    fn with_ids<T>(
        &self,
        make: impl FnOnce(IdMapping) -> Result<T, NotMade>,
    ) -> Result<T, NotMade> {
        let ids = self.ids.take().map_err(|error| BackendError::Unsupported(error.to_string()))?;
        let result = self.suits_kernel(ids).map_err(NotMade::from).and_then(|()| make(ids));
        if matches!(result, Err(NotMade::Gone(_))) {
            self.ids.give_back(ids);
        }
        result
    }

    fn suits_kernel(&self, ids: IdMapping) -> Result<(), BackendError> {
        if ids == IdMapping::Single && self.kernel != Kernel::Host {
            return Err(BackendError::Unsupported(
                "gVisor needs more than one id: run as root, or install uidmap and add a line for \
                 this user to /etc/subuid and /etc/subgid"
                    .into(),
            ));
        }
        Ok(())
    }

    fn launch<T>(
        &self,
        order: &SandboxOrder,
        launch_order: &LaunchOrder,
        folder: &Path,
        meanwhile: impl FnOnce(&Record, Building) -> Result<T, BackendError>,
    ) -> Result<(Record, T), NotMade> {
        let name = order.name.as_str();
        let mut launcher = self.launcher.take(&self.guest)?;
        // It makes a process, or has yet to start, while the rest is made that belongs to the sandbox.
        launcher.prepare(launch_order);
        let host_limits = self.host_limits(&order.limits);
        let made = private_folder(folder).map_err(BackendError::io("make the sandbox's folder"));
        let made = made.and_then(|()| {
            let made = self.groups.create(name, &host_limits);
            made.map_err(BackendError::io("make the sandbox's control groups"))
        });
        if let Err(error) = made {
            return Err(launcher.abandon(&order.name, error));
        }
        let (launched, building) = launcher.launch(&order.name)?;
        let (set_up, claims) = self.claim(order, launch_order, name);
        let (groups, ids) = (self.groups.folders(name), launch_order.ids);
        let claims = Some(claims);
        let record = Record::new(order.name.clone(), launched, ids, groups, set_up, claims);
        let record = record.on(&order.rootfs);
        match meanwhile(&record, building) {
            Ok(made) => Ok((record, made)),
            // Nobody would find it again, and its ids are about to be another's.
            Err(error) => Err(match record.kill_and_wait() {
                Ok(()) => NotMade::Gone(error),
                Err(still_there) => {
                    tracing::error!(sandbox = name, %still_there, "a sandbox that was not made does not end");
                    NotMade::Remains(error)
                }
            }),
        }
    }

    /// What is said of a sandbox whose control groups have this name.
    fn claim(
        &self,
        order: &SandboxOrder,
        launch_order: &LaunchOrder,
        groups: &str,
    ) -> (SetUp, Claims) {
        let mut set_up = resources::describe(&order.limits, &self.groups, launch_order.disk);
        set_up.missing.extend(resources::unlimited_swap(&order.limits, &self.groups, groups));
        let written = self.groups.written(groups, &self.host_limits(&order.limits));
        (set_up, Claims::of(launch_order, self.groups.folders(groups), written))
    }

    fn launch_order(&self, order: &SandboxOrder, folder: &Path, ids: IdMapping) -> LaunchOrder {
        let limits = &order.limits;
        let (storage, disk) = resources::storage(limits, self.disks, &self.folder);
        let joins = self.groups.join_files(order.name.as_str());
        LaunchOrder {
            name: order.name.to_string(),
            rootfs: order.rootfs.to_string_lossy().into_owned(),
            wire: folder.join(record::WIRE).to_string_lossy().into_owned(),
            ids,
            cgroup_joins: joins.iter().map(|file| file.to_string_lossy().into_owned()).collect(),
            disk,
            storage,
            shared_memory: resources::shared_memory(limits),
            kernel: self.kernel.clone(),
            guest: GuestConfig {
                workspace: WORKSPACE.into(),
                tool_uid: TOOL_ID,
                tool_gid: TOOL_ID,
                home: "/home/agent".into(),
                open_files: limits.open_files,
                processes: Some(limits.processes),
                nested_sandboxing: order.nested_sandboxing,
                memory: resources::counted_by_the_guest(limits, &self.groups),
                processors: resources::processors(limits, &self.groups),
                orphaned_after_seconds: order.orphaned_after.map(|time| time.as_secs().max(1)),
            },
            held: false,
        }
    }

    /// What the sandbox may use up as the host counts it. gVisor's kernel holds tools to their limit
    /// of processes itself, and needs two or more of the host's for each, and some for itself; it
    /// must not be the one that finds no more.
    fn host_limits(&self, limits: &Limits) -> Limits {
        const KERNEL_THREADS: u32 = 128;
        let processes = match &self.kernel {
            Kernel::Host => limits.processes,
            Kernel::Gvisor { .. } => {
                limits.processes.saturating_mul(2).saturating_add(KERNEL_THREADS)
            }
        };
        Limits { processes, ..*limits }
    }

    fn record_of(&self, name: &SandboxName) -> Option<Record> {
        Record::read(&self.folder.join(name.as_str()))
    }

    /// Removes the folder and the groups of a sandbox whose processes are gone.
    fn remove_traces(&self, name: &SandboxName) {
        let mut groups = self.groups.folders(name.as_str());
        // Those that it was started with may lie elsewhere, if we run in another group now.
        groups.extend(self.record_of(name).into_iter().flat_map(|record| record.groups));
        if let Err(error) = control_groups::remove(&groups) {
            tracing::warn!(sandbox = %name, %error, "could not remove its control groups");
        }
        match fs::remove_dir_all(self.folder.join(name.as_str())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(sandbox = %name, %error, "could not remove its folder");
            }
            _ => {}
        }
    }

    fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let names = self.names()?;
        // The ids of all that live are taken from now on: those of the kept ones, which nobody has asked for yet,
        // and those of orphans until they are gone.
        for record in names.iter().filter_map(|name| self.record_of(name)) {
            if record.is_alive() {
                self.ids.reserve(record.ids);
            }
        }
        Ok(self.remove_orphans(&names.difference(keep).cloned().collect()))
    }

    fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        let folders = fs::read_dir(&self.folder)
            .map_err(BackendError::io("list the sandboxes' folders"))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let names = folders.chain(self.groups.names());
        let names = names.filter_map(|name| SandboxName::parse(&name)).collect::<HashSet<_>>();
        // One that was made ahead has its control groups under the name that it had then.
        let records = names.iter().filter_map(|name| Some((name, self.record_of(name)?)));
        let made_as: HashSet<SandboxName> = records
            .filter_map(|(name, record)| {
                SandboxName::parse(&record.made_as?).filter(|it| it != name)
            })
            .collect();
        Ok(names.difference(&made_as).cloned().collect())
    }

    fn remove_orphans(&self, names: &HashSet<SandboxName>) -> usize {
        names.iter().filter(|name| self.held.sweep(name, || self.remove_or_warn(name))).count()
    }

    /// Ends a sandbox that nobody holds, if it still runs, and removes what it used. What cannot be
    /// ended keeps its ids and its traces, so that nobody else gets them and a later sweep finds it.
    fn remove(&self, name: &SandboxName) -> io::Result<()> {
        if let Some(record) = self.record_of(name) {
            record.kill_and_wait()?;
            self.ids.give_back(record.ids);
        } else if !unrecorded::kill_all_of(name.as_str()) {
            return Err(io::Error::other("some of its processes cannot be ended"));
        }
        self.remove_traces(name);
        Ok(())
    }

    fn remove_or_warn(&self, name: &SandboxName) {
        if let Err(error) = self.remove(name) {
            tracing::warn!(sandbox = %name, %error, "could not end it; the next sweep tries again");
        }
    }
}

fn not_recorded() -> impl FnOnce(io::Error) -> BackendError {
    BackendError::io("record the sandbox")
}

/// Makes a folder that only its owner may enter; one that exists is fine.
fn private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Runs code that waits for the kernel outside of the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackendError> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(stopped) => std::panic::resume_unwind(stopped.into_panic()),
    }
}
