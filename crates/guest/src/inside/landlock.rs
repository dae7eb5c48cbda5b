//! Landlock, the second fence: what it does not list stays unwritten, whoever owns it.
//!
//! The guest enters one domain before it starts anything, so that all tools of a sandbox share it.
//! A domain for each call would keep a call from looking at (`lsof`, `fuser`) and signalling what an
//! earlier call left running. Being inside itself costs the guest nothing: it writes where tools do.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use bellglass_protocol::launch::{GuestConfig, LEAST_LANDLOCK};

/// The version of Landlock in this kernel; 0 where there is none.
pub(crate) fn version() -> u32 {
    const ASK_FOR_VERSION: u32 = 1;
    let nothing = std::ptr::null::<Ruleset>();
    // SAFETY: with no structure and this flag the call only returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, ASK_FOR_VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Puts this thread, and all that it starts from now on, behind the fence for good. Does nothing
/// where the kernel has none; the report then says so.
pub(super) fn enter(config: &GuestConfig) -> io::Result<()> {
    let version = version();
    if version < LEAST_LANDLOCK {
        return Ok(());
    }
    let ruleset = Ruleset {
        handled_files: access::known_to(version),
        handled_network: 0,
        // From version 6 on: no signal and no abstract socket reaches beyond the sandbox, should a
        // process outside ever come into sight.
        scoped: if version >= 6 { 0b11 } else { 0 },
    };
    let fence = create(&ruleset)?;
    let known = ruleset.handled_files;
    allow(&fence, "/", access::READ & known)?;
    for device in devices(config) {
        allow(&fence, device, access::DEVICES & known)?;
    }
    // A process's own files, such as its rank when memory runs out. What configures the kernel is
    // mounted read-only and belongs to nobody inside.
    allow(&fence, "/proc", access::WRITE_FILE)?;
    for folder in config.writable_folders() {
        match allow(&fence, folder, access::WRITE & known) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    restrict(&fence)
}

/// What can be written to in /dev beside shared memory.
fn devices(config: &GuestConfig) -> &'static [&'static str] {
    match config.memory {
        // All of them lead nowhere.
        None => &["/dev"],
        // Shared and writable, /dev/zero is memory that the guest could not add up.
        Some(_) => &["/dev/null", "/dev/full", "/dev/tty", "/dev/pts"],
    }
}

/// What can be done to files, by the kernel's numbers.
mod access {
    const EXECUTE: u64 = 1 << 0;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    const READ_FILE: u64 = 1 << 2;
    const READ_FOLDER: u64 = 1 << 3;
    const REMOVE_FOLDER: u64 = 1 << 4;
    const REMOVE_FILE: u64 = 1 << 5;
    const MAKE_FOLDER: u64 = 1 << 7;
    const MAKE_FILE: u64 = 1 << 8;
    const MAKE_SOCKET: u64 = 1 << 9;
    const MAKE_PIPE: u64 = 1 << 10;
    const MAKE_SYMLINK: u64 = 1 << 12;
    const MOVE: u64 = 1 << 13;
    const TRUNCATE: u64 = 1 << 14;
    const CONTROL_DEVICE: u64 = 1 << 15;

    pub(super) const READ: u64 = EXECUTE | READ_FILE | READ_FOLDER;
    pub(super) const DEVICES: u64 = WRITE_FILE | TRUNCATE | CONTROL_DEVICE;
    /// Device files (bits 6 and 11) are in none of these lists: nobody may make one.
    pub(super) const WRITE: u64 = WRITE_FILE
        | TRUNCATE
        | REMOVE_FOLDER
        | REMOVE_FILE
        | MAKE_FOLDER
        | MAKE_FILE
        | MAKE_SOCKET
        | MAKE_PIPE
        | MAKE_SYMLINK
        | MOVE;

    /// Everything that a version of Landlock can forbid.
    pub(super) fn known_to(version: u32) -> u64 {
        let bits = match version {
            0 => 0,
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        (1 << bits) - 1
    }
}

/// The kernel's `struct landlock_ruleset_attr`. Older kernels take it if what they do not know is 0.
#[repr(C)]
struct Ruleset {
    handled_files: u64,
    handled_network: u64,
    scoped: u64,
}

/// The kernel's `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

fn create(ruleset: &Ruleset) -> io::Result<OwnedFd> {
    let known = if ruleset.scoped == 0 { 16 } else { size_of::<Ruleset>() };
    // SAFETY: the structure is valid for at least the size given.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ruleset, known, 0u32) };
    check(fd)?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn allow(fence: &OwnedFd, path: &str, allowed: u64) -> io::Result<()> {
    const PATH_BENEATH: u32 = 1;
    let path = CString::new(path)?;
    // SAFETY: the path is a NUL-terminated text; the descriptor is ours alone.
    let parent = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        check(fd.into())?;
        OwnedFd::from_raw_fd(fd)
    };
    let rule = PathBeneath { allowed, parent: parent.as_raw_fd() };
    // SAFETY: the rule is a valid structure and both descriptors are open.
    check(unsafe {
        let fence = fence.as_raw_fd();
        libc::syscall(libc::SYS_landlock_add_rule, fence, PATH_BENEATH, &raw const rule, 0u32)
    })
}

fn restrict(fence: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open. The kernel wants no_new_privs first, which the launcher set.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fence.as_raw_fd(), 0u32) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
