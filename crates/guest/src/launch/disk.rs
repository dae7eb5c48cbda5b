//! A disk of a sandbox's own: a file system in a file that has no name.
//!
//! Its room is reserved on the host when it is made, so that a full disk is met inside and nowhere
//! else. File, loop device and file system hold each other and are held by nothing but the mount:
//! when the sandbox's last process is gone, whatever ended it, all three are gone too.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use bellglass_protocol::launch::IdMapping;
use bellglass_protocol::quantity::ByteSize;

use super::Failed;
use super::syscalls::{self, Stage as _};

/// What must be left for the host itself.
const LEFT_FOR_THE_HOST: u64 = 1 << 30;

/// Makes a disk whose file lies in `folder`, and returns it as a mount that is attached nowhere.
pub(super) fn make(folder: &Path, room: ByteSize, ids: IdMapping) -> Result<OwnedFd, Failed> {
    let IdMapping::Range { base } = ids else {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied))
            .stage("mount a disk (only root can)");
    };
    let file = nameless_file(folder).stage("make the disk's file")?;
    reserve(&file, with_tables(room)).stage(&format!("reserve {room} of disk"))?;
    format(&file, base)?;
    let device = attach_loop_device(&file)?;
    mount(&device)
}

/// The file system's own tables come on top of what was asked for.
fn with_tables(room: ByteSize) -> u64 {
    const LEAST: u64 = 8 << 20;
    let whole = room.0 + room.0 / 40 + LEAST;
    whole.next_multiple_of(1 << 20)
}

fn nameless_file(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        // Some file systems cannot make one, and then the name is taken away at once.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let path = folder.join(format!(".disk-{}", std::process::id()));
            let file = options.create_new(true).open(&path)?;
            fs::remove_file(path)?;
            Ok(file)
        }
        result => result,
    }
}

fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let host = rustix::fs::fstatvfs(file)?;
    // What only root may use is not given away, though this process is root.
    let free = host.f_bavail * host.f_frsize;
    if free < bytes.saturating_add(LEFT_FOR_THE_HOST) {
        let free = ByteSize(free);
        return Err(io::Error::other(format!("the host has {free} left; ask for a smaller disk")));
    }
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
}

fn format(file: &File, owner: u32) -> Result<(), Failed> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let output = Command::new("mkfs.ext4")
        // No journal: nothing of it is read again after a crash. No discarding: the room is reserved.
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode", "-E"])
        .arg(format!("nodiscard,lazy_itable_init=1,root_owner={owner}:{owner}"))
        .arg(path)
        .output()
        .stage("start mkfs.ext4 (Debian package e2fsprogs)")?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(reason)).stage("make a file system with mkfs.ext4")
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The kernel's `struct loop_info64`, of which only the flags are used.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

/// A loop device over the file. It lets go of the file when it is closed by all.
fn attach_loop_device(file: &File) -> Result<LoopDevice, Failed> {
    const LOOP_CTL_GET_FREE: u64 = 0x4c82;
    const LOOP_CONFIGURE: u64 = 0x4c0a;
    const CLEAR_WHEN_CLOSED: u32 = 4;
    /// Others may take a free device between asking for it and taking it.
    const TRIES: usize = 64;
    let control = open_device("/dev/loop-control").stage("open /dev/loop-control")?;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..TRIES {
        // SAFETY: takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error()).stage("find a free loop device");
        }
        let path = format!("/dev/loop{number}");
        let device = open_device(&path).stage(&format!("open {path}"))?;
        // SAFETY: all zero is a valid structure that asks for nothing.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.file = file.as_raw_fd() as u32;
        config.info.flags = CLEAR_WHEN_CLOSED;
        // SAFETY: the structure is valid and both descriptors are open.
        let taken =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
        if taken == 0 {
            return Ok(LoopDevice { path, _open: device });
        }
        last = io::Error::last_os_error();
        if last.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(last).stage("take a loop device")
}

/// Held open until the mount holds it.
struct LoopDevice {
    path: String,
    _open: File,
}

fn open_device(path: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn mount(device: &LoopDevice) -> Result<OwnedFd, Failed> {
    syscalls::mount_detached("ext4", &[("source", &device.path)], &["nobarrier"])
        .stage("mount the disk")
}
