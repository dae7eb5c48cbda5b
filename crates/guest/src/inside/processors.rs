//! Which processors processes run on: tools where no control group shares CPU time out, and those that somebody
//! waits for.

use libc::{cpu_set_t, pid_t};

/// So many of the processors that this process may use; nothing if that is all of them.
pub(super) fn choose(count: u32) -> Option<cpu_set_t> {
    let usable = usable()?;
    let most = libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are below the size of a set.
    let usable: Vec<usize> =
        (0..most).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &usable) }).collect();
    let count = count.max(1) as usize;
    if count >= usable.len() {
        return None;
    }
    // Beginning anywhere, so that sandboxes do not all crowd the first processors.
    let first = chance() % usable.len();
    // SAFETY: all zero is the empty set, and the numbers are below its size.
    unsafe {
        let mut chosen: cpu_set_t = std::mem::zeroed();
        for cpu in usable.iter().cycle().skip(first).take(count) {
            libc::CPU_SET(*cpu, &mut chosen);
        }
        Some(chosen)
    }
}

/// The processors that this process may use; nothing on machines with more of them than a set can name.
fn usable() -> Option<cpu_set_t> {
    usable_by(THIS)
}

/// The same of this process's parent, by its first thread. The parent may keep this process from some for a while.
pub(crate) fn usable_by_parent() -> Option<cpu_set_t> {
    // SAFETY: only asks.
    usable_by(unsafe { libc::getppid() })
}

fn usable_by(pid: pid_t) -> Option<cpu_set_t> {
    // SAFETY: all zero is the empty set, and the call fills a set of the size given.
    unsafe {
        let mut usable: cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(pid, SIZE, &mut usable) == 0).then_some(usable)
    }
}

/// Keeps this process, and those that it starts, on the processor where it runs. Says where it may run otherwise;
/// nothing if nothing has changed.
///
/// Makes nothing but system calls, since it is for a process that was forked.
pub(super) fn stay_here() -> Option<cpu_set_t> {
    let usable = usable()?;
    let this = here()?;
    // SAFETY: all zero is the empty set, and the number is below its size, or there would be no set.
    let here = unsafe {
        let mut here: cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(this, &mut here);
        here
    };
    use_only(THIS, &here).then_some(usable)
}

/// Keeps another process from the processor where this one runs, if there are more: both are in a hurry. It may go
/// anywhere again when it has said so itself.
pub(crate) fn keep_elsewhere(pid: pid_t, usable: &Option<cpu_set_t>) {
    let (Some(mut elsewhere), Some(here)) = (*usable, here()) else { return };
    // SAFETY: the number is below the size of a set.
    unsafe {
        libc::CPU_CLR(here, &mut elsewhere);
        if libc::CPU_COUNT(&elsewhere) > 0 {
            use_only(pid, &elsewhere);
        }
    }
}

/// Lets this process run where it otherwise may.
pub(crate) fn go_anywhere(usable: &Option<cpu_set_t>) {
    if let Some(usable) = usable {
        use_only(THIS, usable);
    }
}

const SIZE: usize = size_of::<cpu_set_t>();
const THIS: pid_t = 0;

fn here() -> Option<usize> {
    // SAFETY: only asks.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn use_only(pid: pid_t, set: &cpu_set_t) -> bool {
    // SAFETY: reads a set of the size given.
    unsafe { libc::sched_setaffinity(pid, SIZE, set) == 0 }
}

fn chance() -> usize {
    let mut bytes = [0u8; size_of::<usize>()];
    // SAFETY: fills the buffer; if it cannot, zero is as good as any number.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::from_ne_bytes(bytes)
}
