//! What the guest itself gives up once its cage stands.

use std::io;

use bellglass_protocol::cage::GUEST_CAPABILITIES;

use super::Failed;
use super::syscalls::Stage as _;

const LAST_CAPABILITY: u32 = 63;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Makes sure that nothing below this process can gain what the guest does not need. What the process itself can do
/// stays for now.
pub(crate) fn bound() {
    bound_to(&GUEST_CAPABILITIES);
}

/// Keeps only what the guest needs, and makes sure that nothing below it can gain more.
pub(crate) fn drop_all_but_needed() -> Result<(), Failed> {
    keep_only(&GUEST_CAPABILITIES)
}

/// For a process that needs no privilege any more.
pub(crate) fn drop_all() -> Result<(), Failed> {
    keep_only(&[])
}

/// Whether this process has a capability in effect.
pub(crate) fn has(capability: u32) -> bool {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: header and data are valid structures of version 3, which has two data elements.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    result == 0 && data[0].effective & (1 << capability) != 0
}

fn bound_to(needed: &[u32]) {
    for capability in (0..=LAST_CAPABILITY).filter(|number| !needed.contains(number)) {
        // Most are gone already when this is done again, and to look costs much less than to drop. A number that the
        // kernel does not know fails, and so would all after it.
        // SAFETY: changes this process's bounding set only.
        let done = unsafe {
            match libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) {
                1 => libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0),
                dropped => dropped,
            }
        };
        if done != 0 {
            break;
        }
    }
}

fn keep_only(needed: &[u32]) -> Result<(), Failed> {
    bound_to(needed);
    // SAFETY: these calls change flags and the name of this process only.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"bellglass-guest".as_ptr());
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error()).stage("set no_new_privs");
        }
        // Other processes inside may neither trace the guest nor look into its memory.
        if libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error()).stage("make the guest untraceable");
        }
    }
    let kept = needed.iter().fold(0u32, |mask, number| mask | 1 << number);
    let header = Header { version: VERSION_3, pid: 0 };
    let data = [Data { effective: kept, permitted: kept, inheritable: 0 }, Data::default()];
    // SAFETY: header and data are valid structures of version 3, which has two data elements.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).stage("drop capabilities") }
}
