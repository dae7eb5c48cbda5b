//! Which processors tools run on, where no control group shares CPU time out.

/// So many of the processors that this process may use; nothing if that is all of them.
pub(super) fn choose(count: u32) -> Option<libc::cpu_set_t> {
    // SAFETY: all zero is the empty set, and the call fills a set of the size given.
    let usable = unsafe {
        let mut usable: libc::cpu_set_t = std::mem::zeroed();
        let asked = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut usable);
        (asked == 0).then_some(usable)?
    };
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
        let mut chosen: libc::cpu_set_t = std::mem::zeroed();
        for cpu in usable.iter().cycle().skip(first).take(count) {
            libc::CPU_SET(*cpu, &mut chosen);
        }
        Some(chosen)
    }
}

fn chance() -> usize {
    let mut bytes = [0u8; size_of::<usize>()];
    // SAFETY: fills the buffer; if it cannot, zero is as good as any number.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::from_ne_bytes(bytes)
}
