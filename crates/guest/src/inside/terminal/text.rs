//! What a terminal is sent, as plain text: without escape sequences, without what full-screen
//! programs paint, and with our shell's own marks taken out of it.
//!
//! Bytes that are no text pass unchanged. The state is kept between pieces, however they are cut.

/// What the shell reports in the middle of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It has run the command of this number and waits for more.
    Ready { number: u64, status: i32, folder: String },
    /// It has left our loop and reads from the terminal, as after `break` or ctrl-z.
    Astray,
}

/// A piece of what the terminal was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(Vec<u8>),
    Mark(Mark),
}

/// The longest sequence that is looked into. A longer one is dropped all the same.
const LONGEST_SEQUENCE: usize = 8192;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

enum State {
    Plain,
    /// After an escape character.
    Escape,
    /// After an escape character and characters that announce one more.
    Charset,
    /// `ESC [` up to a final letter.
    Control(Vec<u8>),
    /// `ESC ]` and its like up to a bell or `ESC \`; whether an escape character came last.
    Text(Vec<u8>, AfterEscape),
}

#[derive(Clone, Copy, PartialEq)]
enum AfterEscape {
    Yes,
    No,
}

pub(super) struct PlainText {
    /// Tells our shell's marks from whatever else is printed.
    token: String,
    state: State,
    /// A full-screen program has the screen; what it paints is no text.
    painting: bool,
    /// A carriage return came last and waits for its line feed.
    returned: bool,
}

impl PlainText {
    pub(super) fn new(token: String) -> Self {
        Self { token, state: State::Plain, painting: false, returned: false }
    }

    pub(super) fn is_painting(&self) -> bool {
        self.painting
    }

