//! Says which users outside the sandbox's users are.

use std::process::Command;
use std::{fs, io};

use bellglass_protocol::launch::IdMapping;

use super::Failed;
use super::syscalls::Stage as _;

/// The id that tools and, with a single mapping, also the guest have inside.
const SINGLE_ID_INSIDE: u32 = 1000;

/// Writes the id maps of the user namespace of process `pid`.
pub(super) fn write(ids: IdMapping, pid: i32) -> Result<(), Failed> {
    match ids {
        IdMapping::Range { base } => {
            let map = format!("0 {base} 65536\n");
            fs::write(format!("/proc/{pid}/gid_map"), &map).stage("write the group id map")?;
            fs::write(format!("/proc/{pid}/uid_map"), &map).stage("write the user id map")
        }
        IdMapping::Subordinate { uid_base, gid_base, count } => {
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            run_mapper("newuidmap", pid, uid.as_raw(), uid_base, count)?;
            run_mapper("newgidmap", pid, gid.as_raw(), gid_base, count)
        }
        IdMapping::Single => {
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            // The kernel wants this promise before an unprivileged process may map a group.
            fs::write(format!("/proc/{pid}/setgroups"), "deny").stage("give up setgroups")?;
            fs::write(
                format!("/proc/{pid}/gid_map"),
                format!("{SINGLE_ID_INSIDE} {} 1\n", gid.as_raw()),
            )
            .stage("write the group id map")?;
            fs::write(
                format!("/proc/{pid}/uid_map"),
                format!("{SINGLE_ID_INSIDE} {} 1\n", uid.as_raw()),
            )
            .stage("write the user id map")
        }
    }
}

/// The identity of the guest inside: root where there is one, so that tools cannot touch it.
pub(super) fn guest_id(ids: IdMapping) -> u32 {
    match ids {
        IdMapping::Range { .. } | IdMapping::Subordinate { .. } => 0,
        IdMapping::Single => SINGLE_ID_INSIDE,
    }
}

/// Maps 0 to the user itself and 1 and up to its subordinate ids: the owners of the files in an
/// image that a plain user built.
fn run_mapper(program: &str, pid: i32, own: u32, base: u32, count: u32) -> Result<(), Failed> {
    let map = [0, own, 1, 1, base, count].map(|number| number.to_string());
    let output = Command::new(program)
        .arg(pid.to_string())
        .args(map)
        .output()
        .stage(&format!("start {program} (Debian package uidmap)"))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(reason)).stage(&format!("map ids with {program}"))
}
