//! System calls that a kernel answers so wrongly that it is better not to ask it, found by trying.

use std::ffi::CString;
use std::os::unix::fs::symlink;

use seccompiler::{BpfProgram, sock_filter};

use super::confine::last_errno;

/// A filter over such calls, if this kernel has some.
pub(super) fn filter() -> Option<BpfProgram> {
    if has_openat2() || !symlinks_attributes_are_broken() {
        return None;
    }
    Some(not_supported(&[libc::SYS_lgetxattr]))
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

/// Lets these calls fail as on a file system that does not know what they are about.
fn not_supported(calls: &[i64]) -> BpfProgram {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut program = vec![instruction(LOAD_NUMBER, 0, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        // To the last instruction: over those of the calls that follow, and over the permission.
        let over = (calls.len() - index) as u8;
        program.push(instruction(JUMP_IF_EQUAL, over, 0, *call as u32));
    }
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;
    program.push(instruction(RETURN, 0, 0, refusal));
    program
}
