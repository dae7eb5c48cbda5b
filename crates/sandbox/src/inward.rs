//! Sockets of ours to a peer inside a sandbox, which is hostile.
//!
//! Such a peer could pass us descriptors with its bytes. Nobody here takes any, so the kernel would close them in
//! the thread that reads, and closing can be made to wait: a TCP socket can be told to linger for years. So the
//! kernel is asked to let none in.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::namespace::record::has_exited;

/// Not in the headers of older kernels; the same number on all machines that this program is built for.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A connection that no call waits for, and what its peer can do.
pub(crate) struct Inward {
    pub(crate) stream: UnixStream,
    /// Whether the kernel lets no descriptors in. Before Linux 6.16 it cannot be asked to.
    pub(crate) is_closed_to_descriptors: bool,
}

impl Inward {
    /// Connects to a socket by its path, of 107 bytes at most.
    pub(crate) fn connect(path: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        // Before there is a peer: none of its bytes came earlier.
        let is_closed_to_descriptors = close_to_descriptors(&socket);
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { stream: socket.into(), is_closed_to_descriptors })
    }
}

fn close_to_descriptors(socket: &OwnedFd) -> bool {
    let no: libc::c_int = 0;
    // SAFETY: the value is an integer of the length that is given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of_val(&no) as libc::socklen_t,
        )
    };
    set == 0
}

/// Leads to sockets inside a sandbox by their paths, past its guest: for much that the guest would only pass on.
#[derive(Debug)]
pub struct SideDoor {
    /// The first process of the sandbox.
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
}

impl SideDoor {
    /// Nothing where the host does not let us in, or where the other side would get a hold on us.
    pub(crate) async fn connect(self: Arc<Self>, path: &'static str) -> Option<UnixStream> {
        // A walk through files of the sandbox may wait for them.
        let connecting = tokio::task::spawn_blocking(move || {
            let socket = socket_within(self.pid, path)?;
            // Until here the number was that of no other process.
            if has_exited(&self.pidfd) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Inward::connect(&format!("/proc/self/fd/{}", socket.as_raw_fd()))
        });
        let connected = tokio::time::timeout(PATIENCE, connecting).await.ok()?.ok()?.ok()?;
        connected.is_closed_to_descriptors.then_some(connected.stream)
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

/// Finds the socket at an absolute path in a process's view of the files. The way there is as hostile as the
/// socket, so links on it lead nowhere.
fn socket_within(pid: i32, path: &str) -> io::Result<OwnedFd> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{pid}/root"), folder, Mode::empty())?;
    let relative = path.trim_start_matches('/');
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&root, relative, flags, Mode::empty(), resolve)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::Socket => Ok(found),
        _ => Err(io::Error::other("this is no socket")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixListener;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    #[test]
    fn bytes_come_in_and_descriptors_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut ours = Inward::connect(path.to_str().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let fds = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        assert!(rights.push(SendAncillaryMessage::ScmRights(&fds)));
        let (bytes, flags) = ([IoSlice::new(b"x")], SendFlags::empty());
        let sent = rustix::net::sendmsg(&theirs, &bytes, &mut rights, flags);
        assert_eq!(sent.is_err(), ours.is_closed_to_descriptors, "{sent:?}");
        theirs.write_all(b"hello").unwrap();
        drop((theirs, listener));
        ours.stream.set_nonblocking(false).unwrap();
        let mut heard = String::new();
        ours.stream.read_to_string(&mut heard).unwrap();
        assert!(heard.ends_with("hello"));
    }

    #[test]
    fn a_socket_is_found_by_its_own_path_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let pid = std::process::id() as i32;
        let _listener = UnixListener::bind(at("socket")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("socket", at("link")).unwrap();
        std::os::unix::fs::symlink(".", at("way")).unwrap();
        let found = socket_within(pid, &at("socket")).unwrap();
        Inward::connect(&format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        for wrong in ["link", "way/socket", "folder", "file", "nothing"] {
            assert!(socket_within(pid, &at(wrong)).is_err(), "{wrong}");
        }
    }
}
