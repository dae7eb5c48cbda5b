//! A running step's output as events, gathered for a moment so that chatty programs cost little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_protocol::event::EventBody;
use bellglass_protocol::step::OutputStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::job_log::JobLog;

/// How long output is gathered before it becomes an event.
const GATHER: Duration = Duration::from_millis(50);

/// Output of one step that becomes events; the end of longer output is in the step's record.
const MOST_LIVE: usize = 64 << 10;

/// Sends the head of a step's output to the log while the step runs.
pub(crate) struct LiveOutput {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    gathered: Mutex<Gathered>,
    arrived: Notify,
    closing: CancellationToken,
}

#[derive(Default)]
struct Gathered {
    /// Pieces in their order; neighbours from one stream are joined.
    pieces: Vec<(OutputStream, Vec<u8>)>,
    taken: usize,
    /// Whether an event was written for this step.
    written: bool,
}

impl LiveOutput {
    pub(crate) fn new(log: JobLog, n: u32) -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(send(shared.clone(), log, n));
        Self { shared, task }
    }

    pub(crate) fn push(&self, stream: OutputStream, bytes: &[u8]) {
        let mut gathered = self.shared.lock();
        let bytes = &bytes[..bytes.len().min(MOST_LIVE - gathered.taken)];
        if bytes.is_empty() {
            return;
        }
        gathered.taken += bytes.len();
        match gathered.pieces.last_mut() {
            Some((last, piece)) if *last == stream => piece.extend_from_slice(bytes),
            _ => gathered.pieces.push((stream, bytes.to_vec())),
        }
        self.shared.arrived.notify_one();
    }

    /// Stops, and returns the rest as events, to be written together with the step's end. A step
    /// that ended before its output was due has it all in its record and needs no events.
    pub(crate) async fn finish(self, n: u32) -> Vec<EventBody> {
        self.shared.closing.cancel();
        // What it was writing is written when this returns.
        let _ = self.task.await;
        let mut gathered = self.shared.lock();
        if gathered.written { gathered.take_events(n, Rest::All) } else { Vec::new() }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Gathered> {
        self.gathered.lock().expect("no code panics while it holds this lock")
    }
}

/// What to do with a character of which only the first bytes have come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Keep,
    All,
}

impl Gathered {
    fn take_events(&mut self, n: u32, rest: Rest) -> Vec<EventBody> {
        let mut pieces = std::mem::take(&mut self.pieces);
        if rest == Rest::Keep
            && let Some((stream, last)) = pieces.last_mut()
        {
            let unfinished = last.split_off(last.len() - unfinished_bytes(last));
            if !unfinished.is_empty() {
                self.pieces.push((*stream, unfinished));
            }
        }
        let events: Vec<_> = pieces
            .into_iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .map(|(stream, bytes)| {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                EventBody::StepOutput { n, stream, text }
            })
            .collect();
        self.written |= !events.is_empty();
        events
    }
}

/// How many bytes at the end begin a character that is not whole yet.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    let end = &bytes[bytes.len().saturating_sub(3)..];
    match std::str::from_utf8(end) {
        Ok(_) => 0,
        // The window may begin inside a character; what counts is how it ends.
        Err(_) => (1..=end.len())
            .find(|count| {
                let tail = &end[end.len() - count..];
                matches!(std::str::from_utf8(tail), Err(error) if error.error_len().is_none())
                    && tail[0] >= 0xc0
            })
            .unwrap_or(0),
    }
}

async fn send(shared: Arc<Shared>, log: JobLog, n: u32) {
    let gather = async || {
        shared.arrived.notified().await;
        tokio::time::sleep(GATHER).await;
    };
    while shared.closing.run_until_cancelled(gather()).await.is_some() {
        let events = shared.lock().take_events(n, Rest::Keep);
        // Without a log there is nothing left to tell; the step itself finds that out.
        if !events.is_empty() && log.append(events).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_not_torn() {
        for (bytes, unfinished) in [
            (&b"abc"[..], 0),
            ("aé".as_bytes(), 0),
            (&"aé".as_bytes()[..2], 1),
            (&"文".as_bytes()[..2], 2),
            (&"x😀".as_bytes()[..4], 3),
            ("😀".as_bytes(), 0),
            (&b"\xff\xff\xff"[..], 0),
            (&b""[..], 0),
        ] {
            assert_eq!(unfinished_bytes(bytes), unfinished, "{bytes:x?}");
        }
    }
}
