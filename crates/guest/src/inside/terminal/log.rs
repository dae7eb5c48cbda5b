//! The last stretch of what a terminal wrote, by offsets that count from its beginning.

use std::collections::VecDeque;

/// What is held at the most.
pub(super) const HELD: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Log {
    data: VecDeque<u8>,
    /// The offset of the first byte that is held.
    start: u64,
}

impl Log {
    pub(super) fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// Appends, and lets go of what is too old.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.data.extend(bytes);
        let over = self.data.len().saturating_sub(HELD);
        self.data.drain(..over);
        self.start += over as u64;
    }

    /// Bytes from an offset on, at most so many, and how many before them are gone.
    pub(super) fn read(&self, from: u64, most: usize) -> (u64, Vec<u8>) {
        let missed = self.start.saturating_sub(from);
        let skipped = from.max(self.start) - self.start;
        let bytes = self.data.iter().skip(skipped as usize).take(most).copied().collect();
        (missed, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_bytes_go_and_are_counted() {
        let mut log = Log::default();
        log.append(b"abcdef");
        assert_eq!(log.read(2, 3), (0, b"cde".to_vec()));
        log.append(&vec![b'x'; HELD]);
        assert_eq!(log.read(2, 1), (4, b"x".to_vec()));
        assert_eq!(log.end(), HELD as u64 + 6);
        assert_eq!(log.read(log.end(), 10), (0, Vec::new()));
    }
}
