//! What the host shows of sandboxes: processes, control groups, mounts, disk space.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Every control group that was made for a sandbox, of whatever version and controller.
pub(crate) fn control_groups_of(sandbox: &str) -> Vec<PathBuf> {
    control_groups().into_iter().filter(|group| is_named_for(group, sandbox)).collect()
}

fn is_named_for(group: &Path, sandbox: &str) -> bool {
    group.file_name().is_some_and(|name| name.to_string_lossy().ends_with(sandbox))
}

/// Every control group of the host.
pub(crate) fn control_groups() -> Vec<PathBuf> {
    let mut groups = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut next = 0;
    while let Some(group) = groups.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(group).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(below.map(|entry| entry.path()));
    }
    groups
}

/// The value of a setting in whichever of a sandbox's groups has it.
pub(crate) fn control_group_value(sandbox: &str, file: &str) -> Option<String> {
    let groups = control_groups_of(sandbox);
    let found = groups.iter().find_map(|group| fs::read_to_string(group.join(file)).ok());
    found.map(|text| text.trim().to_owned())
}

/// A pid namespace. It is held, since the kernel gives the name of one that is gone to the next.
pub(crate) struct PidNamespace {
    pub(crate) name: PathBuf,
    _held: fs::File,
}

/// The pid namespace of a process.
pub(crate) fn pid_namespace(pid: i32) -> Option<PidNamespace> {
    let held = fs::File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(PidNamespace { name: namespace_name(pid)?, _held: held })
}

fn namespace_name(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Every living process of a pid namespace.
pub(crate) fn processes_in(namespace: &PidNamespace) -> Vec<i32> {
    let is_in = |pid: &i32| namespace_name(*pid).as_ref() == Some(&namespace.name);
    all_processes().filter(is_in).filter(|pid| !is_corpse(*pid)).collect()
}

/// The children of a process, those among them that are only corpses too; but for the launcher that waits for
/// its order at each of the two backends, since that is no part of any sandbox.
pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    let children = all_processes().filter(|pid| parent_of(*pid) == Some(parent));
    let (waiting, others): (Vec<i32>, Vec<i32>) =
        children.partition(|pid| is_waiting_launcher(*pid));
    assert!(waiting.len() <= 2, "launchers are left: {waiting:?}");
    others
}

/// Where a launcher will carry the name of its sandbox, one that waits has only room for it.
fn is_waiting_launcher(pid: i32) -> bool {
    let arguments = arguments_of(pid);
    let name = arguments.as_deref().and_then(|line| line.strip_prefix("bellglass-guest\0"));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte == b'-'))
}

fn arguments_of(pid: i32) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    Some(line.trim_end_matches('\0').to_owned())
}

/// The launcher and the guest of a sandbox, which carry its name in their arguments.
pub(crate) fn guests_of(sandbox: &str) -> Vec<i32> {
    let wanted = format!("bellglass-guest\0{sandbox}");
    all_processes().filter(|pid| arguments_of(*pid).as_ref() == Some(&wanted)).collect()
}

fn all_processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has ended and was only not taken away yet: after a crash of its parent that is
/// up to the host's first process.
fn is_corpse(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').is_none_or(|end| stat[end + 1..].trim_start().starts_with('Z'))
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// The lines about our mounts that a process sees.
pub(crate) fn our_mounts(pid: i32) -> Vec<String> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    mounts.lines().filter(|line| line.contains("bellglass")).map(String::from).collect()
}

/// Memory of a process that is not shared with the file system's cache, in bytes.
pub(crate) fn resident_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Kills a process and returns once it is gone; one that is gone already is fine.
pub(crate) fn kill_and_wait(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
}

/// Loop devices whose file lies, or lay, below a folder.
pub(crate) fn disks_in(folder: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let files = devices
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| file.contains(folder.to_str().unwrap())).collect()
}
