//! The sandbox's network: a namespace with nothing in it but loopback.
//!
//! The kernel takes longer to make one than for all other namespaces together. So the launcher makes it
//! while the new process builds the rest of its cage, and then hands it over.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Failed;
use super::syscalls::Stage as _;

/// One that was made.
pub(super) struct Network {
    namespace: OwnedFd,
}

impl Network {
    /// Makes one that belongs to a user namespace, as all that the sandbox has. The calling process is in
    /// both afterwards and has no other use any more.
    pub(super) fn make(owner: BorrowedFd<'_>) -> Result<Self, Failed> {
        move_into_link_name_space(owner, Some(LinkNameSpaceType::User))
            .stage("enter the user namespace")?;
        // SAFETY: moves this process, which has one thread, into a new network namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error()).stage("make the network");
        }
        bring_up_loopback()?;
        let namespace = File::open("/proc/self/ns/net").stage("open the network")?.into();
        Ok(Self { namespace })
    }

    pub(super) fn number(&self) -> Result<u64, Failed> {
        Ok(rustix::fs::fstat(&self.namespace).stage("look at the network")?.st_ino)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// In the new process: moves there, with all that is started from now on.
    pub(super) fn enter(namespace: OwnedFd) -> Result<(), Failed> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .stage("enter the network")
    }
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
