//! Finds a sandbox's processes by the name that they were started with.
//!
//! Whoever starts a guest may be killed before it has recorded the guest's process. Nobody holds
//! such a sandbox, but it carries its name in its arguments, which nothing inside can change.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::record::reap;

/// What a launcher, and the guest that it becomes, is called in the list of processes.
pub(super) const PROGRAM: &str = "bellglass-guest";

/// A launcher may fork between two looks, so the last look must find nobody. More looks than these
/// would mean that the kernel does not let go of a process.
const LOOKS: usize = 10;

/// Ends every process that was started for a sandbox of this name, and waits until it is gone. Says whether all
/// are.
pub(super) fn kill_all_of(name: &str) -> bool {
    let are_gone = kill_all(|| processes_of(name));
    if !are_gone {
        tracing::warn!(sandbox = name, "some of its processes cannot be ended");
    }
    are_gone
}

fn kill_all(mut look: impl FnMut() -> Vec<OwnedFd>) -> bool {
    for _ in 0..LOOKS {
        let found = look();
        if found.is_empty() {
            return true;
        }
        for pidfd in &found {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
        for pidfd in &found {
            let timeout = Duration::from_secs(5).try_into().ok();
            let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref());
            reap(pidfd);
        }
    }
    false
}

pub(super) fn processes_of(name: &str) -> Vec<OwnedFd> {
    let arguments = format!("{PROGRAM}\0{name}");
    let is_one = |pid: i32| {
        // What was room for a longer name is empty.
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.trim_end_matches('\0') == arguments)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_one(*pid))
        .filter_map(|pid| {
            let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty());
            // Looked at again: from here on the descriptor cannot come to mean another process.
            pidfd.ok().filter(|_| is_one(pid))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    /// A process that stays, with one argument. `sleep` adds up its arguments, so any number is a
    /// name of its own.
    fn start(name: &str) -> Child {
        Command::new("sleep").arg0(PROGRAM).arg(name).spawn().unwrap()
    }

    #[test]
    fn only_processes_of_that_name_are_ended() {
        let (mut ended, mut other) = (start("86401"), start("86402"));
        while processes_of("86401").is_empty() || processes_of("86402").is_empty() {}
        assert!(kill_all_of("86401"));
        // It was our child, so it was reaped too.
        assert!(ended.try_wait().is_err());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
    #[test]
    #[allow(clippy::zombie_processes, reason = "they are waited for by their descriptors")]
    fn what_does_not_end_is_not_said_to_be_gone() {
        let another = || {
            let child = start("86403");
            let pid = Pid::from_raw(child.id() as i32).unwrap();
            vec![rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()]
        };
        assert!(!kill_all(another));
        let mut one = Some(another());
        assert!(kill_all(|| one.take().unwrap_or_default()));
    }
}
