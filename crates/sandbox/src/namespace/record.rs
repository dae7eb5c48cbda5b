//! What is written down about a running sandbox, so that a later process of ours finds it again.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bellglass_protocol::launch::{Adopted, IdMapping, Launched};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};

use super::attestation::Claims;
use super::control_groups::Relief;
use crate::backend::{SandboxName, SetUp};

/// Name of the wire's socket in a sandbox's folder.
pub(super) const WIRE: &str = "wire";
const RECORD: &str = "sandbox.json";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) name: String,
    /// The name that it was made under, if that was ahead of its job: its processes and control
    /// groups still have it.
    #[serde(default)]
    pub(super) made_as: Option<String>,
    pub(super) pid: i32,
    /// When the process started, in the kernel's ticks: with the id it names one process for good.
    start_time: u64,
    pub(super) ids: IdMapping,
    /// The namespaces of that process, as the launcher saw them from outside. Older records do not
    /// have them.
    #[serde(default)]
    pub(super) namespaces: BTreeMap<String, u64>,
    /// The folders of its control groups. Older records do not have them.
    #[serde(default)]
    pub(super) groups: Vec<PathBuf>,
    pub(super) enforced: Vec<String>,
    pub(super) missing: Vec<String>,
    /// What is claimed about it. Older records do not have it.
    #[serde(default)]
    pub(super) claims: Option<Claims>,
    /// The image that it lives on. Older records do not have it.
    #[serde(default)]
    rootfs: Option<PathBuf>,
}

/// The images that the sandboxes below a folder live on; none where that cannot be told, because one of
/// them is being made or its record is from an older program.
pub fn images_in_use(folder: &Path) -> io::Result<Option<HashSet<PathBuf>>> {
    let mut images = HashSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let Some(record) = Record::read(&entry.path()) else { return Ok(None) };
        match record.rootfs.clone() {
            Some(rootfs) => _ = images.insert(rootfs),
            None if record.is_alive() => return Ok(None),
            None => {}
        }
    }
    Ok(Some(images))
}

impl Record {
    pub(super) fn new(
        name: SandboxName,
        launched: Launched,
        ids: IdMapping,
        groups: Vec<PathBuf>,
        set_up: SetUp,
        claims: Option<Claims>,
    ) -> Self {
        let start_time = start_time(launched.pid).unwrap_or(0);
        Self {
            name: name.to_string(),
            made_as: None,
            pid: launched.pid,
            start_time,
            ids,
            namespaces: launched.namespaces,
            groups,
            enforced: launched.enforced.into_iter().chain(set_up.enforced).collect(),
            missing: launched.missing.into_iter().chain(set_up.missing).collect(),
            claims,
            rootfs: None,
        }
    }

    /// The same for a sandbox that lives on this image.
    pub(super) fn on(self, rootfs: &Path) -> Self {
        Self { rootfs: Some(rootfs.to_owned()), ..self }
    }

    /// The record of the same processes once they are another's.
    pub(super) fn adopted(
        self,
        name: &SandboxName,
        adopted: Adopted,
        set_up: SetUp,
        claims: Claims,
    ) -> Self {
        Self {
            made_as: Some(self.name),
            name: name.to_string(),
            enforced: adopted.enforced.into_iter().chain(set_up.enforced).collect(),
            missing: adopted.missing.into_iter().chain(set_up.missing).collect(),
            claims: Some(claims),
            ..self
        }
    }

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("a record is plain data");
        let draft = folder.join(format!("{RECORD}.new"));
        fs::write(&draft, text)?;
        fs::rename(draft, folder.join(RECORD))
    }

    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
    }

    pub(super) fn is_alive(&self) -> bool {
        self.pidfd().is_some()
    }

    /// A descriptor of the guest's process, if it is still that process and not only its corpse.
    pub(super) fn pidfd(&self) -> Option<OwnedFd> {
        self.pidfd_or_corpse().filter(|pidfd| !has_exited(pidfd))
    }

    fn pidfd_or_corpse(&self) -> Option<OwnedFd> {
        let pidfd = rustix::process::pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty());
        let pidfd = pidfd.ok()?;
        // Checked after opening: from here on the descriptor cannot come to mean another process.
        (start_time(self.pid) == Some(self.start_time)).then_some(pidfd)
    }

    /// Ends the guest, and with it all processes of the sandbox, and waits until they are gone. One
    /// that waits in the kernel for what does not answer is not; whatever is its own stays so.
    pub(super) fn kill_and_wait(&self) -> io::Result<()> {
        let Some(pidfd) = self.pidfd_or_corpse() else { return Ok(()) };
        let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
        Relief::for_good(&self.groups);
        let is_gone = ends_within(ENDING_TIME, &pidfd);
        reap(&pidfd);
        let why = || format!("the kernel has not ended it within {} s", ENDING_TIME.as_secs());
        if is_gone { Ok(()) } else { Err(io::Error::other(why())) }
    }
}

/// How long a process that was killed may take to end.
pub(super) const ENDING_TIME: Duration = Duration::from_secs(10);

pub(super) fn ends_within(time: Duration, pidfd: &OwnedFd) -> bool {
    let timeout = time.try_into().ok();
    loop {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.is_ok_and(|count| count > 0),
        }
    }
}

/// Takes the exit status, so that no corpse is left if the guest was our child.
pub(super) fn reap(pidfd: &OwnedFd) {
    use std::os::fd::AsFd as _;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options);
}

pub(crate) fn has_exited(pidfd: &OwnedFd) -> bool {
    let now = Duration::ZERO.try_into().ok();
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], now.as_ref()).is_ok_and(|ready| ready > 0)
}

/// The 22nd field of `/proc/PID/stat`. The second may contain anything, so counting starts after it.
fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &text[text.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_id_and_start() {
        let pid = std::process::id() as i32;
        let launched = Launched { pid, ..Launched::default() };
        let name = SandboxName::throwaway();
        let record = Record::new(name, launched, IdMapping::Single, vec![], SetUp::default(), None);
        assert!(record.is_alive());
        assert!(!Record { start_time: record.start_time + 1, ..record.clone() }.is_alive());
        assert!(!Record { pid: i32::MAX, ..record }.is_alive());
    }

    #[test]
    fn what_sandboxes_live_on_is_known_or_said_to_be_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = folder.path().join(name);
            fs::create_dir(&place).unwrap();
            place
        };
        let record = |pid| {
            let launched = Launched { pid, ..Launched::default() };
            let (name, ids) = (SandboxName::throwaway(), IdMapping::Single);
            Record::new(name, launched, ids, vec![], SetUp::default(), None)
        };
        let alive = std::process::id() as i32;
        record(alive).on(Path::new("/images/base-1/rootfs")).write(&place("one")).unwrap();
        record(i32::MAX).write(&place("dead")).unwrap();
        let found = images_in_use(folder.path()).unwrap().unwrap();
        assert_eq!(found, HashSet::from(["/images/base-1/rootfs".into()]));

        let unknown = place("two");
        assert_eq!(images_in_use(folder.path()).unwrap(), None, "it is being made");
        record(alive).write(&unknown).unwrap();
        assert_eq!(images_in_use(folder.path()).unwrap(), None, "it does not say");
        assert!(images_in_use(&folder.path().join("nowhere")).is_err());
    }
}
