//! The `namespace` backend: Linux namespaces, control groups, a system-call filter; no daemon.
//!
//! Each sandbox has a folder with its wire's socket and a record of its process. The sandbox does
//! not die with us: a later process of ours finds it by that folder.

pub(crate) mod control_groups;
mod guest_binary;
pub(crate) mod ids;
mod launcher;
mod prepared;
mod record;
mod running;
#[cfg(test)]
mod tests;
mod unrecorded;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::launch::{GuestConfig, IdMapping, LaunchOrder};
use bellglass_protocol::quantity::ByteSize;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::backend::{
    Backend, BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder,
};
use control_groups::{ControlGroups, Controller};
use guest_binary::GuestBinary;
use ids::IdRanges;
use launcher::Launcher;
use prepared::PreparedCage;
use record::Record;
use running::NamespaceSandbox;

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
    groups: ControlGroups,
    ids: IdRanges,
    /// Cages that are built at once. More would only make all of them wait for the same locks of
    /// the kernel, and the first of many be ready as late as the last.
    builders: Semaphore,
}

impl NamespaceBackend {
    /// Sandboxes of this backend live under `folder`.
    pub fn new(folder: PathBuf) -> Result<Self, BackendError> {
        let folder = private_folder(&folder)
            .and_then(|()| fs::canonicalize(&folder))
            .map_err(BackendError::io(format!("make the folder {}", folder.display())))?;
        let guest = GuestBinary::load().map_err(BackendError::io("load the guest"))?;
        let digest = hex::encode(Sha256::digest(folder.as_os_str().as_encoded_bytes()));
        let groups = ControlGroups::detect(&format!("{}-", &digest[..8]));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let builders = Semaphore::new(2 * cores);
        let shared = Shared { folder, guest, groups, ids: IdRanges::detect(), builders };
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
        let _turn = self.shared.turn_to_build().await;
        blocking(move || {
            let record = shared.start(&order, Purpose::Now)?;
            Ok((shared, record))
        })
        .await
        .and_then(|(shared, record)| NamespaceSandbox::boxed(shared, record))
    }

    async fn prepare(
        &self,
        order: &SandboxOrder,
    ) -> Result<Option<Box<dyn PreparedSandbox>>, BackendError> {
        let (shared, order) = (self.shared.clone(), order.clone());
        let _turn = self.shared.turn_to_build().await;
        let prepared = blocking(move || PreparedCage::make(shared, order)).await?;
        Ok(Some(Box::new(prepared)))
    }

    async fn find(
        &self,
        name: &SandboxName,
    ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        match self.shared.record_of(name) {
            Some(record) if record.is_alive() => {
                self.shared.ids.reserve(record.ids);
                NamespaceSandbox::boxed(self.shared.clone(), record).map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), BackendError> {
        let (shared, name) = (self.shared.clone(), name.clone());
        blocking(move || {
            shared.remove(&name);
            Ok(())
        })
        .await
    }

    async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let (shared, keep) = (self.shared.clone(), keep.clone());
        blocking(move || shared.sweep(&keep)).await
    }
}

/// Whether a sandbox is made for a job that is there, or for one that may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Now,
    Later,
}

