//! How a process looks around. It runs after a fork in a program that may have threads, so it
//! allocates nothing, takes no lock and makes nothing but system calls.
//!
//! What it writes is a list of sections: a byte that begins one, its name, and its lines; and a byte that
//! ends all.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use bellglass_protocol::cage::UNUSED_TUNNELS;

use super::Attempts;
use crate::inside::confine::last_errno;

/// Begins a section. The kernel's texts have no such byte, and escape those of others.
pub(super) const SECTION: u8 = 0x1e;

/// Kernel files that are copied as they are, each under its name.
const FILES: [(&str, &CStr); 4] = [
    ("status", c"/proc/self/status"),
    ("uid_map", c"/proc/self/uid_map"),
    ("gid_map", c"/proc/self/gid_map"),
    ("limits", c"/proc/self/limits"),
];

/// The same of what all processes of the sandbox have in common, because they are in the same namespaces: the
/// guest looks at these itself, meanwhile.
const SHARED_FILES: [(&str, &str); 4] = [
    ("mounts", "/proc/self/mountinfo"),
    ("interfaces", "/proc/self/net/dev"),
    ("routes", "/proc/self/net/route"),
    ("routes6", "/proc/self/net/ipv6_route"),
];

const NAMESPACES: [&CStr; 8] = [
    c"/proc/self/ns/cgroup",
    c"/proc/self/ns/ipc",
    c"/proc/self/ns/mnt",
    c"/proc/self/ns/net",
    c"/proc/self/ns/pid",
    c"/proc/self/ns/time",
    c"/proc/self/ns/user",
    c"/proc/self/ns/uts",
];

/// Ends the notes.
pub(super) const END: u8 = 0x1d;

/// # Safety
/// Only for a process of its own that exits afterwards.
pub(in crate::inside) unsafe fn look_around(pipe: RawFd, attempts: &Attempts) {
    let notes = &mut Notes { pipe, length: 0, text: [0; NOTES] };
    // SAFETY: this process is a fork of its own; all paths and buffers below are valid.
    unsafe {
        for (name, path) in FILES {
            notes.begin(name);
            copy(path, notes);
        }
        // Not every kernel shows this in its files.
        notes.begin("no_new_privs");
        notes.tell_number(libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        notes.begin("namespaces");
        for path in NAMESPACES {
            tell_link(notes, path);
        }
        notes.begin("writable");
        for folder in attempts.closed.iter().filter(|folder| can_make_file_in(folder)) {
            notes.tell(folder.as_bytes());
        }
        for folder in attempts.open.iter().filter(|folder| may_write_to(folder)) {
            notes.tell(folder.as_bytes());
        }
        for setting in attempts.settings.iter().filter(|setting| can_open_for_writing(setting)) {
            notes.tell(setting.as_bytes());
        }
        notes.begin("connections");
        for address in &attempts.addresses {
            notes.say(address.name.as_bytes());
            notes.say(b" ");
            notes.tell_number(connect(address));
        }
        notes.begin("device");
        notes.tell_number(make_device(&attempts.device));
        // Last, since it changes this process if it is allowed.
        notes.begin("user namespace");
        let made = libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER);
        notes.tell_number(if made == 0 { 0 } else { last_errno() });
    }
    notes.say(&[END]);
    notes.send();
}

/// The guest's own part of the notes.
pub(super) fn look_at_what_is_shared() -> Vec<u8> {
    let mut notes = Vec::new();
    for (name, path) in SHARED_FILES {
        notes.push(SECTION);
        notes.extend_from_slice(name.as_bytes());
        notes.push(b'\n');
        // With room for all of it, which the kernel then writes down once.
        notes.reserve(NOTES);
        let begin = notes.len();
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut notes));
        // What cannot be read shows as not enforced.
        if read.is_err() {
            notes.truncate(begin);
        }
    }
    // Most kernels have none of them, and then nothing is asked.
    let text = String::from_utf8_lossy(&notes).into_owned();
    let is_there = |device: &str| text.contains(&format!("{device}:"));
    notes.push(SECTION);
    notes.extend_from_slice(b"switched off\n");
    for device in UNUSED_TUNNELS {
        if is_there(device) && is_switched_off(device) {
            notes.extend_from_slice(device.as_bytes());
            notes.push(b'\n');
        }
    }
    notes
}

