//! A running step's output as events, gathered for a moment so that chatty programs cost little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_protocol::event::EventBody;
use bellglass_protocol::step::OutputStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::job_log::JobLog;
use crate::recording::Recording;

/// How long output is gathered before it becomes an event.
const GATHER: Duration = Duration::from_millis(50);

/// Sends the head of a step's output to the log while the step runs.
pub(crate) struct LiveOutput {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    gathered: Mutex<Gathered>,
    arrived: Notify,
    closing: CancellationToken,
}

struct Gathered {
    recording: Recording,
    /// One piece for each stream, in the order in which they first came. A program that changes
    /// between its streams with every byte must not make an event of every byte.
    pieces: Vec<(OutputStream, Vec<u8>)>,
    taken: usize,
    /// Events that were made for this step.
    events: usize,
}

impl LiveOutput {
    pub(crate) fn new(log: JobLog, n: u32, recording: Recording) -> Self {
        let shared = Arc::new(Shared {
            gathered: Mutex::new(Gathered::new(recording)),
            arrived: Notify::new(),
            closing: CancellationToken::new(),
        });
        let task = tokio::spawn(send(shared.clone(), log, n));
        Self { shared, task }
    }

    pub(crate) fn push(&self, stream: OutputStream, bytes: &[u8]) {
        if self.shared.lock().push(stream, bytes) == Pushed::Gathered {
            self.shared.arrived.notify_one();
        }
    }

    /// Stops, and returns the rest as events, to be written together with the step's end. A step
    /// that ended before its output was due has it all in its record and needs no events.
    pub(crate) async fn finish(self, n: u32) -> Vec<EventBody> {
        self.shared.closing.cancel();
        // What it was writing is written when this returns.
        let _ = self.task.await;
        let mut gathered = self.shared.lock();
        if gathered.events > 0 { gathered.take_events(n, Rest::All) } else { Vec::new() }
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pushed {
    Gathered,
    /// There were bytes or events enough before.
    LeftOut,
}

impl Gathered {
    fn new(recording: Recording) -> Self {
        Self { recording, pieces: Vec::new(), taken: 0, events: 0 }
    }

    fn push(&mut self, stream: OutputStream, bytes: &[u8]) -> Pushed {
        let bytes = &bytes[..bytes.len().min(self.recording.most_live() - self.taken)];
        if bytes.is_empty() || self.events >= self.recording.most_live_events() {
            return Pushed::LeftOut;
        }
        self.taken += bytes.len();
        match self.pieces.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, piece)) => piece.extend_from_slice(bytes),
            None => self.pieces.push((stream, bytes.to_vec())),
        }
        Pushed::Gathered
    }

    fn take_events(&mut self, n: u32, rest: Rest) -> Vec<EventBody> {
        let mut events = Vec::new();
        for (stream, mut bytes) in std::mem::take(&mut self.pieces) {
            if rest == Rest::Keep {
                let unfinished = bytes.split_off(bytes.len() - unfinished_bytes(&bytes));
                if !unfinished.is_empty() {
                    self.pieces.push((stream, unfinished));
                }
            }
            if !bytes.is_empty() && self.events < self.recording.most_live_events() {
                let text = self.recording.fit(String::from_utf8_lossy(&bytes).into_owned());
                events.push(EventBody::StepOutput { n, stream, text });
                self.events += 1;
            }
        }
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
    use super::OutputStream::{Stderr, Stdout};
    use super::*;

    fn taken(gathered: &mut Gathered, rest: Rest) -> Vec<(OutputStream, String)> {
        let text = |event| match event {
            EventBody::StepOutput { stream, text, .. } => (stream, text),
            other => panic!("{other:?}"),
        };
        gathered.take_events(1, rest).into_iter().map(text).collect()
    }

    #[test]
    fn changing_streams_makes_no_more_events() {
        let mut gathered = Gathered::new(Recording::Full);
        for _ in 0..1000 {
            gathered.push(Stderr, b"e");
            gathered.push(Stdout, b"o");
        }
        let expected = [(Stderr, "e".repeat(1000)), (Stdout, "o".repeat(1000))];
        assert_eq!(taken(&mut gathered, Rest::Keep), expected);
        assert_eq!(taken(&mut gathered, Rest::All), []);
    }

    #[test]
    fn slow_output_has_an_end_too() {
        let mut gathered = Gathered::new(Recording::Full);
        let mut events = 0;
        let most = Recording::Full.most_live_events();
        for _ in 0..most {
            gathered.push(Stdout, b"o");
            gathered.push(Stderr, b"e");
            events += gathered.take_events(1, Rest::Keep).len();
        }
        assert_eq!(events, most);
    }

    #[test]
    fn each_stream_keeps_its_unfinished_character() {
        let mut gathered = Gathered::new(Recording::Full);
        gathered.push(Stdout, &"aé".as_bytes()[..2]);
        gathered.push(Stderr, &"文".as_bytes()[..2]);
        assert_eq!(taken(&mut gathered, Rest::Keep), [(Stdout, "a".to_owned())]);
        gathered.push(Stderr, &"文".as_bytes()[2..]);
        gathered.push(Stdout, &"é".as_bytes()[1..]);
        let expected = [(Stdout, "é".to_owned()), (Stderr, "文".to_owned())];
        assert_eq!(taken(&mut gathered, Rest::Keep), expected);
    }

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
