//! What a call's process wrote and the worker has not confirmed yet.
//!
//! At most [`OUTPUT_WINDOW`] bytes are held. When there is no room the process is not read from, so
//! it waits; nothing is lost and memory stays bounded, also while no worker is connected.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::wire::{DATA_CHUNK, OUTPUT_WINDOW};
use bytes::Bytes;
use tokio::sync::watch;

use super::failure::failure;

pub(super) struct Output {
    held: Mutex<Held>,
    /// Fires at every change: more output, more room.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Held {
    /// The bytes from `released` on, both streams in the order in which they were read.
    data: VecDeque<u8>,
    /// Which stretches of the output belong to which stream, each by the offset of its end. Bytes
    /// and runs are apart so that a process which alternates byte by byte costs little.
    runs: VecDeque<(OutputStream, u64)>,
    /// Bytes that the worker has confirmed; they are gone.
    released: u64,
}

/// What stands at an offset of the output.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Bytes(OutputStream, Bytes),
    /// Nothing was written there yet.
    NotYet,
    /// It was confirmed, and so dropped.
    Released,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { held: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Bytes that were written in all.
    pub(super) fn total(&self) -> u64 {
        self.lock().total()
    }

    /// Announces every later change of the output. Subscribe first, then look.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// How much may be appended now.
    pub(super) fn room(&self) -> usize {
        OUTPUT_WINDOW.saturating_sub(self.lock().data.len())
    }

    pub(super) async fn wait_for_room(&self) -> usize {
        let mut changes = self.subscribe();
        loop {
            let room = self.room();
            // The sender lives as long as `self`, so waiting cannot fail.
            if room > 0 || changes.changed().await.is_err() {
                return room;
            }
        }
    }

    pub(super) fn append(&self, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut held = self.lock();
        held.data.extend(bytes);
        let end = held.total();
        match held.runs.back_mut() {
            Some((last, last_end)) if *last == stream => *last_end = end,
            _ => held.runs.push_back((stream, end)),
        }
        drop(held);
        self.changed.send_replace(());
    }

    /// The worker has all output up to `offset`, counted from the beginning.
    pub(super) fn confirm(&self, offset: u64) -> Result<(), ToolError> {
        let mut held = self.lock();
        let total = held.total();
        if offset > total {
            return Err(failure(
                "received_too_much",
                format!("{offset} bytes were confirmed, but the call has written only {total}"),
            ));
        }
        let Some(count) = offset.checked_sub(held.released).filter(|count| *count > 0) else {
            return Ok(());
        };
        held.data.drain(..count as usize);
        held.released = offset;
        while held.runs.front().is_some_and(|(_, end)| *end <= offset) {
            held.runs.pop_front();
        }
        drop(held);
        self.changed.send_replace(());
        Ok(())
    }

    /// The output at `offset`, as much of one stream as fits a frame.
    pub(super) fn piece_at(&self, offset: u64) -> Piece {
        let held = self.lock();
        if offset < held.released {
            return Piece::Released;
        }
        let run = held.runs.partition_point(|(_, end)| *end <= offset);
        let Some((stream, end)) = held.runs.get(run).copied() else {
            return Piece::NotYet;
        };
        let start = (offset - held.released) as usize;
        let length = ((end - offset) as usize).min(DATA_CHUNK);
        let mut bytes = Vec::with_capacity(length);
        let (front, back) = held.data.as_slices();
        let from_front = front.get(start..).unwrap_or_default();
        bytes.extend_from_slice(&from_front[..from_front.len().min(length)]);
        let start_in_back = start.saturating_sub(front.len());
        let missing = length - bytes.len();
        bytes.extend_from_slice(&back[start_in_back..start_in_back + missing]);
        Piece::Bytes(stream, bytes.into())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn total(&self) -> u64 {
        self.released + self.data.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    fn read_from(output: &Output, mut offset: u64) -> Vec<(OutputStream, Vec<u8>)> {
        let mut pieces = Vec::new();
        while let Piece::Bytes(stream, bytes) = output.piece_at(offset) {
            offset += bytes.len() as u64;
            pieces.push((stream, bytes.to_vec()));
        }
        pieces
    }

    #[test]
    fn pieces_come_back_in_order_from_any_offset() {
        let output = Output::new();
        output.append(Stdout, b"ab");
        output.append(Stdout, b"c");
        output.append(Stderr, b"xyz");
        output.append(Stdout, b"d");
        let all =
            vec![(Stdout, b"abc".to_vec()), (Stderr, b"xyz".to_vec()), (Stdout, b"d".to_vec())];
        assert_eq!(read_from(&output, 0), all);
        output.confirm(4).unwrap();
        assert_eq!(read_from(&output, 4), [(Stderr, b"yz".to_vec()), (Stdout, b"d".to_vec())]);
        assert_eq!(output.piece_at(3), Piece::Released);
        assert_eq!(output.piece_at(7), Piece::NotYet);
        assert!(output.confirm(8).is_err());
        output.confirm(2).unwrap();
        assert_eq!(output.total(), 7);
    }

    #[test]
    fn room_is_what_the_window_leaves() {
        let output = Output::new();
        output.append(Stdout, &vec![1; OUTPUT_WINDOW - 10]);
        assert_eq!(output.room(), 10);
        output.confirm(30).unwrap();
        assert_eq!(output.room(), 40);
        // The ring has wrapped around now; the bytes must not show it.
        output.append(Stderr, &[2; 40]);
        let pieces = read_from(&output, 30);
        let bytes: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(bytes, OUTPUT_WINDOW);
        assert_eq!(pieces.last().unwrap(), &(Stderr, vec![2; 40]));
    }
}
