//! Looks around the sandbox from inside: what is enforced, as a tool process would find it.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};

use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::report::Probe;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::confine::Confinement;
use super::supervisor;

pub(super) fn look_around(config: &GuestConfig, confinement: &Confinement) -> Probe {
    let status = status_of_a_tool(confinement).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    let system = rustix::system::uname();
    Probe {
        tool_uid: config.tool_uid,
        uid_map: squeezed(&read("/proc/self/uid_map")),
        capabilities: field("CapEff"),
        bounding_set: field("CapBnd"),
        no_new_privs: match field("NoNewPrivs").as_str() {
            // gVisor's kernel does not show it, but tells it to who asks for himself.
            "" => rustix::thread::no_new_privs().unwrap_or(false),
            shown => shown == "1",
        },
        seccomp_mode: field("Seccomp").parse().unwrap_or(0),
        interfaces: interfaces(&read("/proc/self/net/dev")),
        kernel: system.release().to_string_lossy().into_owned(),
        hostname: system.nodename().to_string_lossy().into_owned(),
        mounts: u32::try_from(read("/proc/self/mountinfo").lines().count()).unwrap_or(u32::MAX),
    }
}

/// What the kernel says about a process that is confined as every tool is. It starts no program:
/// that would cost more, and confinement is complete before a program starts.
fn status_of_a_tool(confinement: &Confinement) -> Option<String> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    // SAFETY: the child makes system calls only, and never returns.
    let child = unsafe {
        let child = supervisor::fork();
        if child == 0 {
            if confinement.apply().is_ok() {
                copy_own_status(theirs.as_raw_fd());
            }
            libc::_exit(0);
        }
        Pid::from_raw(child)?
    };
    drop(theirs);
    let mut status = String::new();
    let read = File::from(ours).read_to_string(&mut status);
    let _ = waitpid(Some(child), WaitOptions::empty());
    read.ok()?;
    Some(status)
}

unsafe fn copy_own_status(pipe: RawFd) {
    let mut buffer = [0u8; 4096];
    // SAFETY: valid buffers and descriptors; the kernel's text is shorter than the buffer, and what
    // would not fit is not needed.
    unsafe {
        let file = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY);
        let length = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        if let Ok(length) = usize::try_from(length) {
            libc::write(pipe, buffer.as_ptr().cast(), length.min(buffer.len()));
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Two lines of headings, then `name: numbers`.
fn interfaces(table: &str) -> Vec<String> {
    let rows = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    rows.map(|(name, _)| name.trim().to_owned()).collect()
}

/// One line for each range, with single spaces.
fn squeezed(table: &str) -> String {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}
