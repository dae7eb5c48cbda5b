//! The few system calls that have no safe wrapper, and errors that say at which stage they came.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::Failed;

/// Names what was being done when an error came.
pub(crate) trait Stage<T> {
    fn stage(self, stage: &str) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Stage<T> for Result<T, E> {
    fn stage(self, stage: &str) -> Result<T, Failed> {
        self.map_err(|error| Failed { stage: stage.into(), error: error.into() })
    }
}

/// The kernel's `struct clone_args`, as far as it is used here.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// The kernel's number, which C libraries do not all know.
const CLONE_NEWTIME: u64 = 0x80;

/// Forks into new namespaces of every kind, but for the network's and the control groups', which are made
/// apart. Returns the child's id in the parent, `None` in the child.
///
/// The child belongs to the launcher's own parent, so it outlives the launcher and is reaped there.
pub(super) fn clone_into_new_namespaces() -> io::Result<Option<i32>> {
    match clone_with(CLONE_NEWTIME) {
        // Kernels can be built without time namespaces. The report says then that it is shared.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => clone_with(0),
        result => result,
    }
}

fn clone_with(more_flags: u64) -> io::Result<Option<i32>> {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_PARENT;
    let flags = flags as u64 | more_flags;
    let arguments = CloneArguments { flags, ..CloneArguments::default() };
    // SAFETY: the process has one thread, the arguments are a valid structure of the size given,
    // and without a new stack the child goes on in its own copy of this memory, as after fork.
    let result = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>())
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid as i32)),
    }
}

/// From now on the control groups that this process is in are the topmost that it sees.
pub(super) fn hide_control_groups_above() -> io::Result<()> {
    // SAFETY: changes what this process, which has one thread, sees.
    if unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

pub(super) fn kill(pid: i32) {
    // SAFETY: `pid` is a child of this process's parent that has not been reaped yet, because only
    // that parent could reap it and it waits for the launcher first.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Detaches a copy of the mount at `path` and returns its descriptor.
pub(super) fn open_tree_clone(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: `path` is a NUL-terminated text that lives through the call.
    owned(unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC,
        )
    })
}

/// Makes a detached mount one to look at, and shifts its owners by the ids of a user namespace.
pub(super) fn set_id_mapped(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | ONLY_TO_LOOK_AT,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    set_attributes(mount, c"", libc::AT_EMPTY_PATH, &attributes)
}

/// Makes what is mounted at `target` one to look at, and takes nothing away that holds for it already.
pub(super) fn set_read_only(target: &Path) -> io::Result<()> {
    let target = CString::new(target.as_os_str().as_encoded_bytes())?;
    let attributes =
        libc::mount_attr { attr_set: ONLY_TO_LOOK_AT, attr_clr: 0, propagation: 0, userns_fd: 0 };
    set_attributes(rustix::fs::CWD, &target, 0, &attributes)
}

const ONLY_TO_LOOK_AT: u64 =
    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

fn set_attributes(
    mount: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    attributes: &libc::mount_attr,
) -> io::Result<()> {
    // SAFETY: the descriptors are open or the folder that the process is in, the path is a NUL-terminated text,
    // and the attributes are a valid structure of the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a detached mount at `target`.
pub(super) fn attach_mount(mount: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = CString::new(target.as_os_str().as_encoded_bytes())?;
    // SAFETY: the descriptor is open and both paths are NUL-terminated texts.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a file system that is attached nowhere yet, without set-uid programs and device files.
pub(super) fn mount_detached(
    kind: &str,
    options: &[(&str, &str)],
    flags: &[&str],
) -> io::Result<OwnedFd> {
    const SET_FLAG: u32 = 0;
    const SET_STRING: u32 = 1;
    const CREATE: u32 = 6;
    const CLOSE_ON_EXEC: u32 = 1;
    let kind = CString::new(kind)?;
    // SAFETY: the kind is a NUL-terminated text.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOSE_ON_EXEC) })?;
    let configure = |command: u32, key: Option<&str>, value: Option<&str>| {
        let key = key.map(CString::new).transpose()?;
        let value = value.map(CString::new).transpose()?;
        let pointer =
            |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
        let (key, value) = (pointer(&key), pointer(&value));
        // SAFETY: both are null or NUL-terminated texts that live through the call.
        let done = unsafe {
            libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    for (key, value) in options {
        configure(SET_STRING, Some(key), Some(value))?;
    }
    for flag in flags {
        configure(SET_FLAG, Some(flag), None)?;
    }
    configure(CREATE, None, None)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    // SAFETY: takes numbers only.
    owned(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOSE_ON_EXEC, attributes)
    })
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `mount(2)`.
pub(super) fn mount(
    source: &str,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> io::Result<()> {
    let source = CString::new(source)?;
    let target = CString::new(target.as_os_str().as_encoded_bytes())?;
    let kind = CString::new(kind)?;
    let data = CString::new(data)?;
    // SAFETY: all four are NUL-terminated texts that live through the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes an identity inside the new user namespace. Raw calls: the process has one thread.
pub(super) fn become_ids(uid: u32, gid: u32, may_set_groups: bool) -> io::Result<()> {
    let no_groups = std::ptr::null::<libc::gid_t>();
    // SAFETY: these calls change this thread's ids only; a list of no groups is never read.
    let taken = unsafe {
        (!may_set_groups || libc::syscall(libc::SYS_setgroups, 0usize, no_groups) == 0)
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    };
    if taken { Ok(()) } else { Err(io::Error::last_os_error()) }
}
