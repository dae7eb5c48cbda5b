//! What gVisor's kernel finds in the cage beside the sandbox's root: its own executable, a null
//! device, /proc, and folders for its state and for the wire. Nothing else of the host.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Failed;
use super::mounts::SCRATCH;
use super::syscalls::{Stage as _, mount};

/// Furnishes the scratch space as the root of gVisor's own processes, and returns where it is. What
/// `mounts::assemble` made lies in it already.
pub(super) fn furnish(runsc: &str) -> Result<&'static Path, Failed> {
    let room = Path::new(SCRATCH);
    for folder in ["proc", "dev", "gvisor"] {
        fs::create_dir(room.join(folder)).stage("make gVisor's folders")?;
    }
    // Apart from the sandbox's files, so that a full disk inside is no concern of gVisor's own.
    let own = room.join("gvisor");
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount("gvisor", &own, "tmpfs", flags, "mode=0700,size=32m,nr_inodes=256")
        .stage("mount gVisor's own folder")?;
    for folder in ["state", "bundle", "door"] {
        fs::create_dir(own.join(folder)).stage("make gVisor's folders")?;
    }
    fs::set_permissions(own.join("door"), Permissions::from_mode(0o700))
        .stage("close the guest's folder to others")?;
    bind_file("/dev/null", &room.join("dev/null"), 0)?;
    bind_file(runsc, &room.join("runsc"), libc::MS_RDONLY | libc::MS_NODEV)?;
    // Not masked: the kernel lets gVisor's processes mount their own only beside a whole one. What
    // runs on gVisor's kernel never sees it.
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV;
    mount("proc", &room.join("proc"), "proc", flags, "").stage("mount gVisor's /proc")?;
    Ok(room)
}

fn bind_file(source: &str, target: &Path, flags: libc::c_ulong) -> Result<(), Failed> {
    let stage = format!("mount {source} for gVisor (everybody must be able to read it)");
    File::create(target).stage(&stage)?;
    mount(source, target, "", libc::MS_BIND, "").stage(&stage)?;
    if flags != 0 {
        let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | flags;
        mount("none", target, "", flags, "").stage(&stage)?;
    }
    Ok(())
}
