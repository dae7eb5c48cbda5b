//! The sandbox's /dev and /proc: the least that programs need, and what leaks is covered.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use bellglass_protocol::cage::{COVERED_FILES, COVERED_FOLDERS, DEVICES, READ_ONLY_FOLDERS};
use bellglass_protocol::quantity::ByteSize;

use super::Failed;
use super::syscalls::{Stage as _, mount};

const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NOEXEC;

/// Mounts /dev below the new root. The host's device files must still be reachable.
pub(super) fn mount_dev(root: &Path, shared_memory: ByteSize) -> Result<(), Failed> {
    let dev = root.join("dev");
    mount("dev", &dev, "tmpfs", QUIET, "mode=0755,size=64k,nr_inodes=64").stage("mount /dev")?;
    for name in DEVICES {
        let target = dev.join(name);
        File::create(&target).stage("make a device's place")?;
        mount(&format!("/dev/{name}"), &target, "", libc::MS_BIND, "")
            .stage(&format!("mount /dev/{name}"))?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(link)).stage("link a device")?;
    }
    let pts = dev.join("pts");
    fs::create_dir(&pts).stage("make /dev/pts")?;
    mount("devpts", &pts, "devpts", QUIET, "newinstance,ptmxmode=0666,mode=0620")
        .stage("mount /dev/pts")?;
    let shm = dev.join("shm");
    fs::create_dir(&shm).stage("make /dev/shm")?;
    let quiet_data = QUIET | libc::MS_NODEV;
    let options = format!("mode=1777,{}", shared_room(shared_memory));
    mount("shm", &shm, "tmpfs", quiet_data, &options).stage("mount /dev/shm")?;
    fs::set_permissions(&shm, Permissions::from_mode(0o1777))
        .stage("open /dev/shm to everybody")?;
    mount("dev", &dev, "", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | QUIET, "")
        .stage("make /dev read-only")
}

/// Gives /dev/shm another room. For a root that is in place.
pub(super) fn change_shared_room(shared_memory: ByteSize) -> Result<(), Failed> {
    let flags = libc::MS_REMOUNT | QUIET | libc::MS_NODEV;
    mount("none", Path::new("/dev/shm"), "", flags, &shared_room(shared_memory))
        .stage("change the size of /dev/shm")
}

fn shared_room(size: ByteSize) -> String {
    format!("size={},nr_inodes=4096", size.0)
}

/// How many user namespaces can be made inside where nested sandboxes are wanted: a few for each
/// process of a browser.
const NESTED_NAMESPACES: &str = "64";

/// Mounts /proc of the sandbox's own pid namespace, covered as OCI runtimes do.
pub(super) fn mount_proc(root: &Path, nested_sandboxing: bool) -> Result<(), Failed> {
    let proc = root.join("proc");
    let flags = QUIET | libc::MS_NODEV;
    mount("proc", &proc, "proc", flags, "").stage("mount /proc")?;
    // A second lock beside the system-call filter, on the user namespace itself. It is below /proc/sys,
    // which nobody inside can write to once this returns.
    let most = if nested_sandboxing { NESTED_NAMESPACES } else { "0" };
    fs::write(proc.join("sys/user/max_user_namespaces"), most).stage("limit user namespaces")?;
    let null = root.join("dev/null");
    let null = null.to_string_lossy();
    for path in COVERED_FILES.map(|name| proc.join(name)) {
        if_there(&path, mount(&null, &path, "", libc::MS_BIND, ""))
            .stage(&format!("cover {}", path.display()))?;
    }
    for path in COVERED_FOLDERS.map(|name| proc.join(name)) {
        let nothing = "size=0k,nr_inodes=2";
        if_there(&path, mount("none", &path, "tmpfs", flags | libc::MS_RDONLY, nothing))
            .stage(&format!("cover {}", path.display()))?;
    }
    for path in READ_ONLY_FOLDERS.map(|name| proc.join(name)) {
        let bound = mount(&path.to_string_lossy(), &path, "", libc::MS_BIND, "");
        if if_there(&path, bound).stage("make /proc read-only")? {
            let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | flags;
            mount("none", &path, "", read_only, "").stage("make /proc read-only")?;
        }
    }
    Ok(())
}

/// Kernels differ in what they show in /proc. Says whether there was something to mount on. To try first costs less
/// than to ask first.
fn if_there(path: &Path, mounted: io::Result<()>) -> io::Result<bool> {
    match mounted {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => Ok(false),
        mounted => mounted.map(|()| true),
    }
}
