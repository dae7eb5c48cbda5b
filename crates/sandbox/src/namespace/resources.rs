//! How a job's limits are kept on this host: by control groups where there are some, else by what is
//! left, and in which words the report says so.

use std::path::Path;

use bellglass_protocol::job::Limits;
use bellglass_protocol::launch::Storage;
use bellglass_protocol::quantity::ByteSize;

use super::control_groups::{ControlGroups, Controller};
use crate::backend::SetUp;

/// Whether this host can give a sandbox a disk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disks {
    /// By loop devices, as root.
    Available,
    None,
}

impl Disks {
    pub(super) fn detect() -> Self {
        let can = rustix::process::geteuid().is_root()
            && Path::new("/dev/loop-control").exists()
            && crate::host::finds_program("mkfs.ext4");
        if can { Self::Available } else { Self::None }
    }
}

/// Where files go and how much room they have. What fits is held in memory and counts there, so it
/// gets at most half of it: a full disk must be met as such, before the kernel ends processes for
/// want of memory.
pub(super) fn storage(limits: &Limits, disks: Disks, folder: &Path) -> (Storage, ByteSize) {
    let in_memory = ByteSize(limits.memory.0 / 2);
    match disks {
        _ if limits.disk <= in_memory => (Storage::Memory, limits.disk),
        Disks::Available => {
            (Storage::File { folder: folder.to_string_lossy().into_owned() }, limits.disk)
        }
        Disks::None => (Storage::Memory, in_memory),
    }
}

/// Room in /dev/shm, on top of that for files: both together are at most five eighths of the memory,
/// so that what processes need for themselves is never taken by data alone.
pub(super) fn shared_memory(limits: &Limits) -> ByteSize {
    const MOST: u64 = 256 << 20;
    ByteSize((limits.memory.0 / 8).min(MOST))
}

/// The memory that the guest must add up itself.
pub(super) fn counted_by_the_guest(limits: &Limits, groups: &ControlGroups) -> Option<ByteSize> {
    (!groups.has(Controller::Memory)).then_some(limits.memory)
}

/// The number of processors that tools must stay on, if that is fewer than there are.
pub(super) fn processors(limits: &Limits, groups: &ControlGroups) -> Option<u32> {
    if groups.has(Controller::Cpu) {
        return None;
    }
    let all = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let wanted = (limits.cpus.ceil() as u32).max(1);
    (wanted < all).then_some(wanted)
}

/// What was done about limits, in words.
pub(super) fn describe(limits: &Limits, groups: &ControlGroups, room: ByteSize) -> SetUp {
    let mut set_up = SetUp::default();
    if room < limits.disk {
        set_up.missing.push(format!(
            "files are held in memory here, so {} of disk need a memory limit of twice that; root \
             with mkfs.ext4 and loop devices gets a disk",
            limits.disk
        ));
    }
    let version = groups.version_name();
    for controller in Controller::ALL {
        if groups.has(controller) {
            let words = match controller {
                Controller::Memory => format!("at most {} of memory", limits.memory),
                Controller::Processes => format!("at most {} processes", limits.processes),
                Controller::Cpu => format!("at most {} CPUs", limits.cpus),
            };
            set_up.enforced.push(format!("{words} (cgroup {version})"));
        } else {
            set_up.enforced.extend(instead_of(controller, limits, groups));
            set_up.missing.push(format!(
                "no control group for {}: {}",
                controller.describe(),
                ControlGroups::remedy()
            ));
        }
    }
    set_up.enforced.push(format!("at most {} open files in a process (rlimit)", limits.open_files));
    set_up
}

/// What is missing where the group of this name limits memory alone, and there is swap beside it.
pub(super) fn unlimited_swap(
    limits: &Limits,
    groups: &ControlGroups,
    name: &str,
) -> Option<String> {
    let is_open = groups.leaves_swap_open(name, limits) && has_swap();
    is_open.then(|| {
        "no limit on swap: what does not fit into the memory of a sandbox may go there; switch swap off \
         (`swapoff -a`), or start the kernel with `swapaccount=1`"
            .to_owned()
    })
}

/// A line of headings, then one for each place that the kernel swaps to.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// What is left where there is no control group.
fn instead_of(controller: Controller, limits: &Limits, groups: &ControlGroups) -> Option<String> {
    match controller {
        Controller::Memory => Some(format!(
            "at most {} of memory (added up by the guest, which ends the largest process; what the kernel \
             holds for sockets, pipes and open files does not count)",
            limits.memory
        )),
        Controller::Processes => Some(format!("at most {} processes (rlimit)", limits.processes)),
        Controller::Cpu => processors(limits, groups)
            .map(|count| format!("at most {count} processors (affinity; no share of their time)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_comes_before_the_end_of_memory() {
        let folder = Path::new("/sandboxes");
        for memory in [64 << 20, 256 << 20, 4 << 30, 64 << 30] {
            let limits =
                Limits { memory: ByteSize(memory), disk: ByteSize(u64::MAX), ..Limits::default() };
            let (storage, room) = storage(&limits, Disks::None, folder);
            assert_eq!(storage, Storage::Memory);
            assert!(room.0 + shared_memory(&limits).0 <= memory / 8 * 5);
        }
        let limits =
            Limits { memory: ByteSize(4 << 30), disk: ByteSize(2 << 30), ..Limits::default() };
        // What fits into memory needs no disk.
        let both = (Storage::Memory, ByteSize(2 << 30));
        assert_eq!(storage(&limits, Disks::Available, folder), both);
        assert_eq!(shared_memory(&limits).0, 256 << 20);
        let large = Limits { disk: ByteSize(3 << 30), ..limits };
        let file = Storage::File { folder: "/sandboxes".into() };
        assert_eq!(storage(&large, Disks::Available, folder), (file, large.disk));
    }
}