impl Shared {
    async fn turn_to_build(&self) -> SemaphorePermit<'_> {
        self.builders.acquire().await.expect("the semaphore is never closed")
    }

    /// Makes a sandbox, or leaves nothing behind.
    fn start(&self, order: &SandboxOrder, purpose: Purpose) -> Result<Record, BackendError> {
        let folder = self.folder.join(order.name.as_str());
        if folder.exists() {
            // An earlier sandbox of this name ended together with whoever would have cleaned up.
            self.remove(&order.name);
        }
        private_folder(&folder).map_err(BackendError::io("make the sandbox's folder"))?;
        let ids = self.ids.take().ok_or_else(|| {
            BackendError::Unsupported("all id ranges are in use; let some sandboxes end".into())
        })?;
        let result = self.launch(order, &folder, ids, purpose);
        if result.is_err() {
            self.remove_traces(&order.name);
            self.ids.give_back(ids);
        }
        result
    }

    fn launch(
        &self,
        order: &SandboxOrder,
        folder: &Path,
        ids: IdMapping,
        purpose: Purpose,
    ) -> Result<Record, BackendError> {
        let name = order.name.as_str();
        // It starts while the control groups are made, and ends while the record is written.
        let mut launcher = Launcher::start(&self.guest, name)?;
        self.groups
            .create(name, &order.limits)
            .map_err(BackendError::io("make the sandbox's control groups"))?;
        let held = purpose == Purpose::Later;
        let launch_order = LaunchOrder { held, ..self.launch_order(order, folder, ids) };
        let launched = launcher.build(&launch_order)?;
        let (groups, set_up) = (self.groups.folders(name), self.set_up(order));
        let record = Record::new(order.name.clone(), launched, ids, groups, set_up);
        record.write(folder).map_err(BackendError::io("record the sandbox"))?;
        Ok(record)
    }

    fn launch_order(&self, order: &SandboxOrder, folder: &Path, ids: IdMapping) -> LaunchOrder {
        let joins = self.groups.join_files(order.name.as_str());
        LaunchOrder {
            name: order.name.to_string(),
            rootfs: order.rootfs.to_string_lossy().into_owned(),
            wire: folder.join(record::WIRE).to_string_lossy().into_owned(),
            ids,
            cgroup_joins: joins.iter().map(|file| file.to_string_lossy().into_owned()).collect(),
            disk: disk_room(&order.limits),
            shared_memory: shared_memory(&order.limits),
            guest: guest_config(order),
            held: false,
        }
    }

    /// What was done about limits, in words.
    fn set_up(&self, order: &SandboxOrder) -> crate::backend::SetUp {
        let limits = &order.limits;
        let words = |controller| match controller {
            Controller::Memory => format!("at most {} of memory", limits.memory),
            Controller::Processes => format!("at most {} processes", limits.processes),
            Controller::Cpu => format!("at most {} CPUs", limits.cpus),
        };
        let mut set_up = crate::backend::SetUp::default();
        if disk_room(limits) < limits.disk {
            set_up.missing.push(format!(
                "files are held in memory here, so {} of disk need a memory limit of twice that",
                limits.disk
            ));
        }
        let version = self.groups.version_name();
        for controller in Controller::ALL {
            if self.groups.has(controller) {
                set_up.enforced.push(format!("{} (cgroup {version})", words(controller)));
            } else {
                set_up.missing.push(format!(
                    "no control group for {}: run as root, or delegate one to this user",
                    controller.describe()
                ));
            }
        }
        set_up
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
        // Their ids are taken from now on, not only once somebody asks for them.
        let mut made_as = HashSet::new();
        for record in keep.iter().filter_map(|name| self.record_of(name)) {
            if record.is_alive() {
                self.ids.reserve(record.ids);
            }
            made_as.extend(record.made_as);
        }
        let folders = fs::read_dir(&self.folder)
            .map_err(BackendError::io("list the sandboxes' folders"))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let names: HashSet<SandboxName> = folders
            .chain(self.groups.names())
            .filter(|name| !made_as.contains(name))
            .filter_map(|name| SandboxName::parse(&name))
            .filter(|name| !keep.contains(name))
            .collect();
        names.iter().for_each(|name| self.remove(name));
        Ok(names.len())
    }

    /// Ends a sandbox that nobody holds, if it still runs, and removes what it used.
    fn remove(&self, name: &SandboxName) {
        if let Some(record) = self.record_of(name) {
            record.kill_and_wait();
            self.ids.give_back(record.ids);
        } else {
            unrecorded::kill_all_of(name.as_str());
        }
        self.remove_traces(name);
    }
}

fn guest_config(order: &SandboxOrder) -> GuestConfig {
    GuestConfig {
        workspace: "/workspace".into(),
        tool_uid: TOOL_ID,
        tool_gid: TOOL_ID,
        home: "/home/agent".into(),
        open_files: order.limits.open_files,
        egress: order.egress,
        processes: Some(order.limits.processes),
        orphaned_after_seconds: order.orphaned_after.map(|time| time.as_secs().max(1)),
    }
}

/// Room for files. They are held in memory and count there, so they get at most half of it: a full
/// disk must be met as such, before the kernel ends processes for want of memory.
fn disk_room(limits: &Limits) -> ByteSize {
    limits.disk.min(ByteSize(limits.memory.0 / 2))
}

/// Room in /dev/shm, on top of that for files: both together are at most five eighths of the memory,
/// so that what processes need for themselves is never taken by data alone.
fn shared_memory(limits: &Limits) -> ByteSize {
    const MOST: u64 = 256 << 20;
    ByteSize((limits.memory.0 / 8).min(MOST))
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
