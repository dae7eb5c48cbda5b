//! Kills everything that a call started, wherever it has moved to.
//!
//! Sessions, process groups and parents can be left; the supervisor cannot, since it adopts every
//! orphan. So its descendants are killed until it has none and exits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::supervisor;

/// Most trees are gone after one pass.
const BETWEEN_PASSES: Duration = Duration::from_millis(1);
/// After this, the tree multiplies faster than it can be killed one by one.
const PATIENCE: Duration = Duration::from_secs(1);
/// After this, what is left waits in the kernel and dies when it returns from there.
const GIVE_UP: Duration = Duration::from_secs(4);

/// Kills the tree under a supervisor and returns once it is gone, or after a few seconds.
///
/// `tool_ids` are the user and group that tools run as.
pub(super) fn kill_tree(supervisor: libc::pid_t, tool_ids: (u32, u32)) {
    let start = Instant::now();
    let mut killed_all_tools = false;
    loop {
        let processes = Processes::read();
        if !processes.is_alive(supervisor) {
            return;
        }
        for pid in processes.descendants(supervisor) {
            send_kill(pid);
        }
        if start.elapsed() > PATIENCE && !killed_all_tools && rustix::process::getpid().is_init() {
            killed_all_tools = true;
            kill_every_tool_process(tool_ids);
        }
        if start.elapsed() > GIVE_UP {
            send_kill(supervisor);
            return;
        }
        std::thread::sleep(BETWEEN_PASSES);
    }
}

/// The processes that a supervisor has started itself, or adopted.
pub(super) fn children_of(supervisor: libc::pid_t) -> Vec<libc::pid_t> {
    let processes = Processes::read();
    let children = processes.alive.iter().filter(|(_, parent)| **parent == supervisor);
    children.map(|(pid, _)| *pid).collect()
}

/// All that lives under a supervisor, in any generation.
pub(super) fn descendants_of(supervisor: libc::pid_t) -> Vec<libc::pid_t> {
    Processes::read().descendants(supervisor)
}

/// Ends all that tools have left running and returns once it is gone, or after a few seconds. Does
/// nothing unless this is the first process, because only then all others belong to tools.
pub(super) fn kill_all_tools() {
    if !rustix::process::getpid().is_init() {
        return;
    }
    let start = Instant::now();
    loop {
        // SAFETY: takes numbers only. It reaches every process of this namespace at once, except
        // the first, so nothing that forks can run ahead of it.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        if Processes::read().only_first() || start.elapsed() > GIVE_UP {
            return;
        }
        std::thread::sleep(BETWEEN_PASSES);
    }
}

/// The last resort: one system call that reaches every process of the tools' user at once, also
/// those of other calls. It is only right where all such processes belong to this sandbox.
fn kill_every_tool_process((uid, gid): (u32, u32)) {
    // SAFETY: the child makes system calls only. It takes on the tools' ids first, so that it can
    // hit nothing else; the guest is safe in any case, for it is the first process.
    unsafe {
        match supervisor::fork() {
            0 => {
                libc::syscall(libc::SYS_setresgid, gid, gid, gid);
                if libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0 {
                    libc::kill(-1, libc::SIGKILL);
                }
                libc::_exit(0);
            }
            // Where no process can be made any more, the supervisors of other calls go too.
            pid if pid < 0 => drop(libc::kill(-1, libc::SIGKILL)),
            _ => {}
        }
    }
}

fn send_kill(pid: libc::pid_t) {
    // SAFETY: takes numbers only. A process that is gone already is no failure.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The process table as it was a moment ago.
struct Processes {
    alive: HashMap<libc::pid_t, ParentId>,
}

type ParentId = libc::pid_t;

impl Processes {
    fn read() -> Self {
        let mut alive = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
            if let Some(parent) = parent_of_living(&stat) {
                alive.insert(pid, parent);
            }
        }
        Self { alive }
    }

    fn is_alive(&self, pid: libc::pid_t) -> bool {
        self.alive.contains_key(&pid)
    }

    fn only_first(&self) -> bool {
        self.alive.keys().all(|pid| *pid == 1)
    }

    fn descendants(&self, ancestor: libc::pid_t) -> Vec<libc::pid_t> {
        let mut children: HashMap<ParentId, Vec<libc::pid_t>> = HashMap::new();
        for (pid, parent) in &self.alive {
            children.entry(*parent).or_default().push(*pid);
        }
        let mut found = children.remove(&ancestor).unwrap_or_default();
        let mut next = 0;
        while let Some(pid) = found.get(next).copied() {
            found.extend(children.remove(&pid).unwrap_or_default());
            next += 1;
        }
        found
    }
}

/// Reads `pid (name) state parent …`; nothing for a process that is dead already.
fn parent_of_living(stat: &[u8]) -> Option<ParentId> {
    // A name may hold anything, also brackets and bytes that are no text; the rest may not.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_confuse_the_reader() {
        assert_eq!(parent_of_living(b"12 (a) R 77) S 5 1 1"), Some(5));
        assert_eq!(parent_of_living(b"12 (\xff (x) S 9 1"), Some(9));
        assert_eq!(parent_of_living(b"12 (gone) Z 5 1 1"), None);
        assert_eq!(parent_of_living(b"12"), None);
    }

    #[test]
    fn descendants_are_found_through_generations() {
        let alive = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 5)]);
        let mut found = Processes { alive }.descendants(2);
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }
}
