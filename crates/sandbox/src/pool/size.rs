//! How many sandboxes should wait: as many as were lately asked for at once, within bounds.

use std::collections::VecDeque;
use std::fs;

use bellglass_protocol::quantity::ByteSize;

/// The bounds that the operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// So many wait also when nothing was asked for in a while.
    pub min: usize,
    pub max: usize,
}

/// A sandbox that waits takes about half a MiB; what it may take once it works is not its own yet.
const ROOM_FOR_ONE: u64 = 16 << 20;

/// Memory that is left to everything else.
const LEFT_ALONE: u64 = 512 << 20;

/// Demand is forgotten after this time.
const MEMORY_SECONDS: u64 = 60;

impl PoolSize {
    /// How many should wait, by the largest number that one second asked for.
    pub(super) fn wanted(&self, peak: usize, available: ByteSize) -> usize {
        let affordable = available.0.saturating_sub(LEFT_ALONE) / ROOM_FOR_ONE;
        let affordable = usize::try_from(affordable).unwrap_or(usize::MAX);
        peak.max(self.min).min(self.max).min(affordable)
    }
}

/// How many starts were asked for in each of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Demand(VecDeque<(u64, usize)>);

impl Demand {
    pub(super) fn note(&mut self, second: u64) {
        self.forget(second);
        match self.0.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => self.0.push_back((second, 1)),
        }
    }

    pub(super) fn peak(&mut self, second: u64) -> usize {
        self.forget(second);
        self.0.iter().map(|(_, count)| *count).max().unwrap_or(0)
    }

    fn forget(&mut self, now: u64) {
        while self.0.front().is_some_and(|(second, _)| second + MEMORY_SECONDS < now) {
            self.0.pop_front();
        }
    }
}

/// What the kernel thinks could be used without swapping. Unknown counts as plenty.
pub(super) fn available_memory() -> ByteSize {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    ByteSize(kilobytes.map_or(u64::MAX, |number| number.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_demand_within_its_bounds() {
        let size = PoolSize { min: 1, max: 4 };
        let plenty = ByteSize::gib(8);
        for (peak, wanted) in [(0, 1), (1, 1), (3, 3), (9, 4)] {
            assert_eq!(size.wanted(peak, plenty), wanted, "{peak}");
        }
        assert_eq!(size.wanted(4, ByteSize::mib(512)), 0);
        assert_eq!(size.wanted(4, ByteSize::mib(512 + 2 * 16)), 2);
        assert_eq!(PoolSize { min: 3, max: 0 }.wanted(5, plenty), 0);
    }

    #[test]
    fn demand_is_counted_by_the_second_and_forgotten() {
        let mut demand = Demand::default();
        assert_eq!(demand.peak(0), 0);
        for second in [5, 5, 5, 6, 9] {
            demand.note(second);
        }
        assert_eq!(demand.peak(9), 3);
        assert_eq!(demand.peak(5 + MEMORY_SECONDS), 3);
        assert_eq!(demand.peak(6 + MEMORY_SECONDS), 1);
        assert_eq!(demand.peak(1000), 0);
    }
}