    /// For a program that was killed while it had the screen.
    pub(super) fn stop_painting(&mut self) {
        self.painting = false;
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut text = Vec::new();
        for byte in bytes {
            match std::mem::replace(&mut self.state, State::Plain) {
                State::Plain => self.plain(*byte, &mut text),
                State::Escape => self.escape(*byte),
                State::Charset if *byte == ESCAPE => self.state = State::Escape,
                State::Charset => {}
                State::Control(mut so_far) => match *byte {
                    0x40..=0x7e => self.control(&so_far, *byte),
                    ESCAPE => self.state = State::Escape,
                    _ => {
                        keep(&mut so_far, *byte);
                        self.state = State::Control(so_far);
                    }
                },
                State::Text(mut so_far, after) => {
                    let ended = *byte == BELL || (after == AfterEscape::Yes && *byte == b'\\');
                    if ended {
                        if let Some(mark) = self.mark(&so_far) {
                            if !text.is_empty() {
                                parts.push(Part::Text(std::mem::take(&mut text)));
                            }
                            parts.push(Part::Mark(mark));
                        }
                    } else if after == AfterEscape::Yes {
                        // Another sequence begins: nobody ended this one.
                        self.escape(*byte);
                    } else if *byte == ESCAPE {
                        self.state = State::Text(so_far, AfterEscape::Yes);
                    } else {
                        keep(&mut so_far, *byte);
                        self.state = State::Text(so_far, AfterEscape::No);
                    }
                }
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        parts
    }

    fn plain(&mut self, byte: u8, text: &mut Vec<u8>) {
        if byte == ESCAPE {
            self.state = State::Escape;
            return;
        }
        if self.painting {
            return;
        }
        // The terminal's own line ends are ours without the carriage return.
        if std::mem::take(&mut self.returned) && byte != b'\n' {
            text.push(b'\r');
        }
        match byte {
            b'\r' => self.returned = true,
            BELL => {}
            _ => text.push(byte),
        }
    }

    fn escape(&mut self, byte: u8) {
        self.state = match byte {
            b'[' => State::Control(Vec::new()),
            b']' | b'P' | b'_' | b'^' | b'X' => State::Text(Vec::new(), AfterEscape::No),
            b'(' | b')' | b'*' | b'+' | b'#' | b'%' | b' ' => State::Charset,
            ESCAPE => State::Escape,
            _ => State::Plain,
        };
    }

    fn control(&mut self, parameters: &[u8], last: u8) {
        let Some(modes) = parameters.strip_prefix(b"?") else { return };
        let mut modes = modes.split(|byte| *byte == b';');
        if modes.any(|mode| matches!(mode, b"1049" | b"1047" | b"47")) {
            match last {
                b'h' => self.painting = true,
                b'l' => self.painting = false,
                _ => {}
            }
        }
    }

    fn mark(&self, sequence: &[u8]) -> Option<Mark> {
        let ours = sequence.strip_prefix(MARK.as_bytes())?.strip_prefix(self.token.as_bytes())?;
        let words = String::from_utf8_lossy(ours.strip_prefix(b";")?).into_owned();
        if words == ASTRAY {
            return Some(Mark::Astray);
        }
        let mut words = words.splitn(3, ';');
        let number = words.next()?.parse().ok()?;
        let status = words.next()?.parse().ok()?;
        Some(Mark::Ready { number, status, folder: words.next()?.into() })
    }
}

/// Our marks are operating-system commands with a number that no terminal knows.
pub(super) const MARK: &str = "7787;";
pub(super) const ASTRAY: &str = "astray";

fn keep(sequence: &mut Vec<u8>, byte: u8) {
    if sequence.len() < LONGEST_SEQUENCE {
        sequence.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(bytes: &[u8], cut: usize) -> String {
        let mut filter = PlainText::new("t".into());
        let mut shown = Vec::new();
        for part in bytes.chunks(cut).flat_map(|piece| filter.take(piece)) {
            match part {
                Part::Text(text) => shown.extend(text),
                Part::Mark(mark) => shown.extend(format!("<{mark:?}>").into_bytes()),
            }
        }
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn text_is_left_however_it_is_cut() {
        for (bytes, text) in [
            (&b"a\r\nb\rc"[..], "a\nb\rc"),
            (b"\x1b[1;31mred\x1b[0m \x1b(Bx\x1b=y", "red xy"),
            (b"\x1b]0;title\x07ok \x1b]8;;u\x1b\\link", "ok link"),
            (b"one\x1b[?1049hpainted\x1b[2J\x1b[?1049ltwo", "onetwo"),
            (b"caf\xc3\xa9", "café"),
            // What nobody ends does not swallow what comes next.
            (b"a\x1b]0;title\x1b]7787;t;astray\x07b", "a<Astray>b"),
            (b"a\x1bPq\x1b\x1b]7787;t;astray\x07b", "a<Astray>b"),
            (b"a\x1b(\x1b]7787;t;astray\x07b", "a<Astray>b"),
            (b"a\x1b[3\x1b]7787;t;astray\x07b", "a<Astray>b"),
            (
                b"x\x1b]7787;t;8;3;/a b\x07y\x1b]7787;u;8;3;/\x07\x1b]7787;t;astray\x07",
                "x<Ready { number: 8, status: 3, folder: \"/a b\" }>y<Astray>",
            ),
        ] {
            for cut in [1, 2, 3, 1000] {
                assert_eq!(text_of(bytes, cut), text, "cut into {cut}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        let parts = PlainText::new("t".into()).take(b"a\xff\x00\xfeb");
        assert_eq!(parts, [Part::Text(b"a\xff\x00\xfeb".to_vec())]);
    }

    #[test]
    fn a_sequence_without_end_costs_little() {
        let mut filter = PlainText::new("t".into());
        filter.take(b"\x1b]");
        for _ in 0..100 {
            assert!(filter.take(&[b'x'; 10_000]).is_empty());
        }
        assert_eq!(filter.take(b"\x07hi"), [Part::Text(b"hi".to_vec())]);
    }
}
