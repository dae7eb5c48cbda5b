//! System calls that a kernel answers so wrongly that it is better not to ask it, found by trying.

use std::ffi::CString;
use std::os::unix::fs::symlink;

use super::confine::last_errno;

/// Such calls of this kernel, and the error that they are to fail with instead: that of a file system
/// which does not know what they are about.
pub(super) fn calls() -> Vec<(i64, i32)> {
    if has_openat2() || !symlinks_attributes_are_broken() {
        return Vec::new();
    }
    vec![(libc::SYS_lgetxattr, libc::EOPNOTSUPP)]
}

/// Whether the kernel keeps from tools what a process has that must not be traced, also from one of their own user.
/// gVisor's shows its descriptors.
pub(super) fn hides_the_untraceable() -> bool {
    has_openat2()
}

/// Every kernel of a host that sandboxes run on has it, so on these nothing more is tried.
fn has_openat2() -> bool {
    // SAFETY: with no structure to read, the call only says that its size is wrong.
    let result = unsafe { libc::syscall(libc::SYS_openat2, -1, c"".as_ptr(), 0usize, 0usize) };
    result >= 0 || last_errno() != libc::ENOSYS
}

/// gVisor says `EBADF` where it should say that a symlink has no such attribute, and `ls -l` then
/// complains about every symlink.
fn symlinks_attributes_are_broken() -> bool {
    let link = format!("/tmp/.bellglass-link-{}", std::process::id());
    let _ = symlink("nowhere", &link);
    let Ok(path) = CString::new(link.as_bytes()) else { return false };
    let attribute = c"security.bellglass";
    // SAFETY: both are valid texts, and no room is offered for a value.
    let result =
        unsafe { libc::lgetxattr(path.as_ptr(), attribute.as_ptr(), std::ptr::null_mut(), 0) };
    let broken = result < 0 && last_errno() == libc::EBADF;
    let _ = std::fs::remove_file(&link);
    broken
}