/// Whether there is such a network device, and it is down.
fn is_switched_off(device: &str) -> bool {
    // SAFETY: a socket is opened, used for one call with a zeroed request structure that has the device's name,
    // which is shorter than its field, and closed by its owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return false;
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *place = byte as libc::c_char;
        }
        let asked = libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request);
        asked == 0 && i32::from(request.ifr_ifru.ifru_flags) & libc::IFF_UP == 0
    }
}

unsafe fn copy(path: &CStr, notes: &mut Notes) {
    let mut buffer = [0u8; 4096];
    // SAFETY: a valid path, and a buffer as long as said.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        loop {
            match usize::try_from(libc::read(file, buffer.as_mut_ptr().cast(), buffer.len())) {
                Ok(length) if length > 0 => notes.say(&buffer[..length]),
                _ => break,
            }
        }
        libc::close(file);
    }
}

/// Such as `user:[4026531837]`.
unsafe fn tell_link(notes: &mut Notes, path: &CStr) {
    let mut buffer = [0u8; 64];
    // SAFETY: a valid path, and a buffer as long as said.
    let length = unsafe { libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    if let Ok(length) = usize::try_from(length) {
        notes.tell(&buffer[..length]);
    }
}

unsafe fn can_make_file_in(folder: &CString) -> bool {
    // SAFETY: a valid path; the file has no name and is gone when it is closed.
    unsafe {
        let flags = libc::O_TMPFILE | libc::O_WRONLY | libc::O_CLOEXEC;
        let file = libc::open(folder.as_ptr(), flags, 0o600);
        if file >= 0 {
            libc::close(file);
            return true;
        }
        // Where files must have names, being allowed to make one has to do.
        matches!(last_errno(), libc::EOPNOTSUPP | libc::EISDIR) && may_write_to(folder)
    }
}

unsafe fn may_write_to(folder: &CString) -> bool {
    // SAFETY: a valid path.
    unsafe { libc::access(folder.as_ptr(), libc::W_OK) == 0 }
}

unsafe fn can_open_for_writing(path: &CString) -> bool {
    // SAFETY: a valid path. Nothing is written.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::close(file);
        }
        file >= 0
    }
}

/// Begins to connect and does not wait. Returns what the kernel said.
unsafe fn connect(address: &super::Address) -> i32 {
    // SAFETY: the address is valid for its length; the socket is closed here.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = libc::socket(address.socket.ss_family.into(), kind, 0);
        if socket < 0 {
            return last_errno();
        }
        let done = libc::connect(socket, (&raw const address.socket).cast(), address.length);
        let said = if done == 0 { 0 } else { last_errno() };
        libc::close(socket);
        said
    }
}

/// Makes a device file, which nobody may make without a capability. The fence is asked before that, and
/// says so in other words (EACCES instead of EPERM). The one that needs no capability (0, 0) would tell
/// nothing: for Landlock it is a plain file since the kernels of late 2026. Returns what the kernel said.
unsafe fn make_device(path: &CString) -> i32 {
    let null = libc::makedev(1, 3);
    // SAFETY: a valid path.
    unsafe {
        if libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, null) != 0 {
            return last_errno();
        }
        libc::unlink(path.as_ptr());
    }
    0
}

/// Notes are sent in few pieces, so that the guest is not woken for every word.
const NOTES: usize = 16 << 10;

struct Notes {
    pipe: RawFd,
    length: usize,
    text: [u8; NOTES],
}

impl Notes {
    fn begin(&mut self, section: &str) {
        self.say(&[SECTION]);
        self.tell(section.as_bytes());
    }

    fn tell(&mut self, line: &[u8]) {
        self.say(line);
        self.say(b"\n");
    }

    fn tell_number(&mut self, number: i32) {
        let mut digits = [0u8; 10];
        let mut rest = number.unsigned_abs();
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.tell(&digits[first..]);
    }

    fn say(&mut self, mut words: &[u8]) {
        while !words.is_empty() {
            if self.length == NOTES {
                self.send();
            }
            let count = words.len().min(NOTES - self.length);
            self.text[self.length..self.length + count].copy_from_slice(&words[..count]);
            self.length += count;
            words = &words[count..];
        }
    }

    fn send(&mut self) {
        let mut rest = &self.text[..self.length];
        while !rest.is_empty() {
            // SAFETY: a valid buffer. If nobody listens any more, nothing needs to be said.
            let count = unsafe { libc::write(self.pipe, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => rest = &rest[count.min(rest.len())..],
                _ => break,
            }
        }
        self.length = 0;
    }
}
