//! The order in which the cage is closed around the new process. Each line has its reason.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use bellglass_protocol::launch::{IdMapping, Kernel, LaunchOrder};

use super::network::Network;
use super::syscalls::{self, Stage as _};
use super::talk::Talk;
use super::{Failed, devices, gvisor_room, id_maps, mounts};

/// Runs in the new process. What it may still do is given up after this.
/// Returns the socket of the wire.
pub(super) fn build(
    order: &LaunchOrder,
    image: mounts::ImageSource,
    scratch: Option<OwnedFd>,
    launcher: &Talk,
    report: &OwnedFd,
) -> Result<UnixListener, Failed> {
    let wire = close_around(order, image, scratch, launcher)?;
    // Last of all: no descriptor of the host survives but the wire's socket and the report pipe.
    keep_only(&[wire.as_raw_fd(), report.as_raw_fd()])?;
    Ok(wire)
}

fn close_around(
    order: &LaunchOrder,
    image: mounts::ImageSource,
    scratch: Option<OwnedFd>,
    launcher: &Talk,
) -> Result<UnixListener, Failed> {
    image.approach()?;
    join_groups(order)?;
    launcher.be_seen().stage("show itself to the launcher")?;
    let id = id_maps::guest_id(order.ids);
    syscalls::become_ids(id, id, order.ids != IdMapping::Single).stage("take the guest's ids")?;
    // A session of its own, so that no terminal of the host is the guest's.
    let _ = rustix::process::setsid();
    rustix::system::sethostname(order.name.as_bytes()).stage("set the host name")?;

    let root = mounts::assemble(order, image, scratch)?;
    // Files that the guest makes for others must be readable as their makers meant.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let root = match &order.kernel {
        Kernel::Host => {
            devices::mount_dev(&root, order.shared_memory)?;
            devices::mount_proc(&root, order.guest.nested_sandboxing)?;
            &root
        }
        // gVisor's kernel sees all of the scratch space; what runs on it sees only the root.
        Kernel::Gvisor { runsc } => gvisor_room::furnish(runsc)?,
    };
    leave_the_host(root)?;
    // Last of all, because it takes longest to make.
    let [network, wire] = launcher.take_over().stage("wait for the network and the wire")?;
    Network::enter(network)?;
    Ok(wire.into())
}

/// By itself, which is several times cheaper than to be moved, and while it still is the user who may.
fn join_groups(order: &LaunchOrder) -> Result<(), Failed> {
    for file in &order.cgroup_joins {
        fs::write(file, "0").stage("join a control group")?;
    }
    syscalls::hide_control_groups_above().stage("hide the host's control groups")
}

/// Puts the new root in place of the old and lets go of the old one.
fn leave_the_host(root: &Path) -> Result<(), Failed> {
    rustix::process::chdir(root).stage("enter the new root")?;
    rustix::process::pivot_root(".", ".").stage("pivot into the new root")?;
    // The old root lies on top of the new one now; detaching it is the last that is seen of it.
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH).stage("let go of the host")?;
    rustix::process::chdir("/").stage("enter the new root")
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
