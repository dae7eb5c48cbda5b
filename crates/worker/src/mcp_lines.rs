//! Messages out of what a program writes: one on each line, in whatever pieces the lines come. Pure.

use serde_json::Value;

/// Keeps the beginning of a line until its end has come.
pub(crate) struct Lines {
    line: Vec<u8>,
    longest: usize,
}

impl Lines {
    pub(crate) fn up_to(longest: usize) -> Self {
        Self { line: Vec::new(), longest }
    }

    /// The messages that are whole with this piece. What is no JSON, such as a greeting for people, is
    /// passed over. After a line that is too long there are none.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Vec<Value> {
        let mut messages = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.is_too_long() {
                break;
            }
            self.line.extend_from_slice(part);
            if !self.is_too_long() && self.line.ends_with(b"\n") {
                messages.extend(serde_json::from_slice::<Value>(&self.line));
                self.line.clear();
            }
        }
        messages
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.line.len() > self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_same_in_whatever_pieces_they_come() {
        let text = b"hello\n{\"id\":1}\n\n[2]\r\n\xff\n\"three\"\nrest";
        for at_once in [1, 2, 5, 100] {
            let mut lines = Lines::up_to(64);
            let found: Vec<Value> = text.chunks(at_once).flat_map(|it| lines.take(it)).collect();
            assert_eq!(
                found,
                [serde_json::json!({ "id": 1 }), serde_json::json!([2]), "three".into()]
            );
            assert!(!lines.is_too_long());
        }
    }

    #[test]
    fn a_line_without_end_ends_it() {
        let mut lines = Lines::up_to(8);
        assert_eq!(lines.take(b"1\n12345678"), [1]);
        assert!(!lines.is_too_long());
        assert_eq!(lines.take(b"9\n2\n"), Vec::<Value>::new());
        assert!(lines.is_too_long());
        assert_eq!(lines.take(b"3\n"), Vec::<Value>::new());
    }
}
