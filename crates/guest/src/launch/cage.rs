//! The order in which the cage is closed around the new process. Each line has its reason.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use bellglass_protocol::launch::{IdMapping, Kernel, LaunchOrder};

use super::syscalls::{self, Stage as _};
use super::{Failed, devices, gvisor_room, id_maps, mounts};

/// Runs in the new process. What it may still do is given up after this.
pub(super) fn build(
    order: &LaunchOrder,
    image: mounts::ImageSource,
    scratch: Option<OwnedFd>,
    listener: &UnixListener,
    report: &OwnedFd,
) -> Result<(), Failed> {
    close_around(order, image, scratch)?;
    // Last of all: no descriptor of the host survives but the wire's socket and the report pipe.
    keep_only(&[listener.as_raw_fd(), report.as_raw_fd()])
}

fn close_around(
    order: &LaunchOrder,
    image: mounts::ImageSource,
    scratch: Option<OwnedFd>,
) -> Result<(), Failed> {
    image.approach()?;
    let id = id_maps::guest_id(order.ids);
    syscalls::become_ids(id, id, order.ids != IdMapping::Single).stage("take the guest's ids")?;
    // A session of its own, so that no terminal of the host is the guest's.
    let _ = rustix::process::setsid();
    rustix::system::sethostname(order.name.as_bytes()).stage("set the host name")?;
    bring_up_loopback()?;

    let root = mounts::assemble(order, image, scratch)?;
    // Files that the guest makes for others must be readable as their makers meant.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    match &order.kernel {
        Kernel::Host => {
            devices::mount_dev(&root, order.shared_memory)?;
            devices::mount_proc(&root, order.guest.nested_sandboxing)?;
            leave_the_host(&root)
        }
        Kernel::Gvisor { runsc } => {
            // gVisor's kernel sees all of the scratch space; what runs on it sees only the root.
            let room = gvisor_room::furnish(runsc)?;
            leave_the_host(room)
        }
    }
}

/// Puts the new root in place of the old and lets go of the old one.
fn leave_the_host(root: &Path) -> Result<(), Failed> {
    rustix::process::chdir(root).stage("enter the new root")?;
    rustix::process::pivot_root(".", ".").stage("pivot into the new root")?;
    // The old root lies on top of the new one now; detaching it is the last that is seen of it.
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH).stage("let go of the host")?;
    rustix::process::chdir("/").stage("enter the new root")
}

/// Interfaces of a new network namespace are down, loopback too.
fn bring_up_loopback() -> Result<(), Failed> {
    // SAFETY: a socket is opened, used for one call with a zeroed request structure that names
    // `lo`, and closed by its owner.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error()).stage("open a socket");
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).stage("bring up loopback") }
}

/// Closes every descriptor but these, and points the standard three at the sandbox's own /dev/null.
fn keep_only(kept: &[RawFd]) -> Result<(), Failed> {
    let null = File::options().read(true).write(true).open("/dev/null").stage("open /dev/null")?;
    let mut kept: Vec<RawFd> = kept.to_vec();
    kept.sort_unstable();
    // SAFETY: the standard descriptors are replaced by /dev/null; of the others only those are
    // closed that nothing in this process owns any more, except the launcher's leftovers, whose
    // owners are never dropped because `inhabit` does not return.
    unsafe {
        for standard in 0..3 {
            if libc::dup2(null.as_raw_fd(), standard) < 0 {
                return Err(io::Error::last_os_error()).stage("replace the standard streams");
            }
        }
        std::mem::forget(null);
        let mut first = 3u32;
        for fd in kept {
            let fd = fd as u32;
            if fd > first {
                libc::close_range(first, fd - 1, 0);
            }
            first = fd + 1;
        }
        libc::close_range(first, u32::MAX, 0);
    }
    Ok(())
}
