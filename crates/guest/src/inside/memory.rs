//! Adds up the sandbox's memory where no control group does, and ends the largest process when it
//! is too much.
//!
//! It looks more often the less is left. Between two looks a process can take some more than it
//! should; a limit on each process's own data keeps that bounded.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::quantity::ByteSize;

/// So much is filled in a second at the most.
const BYTES_PER_SECOND: u64 = 4 << 30;
const MOST_SELDOM: Duration = Duration::from_millis(200);
const MOST_OFTEN: Duration = Duration::from_millis(5);

/// Starts to watch. Returns where the processes that were ended are counted.
pub(super) fn watch(room: ByteSize, config: &GuestConfig) -> io::Result<Arc<AtomicU64>> {
    let kills = Arc::new(AtomicU64::new(0));
    let counted = kills.clone();
    // Both lie in memory. The workspace stands for all that is written but shared memory.
    let folders = [config.workspace.clone(), "/dev/shm".to_owned()];
    std::thread::Builder::new().name("memory".into()).spawn(move || {
        loop {
            let used = files(&folders) + quick_sum(&processes());
            if used > room.0 && end_the_largest(room.0.saturating_sub(files(&folders))) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(until_next_look(room.0, used));
        }
    })?;
    Ok(kills)
}

fn until_next_look(room: u64, used: u64) -> Duration {
    let left = room.saturating_sub(used);
    Duration::from_millis(left * 1000 / BYTES_PER_SECOND).clamp(MOST_OFTEN, MOST_SELDOM)
}

/// Looks closer, counting what processes share only once, and ends the largest if they have more
/// than their room.
fn end_the_largest(room: u64) -> bool {
    let exact = processes().into_iter().filter_map(|pid| Some((own_memory(pid)?, pid)));
    let exact: Vec<(u64, i32)> = exact.collect();
    if exact.iter().map(|(bytes, _)| bytes).sum::<u64>() <= room {
        return false;
    }
    let Some((_, largest)) = exact.into_iter().max() else { return false };
    // SAFETY: takes numbers only. It is a process of this sandbox, and not the first.
    let killed = unsafe { libc::kill(largest, libc::SIGKILL) } == 0;
    // Its memory comes back a moment later; until then it must not count against another.
    for _ in 0..200 {
        if quick_sum(&[largest]) == 0 {
            break;
        }
        std::thread::sleep(MOST_OFTEN);
    }
    killed
}

/// Everybody but the first process.
fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id() as i32).collect()
}

/// Memory that is no file's, in bytes, by the cheapest of the kernel's tables.
fn quick_sum(processes: &[i32]) -> u64 {
    let sizes = processes.iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let held = bytes_of(&status, "RssAnon:").or_else(|| without_files(*pid))?;
        Some(held + bytes_of(&status, "VmSwap:").unwrap_or(0) + page_tables(&status))
    });
    sizes.sum()
}

/// For kernels that do not tell it in words, such as gVisor's.
fn without_files(pid: i32) -> Option<u64> {
    let table = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = table.split(' ').skip(1).map_while(|field| field.parse::<u64>().ok());
    let pages = fields.next()?.saturating_sub(fields.next()?);
    // SAFETY: asks for a constant of this system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).unwrap_or(4096))
}

/// The same of one process, where a page that several share counts in parts. Costs more.
fn own_memory(pid: i32) -> Option<u64> {
    let table = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    match bytes_of(&table, "Pss_Anon:") {
        Some(held) => {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            Some(held + bytes_of(&table, "SwapPss:").unwrap_or(0) + page_tables(&status))
        }
        None => Some(quick_sum(&[pid])).filter(|bytes| *bytes > 0),
    }
}

/// What leads to a process's memory takes memory itself, also where nothing but zeros is mapped: a
/// page for every 2 MiB of which one byte was read.
fn page_tables(status: &str) -> u64 {
    bytes_of(status, "VmPTE:").unwrap_or(0)
}

/// The value of a line such as `VmPTE:      44 kB`.
fn bytes_of(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What files take that are held in memory.
fn files(folders: &[String]) -> u64 {
    let used = folders.iter().filter_map(|folder| {
        let room = rustix::fs::statfs(folder.as_str()).ok()?;
        const TMPFS: u64 = 0x0102_1994;
        let is_memory = room.f_type as u64 == TMPFS;
        is_memory.then(|| (room.f_blocks - room.f_bfree) * room.f_bsize as u64)
    });
    used.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_more_frequent_the_less_is_left() {
        let gib = 1 << 30;
        assert_eq!(until_next_look(8 * gib, 0), MOST_SELDOM);
        assert_eq!(until_next_look(gib, gib - (40 << 20)), Duration::from_millis(9));
        assert_eq!(until_next_look(gib, 2 * gib), MOST_OFTEN);
    }

    #[test]
    fn memory_is_found_where_it_is() {
        let held = vec![1u8; 64 << 20];
        let own = std::process::id() as i32;
        assert!(quick_sum(&[own]) >= held.len() as u64);
        assert!(own_memory(own).unwrap() >= held.len() as u64);
        assert!(!processes().contains(&own));
    }

    #[test]
    fn page_tables_are_memory_too() {
        let status = "VmData:\t  10 kB\nVmPTE:\t     44 kB\nVmSwap:\t       0 kB\n";
        assert_eq!((page_tables(status), bytes_of(status, "RssAnon:")), (44 << 10, None));
        let own = std::process::id() as i32;
        let before = (quick_sum(&[own]), own_memory(own).unwrap());
        const SIZE: usize = 16 << 30;
        const STEP: usize = 2 << 20;
        // SAFETY: a new mapping at no place that is asked for, read within its bounds and given back.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let map = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            for place in (0..SIZE).step_by(STEP) {
                assert_eq!(map.cast::<u8>().add(place).read_volatile(), 0);
            }
            let tables = (SIZE / STEP * 4096) as u64;
            // Other tests of this process may give something back meanwhile.
            assert!(quick_sum(&[own]) + (8 << 20) >= before.0 + tables);
            assert!(own_memory(own).unwrap() + (8 << 20) >= before.1 + tables);
            libc::munmap(map, SIZE);
        }
    }
}
