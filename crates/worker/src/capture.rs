//! Keeps the head and the tail of a stream of bytes and counts what falls out between them.

use bellglass_protocol::step::OutputStream;

use crate::recording::Recording;

/// Head and tail of one stream.
#[derive(Debug)]
pub(crate) struct HeadAndTail {
    keep: usize,
    head: Vec<u8>,
    /// The newest bytes after the head; up to twice `keep` before the older half is dropped.
    tail: Vec<u8>,
    total: u64,
}

impl HeadAndTail {
    fn new(keep: usize) -> Self {
        Self { keep, head: Vec::new(), tail: Vec::new(), total: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.keep - self.head.len();
        let (to_head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        // Of a very long piece only its end can matter.
        let rest = &rest[rest.len().saturating_sub(self.keep)..];
        self.tail.extend_from_slice(rest);
        if self.tail.len() > 2 * self.keep {
            self.tail.drain(..self.tail.len() - self.keep);
        }
    }

    fn kept_tail(&self) -> &[u8] {
        &self.tail[self.tail.len().saturating_sub(self.keep)..]
    }

    fn dropped(&self) -> u64 {
        self.total - self.head.len() as u64 - self.kept_tail().len() as u64
    }

    /// The text, with a note where something was left out. Bytes that are no text become `�`.
    fn text(&self) -> String {
        let mut bytes = self.head.clone();
        match self.dropped() {
            0 => bytes.extend_from_slice(self.kept_tail()),
            dropped => {
                let note = format!("\n[… {dropped} bytes left out …]\n");
                bytes.extend_from_slice(note.as_bytes());
                bytes.extend_from_slice(self.kept_tail());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What is kept of a step's output in its record.
#[derive(Debug)]
pub(crate) struct Capture {
    recording: Recording,
    stdout: HeadAndTail,
    stderr: HeadAndTail,
    /// Both, in the order in which they came.
    shown: HeadAndTail,
}

impl Capture {
    pub(crate) fn new(recording: Recording) -> Self {
        Self {
            recording,
            stdout: HeadAndTail::new(recording.stream_kept()),
            stderr: HeadAndTail::new(recording.stream_kept()),
            shown: HeadAndTail::new(recording.shown_kept()),
        }
    }

    /// How well the step is recorded.
    pub(crate) fn recording(&self) -> Recording {
        self.recording
    }

    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout.push(bytes),
            OutputStream::Stderr => self.stderr.push(bytes),
        }
        self.shown.push(bytes);
    }

    /// Counts bytes that nobody has any more.
    pub(crate) fn skip(&mut self, count: u64) {
        self.stdout.total += count;
        self.shown.total += count;
    }

    pub(crate) fn total(&self) -> u64 {
        self.shown.total
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.stdout.dropped() + self.stderr.dropped()
    }

    pub(crate) fn stdout(&self) -> String {
        self.recording.fit(self.stdout.text())
    }

    pub(crate) fn stderr(&self) -> String {
        self.recording.fit(self.stderr.text())
    }

    pub(crate) fn shown(&self) -> String {
        self.recording.fit(self.shown.text())
    }

    /// Whether a model is not shown all of it, as it was.
    pub(crate) fn is_cut(&self) -> bool {
        self.shown.dropped() > 0 || self.dropped() > 0 || !self.recording.keeps(&self.shown.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(keep: usize, pieces: &[&str]) -> (String, u64) {
        let mut kept = HeadAndTail::new(keep);
        for piece in pieces {
            kept.push(piece.as_bytes());
        }
        (kept.text(), kept.dropped())
    }

    #[test]
    fn short_output_is_whole() {
        assert_eq!(captured(4, &["ab", "cd", "efgh"]), ("abcdefgh".into(), 0));
    }

    #[test]
    fn the_middle_of_long_output_is_dropped_and_counted() {
        let expected = ("abcd\n[… 3 bytes left out …]\nhijk".to_string(), 3);
        assert_eq!(captured(4, &["abcdefghijk"]), expected);
        assert_eq!(captured(4, &["a", "bcdef", "gh", "i", "jk"]), expected);
    }

    #[test]
    fn memory_is_bounded() {
        let mut kept = HeadAndTail::new(100);
        for _ in 0..10_000 {
            kept.push(&[b'x'; 77]);
        }
        assert!(kept.head.len() + kept.tail.len() <= 400);
        assert_eq!(kept.dropped(), 770_000 - 200);
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let mut capture = Capture::new(Recording::Full);
        capture.push(OutputStream::Stderr, b"a\xff\xfeb");
        assert_eq!(capture.stderr(), "a\u{fffd}\u{fffd}b");
        assert_eq!(capture.stdout(), "");
    }
    #[test]
    fn a_short_record_is_short_whatever_is_written() {
        let mut capture = Capture::new(Recording::Short);
        for _ in 0..1000 {
            capture.push(OutputStream::Stdout, &[0; 100]);
            capture.push(OutputStream::Stderr, &[0xff; 100]);
        }
        for text in [capture.stdout(), capture.stderr(), capture.shown()] {
            let line = serde_json::to_string(&text).unwrap();
            assert!(line.len() < 2048, "{} bytes", line.len());
        }
        assert!(capture.is_cut());
        // What is replaced is not all there either.
        let mut capture = Capture::new(Recording::Short);
        capture.push(OutputStream::Stdout, b"plain\n");
        assert!(!capture.is_cut());
        capture.push(OutputStream::Stdout, b"\x1b");
        assert!(capture.is_cut());
    }
}
