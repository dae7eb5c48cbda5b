//! What a program wrote, as it reads: without colours, titles and moves of the cursor, which are for a terminal
//! of its own. Comes in pieces that may end anywhere.

/// Goes through the output of a program piece by piece.
#[derive(Debug, Default)]
pub(crate) struct PlainOutput {
    state: State,
    /// Whether the cursor is at the beginning of a line that is about to be written over, or to end.
    returned: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Text,
    /// After the character that begins every sequence.
    Escape,
    /// In a sequence that ends with a letter, such as a colour.
    Command,
    /// In one that holds words, such as a title, and ends with one of two marks.
    Words,
    /// In the second of these marks, if it is one.
    WordsEscape,
}

const ESCAPE: char = '\x1b';
const BELL: char = '\x07';

impl PlainOutput {
    /// The next piece as it reads. Of a line that is written over, as a bar of progress is, the last
    /// state is left; what was shown of it before stays a line of its own.
    pub(crate) fn take(&mut self, piece: &str, line: Line) -> String {
        let mut out = String::with_capacity(piece.len());
        for c in piece.chars() {
            self.take_in(c, line, &mut out);
        }
        out
    }

    /// Forgets what was begun: what comes now is somebody else's.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    fn take_in(&mut self, c: char, line: Line, out: &mut String) {
        self.state = match (self.state, c) {
            // No sequence goes beyond its line, so that one without an end hides no more than that.
            (_, '\n') => {
                self.returned = false;
                out.push(c);
                State::Text
            }
            (State::Words, BELL) | (State::WordsEscape, '\\') => State::Text,
            (State::Words, ESCAPE) => State::WordsEscape,
            (State::Words, _) => State::Words,
            (_, ESCAPE) => State::Escape,
            (_, '\r') => {
                self.returned = true;
                State::Text
            }
            (State::Escape | State::WordsEscape, '[') => State::Command,
            (State::Escape | State::WordsEscape, ']' | 'P' | 'X' | '^' | '_') => State::Words,
            (State::Escape | State::WordsEscape, ' '..='/') => State::Escape,
            (State::Escape | State::WordsEscape, '0'..='~') => State::Text,
            (State::Command, ' '..='?') => State::Command,
            (State::Command, '@'..='~') => State::Text,
            (State::Text | State::Escape | State::WordsEscape | State::Command, _) => {
                if std::mem::take(&mut self.returned) {
                    take_line_back(line, out);
                }
                out.push(c);
                State::Text
            }
        };
    }
}

/// Takes the last line out of what is about to be shown.
fn take_line_back(line: Line, out: &mut String) {
    match out.rfind('\n') {
        Some(end) => out.truncate(end + 1),
        None => {
            out.clear();
            if line == Line::Begun {
                out.push('\n');
            }
        }
    }
}

/// Whether something of the line on which a piece begins was shown already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    New,
    Begun,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> String {
        let mut plain = PlainOutput::default();
        let mut shown = String::new();
        for piece in pieces {
            let begun = !shown.is_empty() && !shown.ends_with('\n');
            shown += &plain.take(piece, if begun { Line::Begun } else { Line::New });
        }
        shown
    }

    #[test]
    fn what_only_a_terminal_obeys_is_left_out() {
        for (pieces, shown) in [
            (&["plain\ttext, ünï\n"][..], "plain\ttext, ünï\n"),
            (&["\x1b[1;31mred\x1b[0m and \x1b[38;5;7mgrey\x1b[m"], "red and grey"),
            (&["\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\c"], "abc"),
            (&["\x1b(B\x1b)0\x1b=\x1b>a\x1b7\x1b8\x1b[?25lb\x1b[2Kc"], "abc"),
            // In two pieces.
            (&["a\x1b", "[3", "1mb\x1b]0;ti", "tle\x1b", "\\c"], "abc"),
            // One without an end hides no more than its line.
            (&["a\x1b]0;no end\nb\x1b[3\nc\x1b\nd"], "a\nb\nc\nd"),
            (&["a\x1b]0;\x1b[31mb"], "ab"),
        ] {
            assert_eq!(read(pieces), shown, "{pieces:?}");
        }
    }

    #[test]
    fn of_a_line_that_is_written_over_the_last_state_is_left() {
        for (pieces, shown) in [
            (&["one\r\ntwo\r\r\n"][..], "one\ntwo\n"),
            (&["10%\r50%\r100%\nend\n"], "100%\nend\n"),
            (&["first\n10%\r100%\n"], "first\n100%\n"),
            (&["one\r", "\ntwo"], "one\ntwo"),
            // What was shown cannot be taken back.
            (&["10%", "\r50%\r100%\n"], "10%\n100%\n"),
            (&["10%\r", "100%\r", "\n"], "10%\n100%\n"),
            (&["10%\r\x1b[K\x1b[32m100%\x1b[0m\n"], "100%\n"),
        ] {
            assert_eq!(read(pieces), shown, "{pieces:?}");
        }
    }
}
