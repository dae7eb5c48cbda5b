//! Turns the oldest part of a context into text: for a model to summarise, or as a summary itself.

use bellglass_protocol::model::{AnswerBlock, Summary};

use super::{FROM_THE_USER, Unit};
use crate::tokens::{TOKENS_OF_FRAME, count};

/// The most of one answer, call or result that whoever summarises is shown.
const MOST_PIECE: usize = 3_000;

/// How the note begins that a summary is in the conversation.
const OPENING: &str = "[Summary of what happened up to entry ";

/// How a summary stands in the conversation.
pub(super) fn as_note(summary: &Summary) -> String {
    format!(
        "{OPENING}{} of the history. The entries themselves can be found with recall and read with \
         read_history.]\n\n{}",
        summary.through, summary.text
    )
}

/// What the note of a summary takes beside the summary's own words, at the most.
pub(super) fn tokens_around() -> u64 {
    let empty = Summary { through: u64::MAX, text: String::new(), usage: None, cost_usd: None };
    count(&as_note(&empty)) + TOKENS_OF_FRAME
}

/// The words of the summary that a note is, if it is one.
fn summarised_before(note: &str) -> Option<&str> {
    note.starts_with(OPENING).then(|| note.split_once("\n\n").map(|(_, text)| text)).flatten()
}

/// A part of a conversation as text of about `most` tokens.
pub(super) fn render(units: &[Unit], most: u64) -> String {
    let mut text = String::new();
    for unit in units {
        match unit {
            // What the user said, and what an earlier summary kept, is not cut piece by piece: it is
            // all that is left of what it stands for.
            Unit::Note(note) => {
                text.push_str(&format!("[entry {}, user] {}\n", note.seq, note.text));
            }
            Unit::Turn(turn) => {
                for block in turn.blocks.iter() {
                    let by = format!("entry {}, you", turn.seq);
                    match block {
                        AnswerBlock::Text { text: words } => piece(&mut text, &by, words),
                        AnswerBlock::ToolCall { name, arguments, .. } => {
                            piece(&mut text, &by, &format!("called {name} {arguments}"));
                        }
                        AnswerBlock::Reasoning { .. } => {}
                    }
                }
                for entry in &turn.results {
                    let word = if entry.failed { "failure" } else { "result" };
                    piece(&mut text, &format!("entry {}, {word}", entry.seq), &entry.text);
                }
            }
        }
    }
    bounded(&text, most)
}

fn piece(text: &mut String, by: &str, words: &str) {
    text.push_str(&format!("[{by}] {}\n", head_and_tail(words, MOST_PIECE)));
}

/// How a summary begins that no model wrote.
const HEADING: &str = "What was done, one line each";

/// A summary that is put together without a model: what was done, one line each.
pub(super) fn without_a_model(units: &[Unit], most: u64) -> String {
    let mut lines = Vec::new();
    for unit in units {
        match unit {
            Unit::Note(note) => match summarised_before(&note.text) {
                Some(words) => {
                    let words = words.lines().filter(|line| !line.starts_with(HEADING));
                    lines.extend(words.map(str::to_owned));
                }
                None => {
                    let words = note.text.strip_prefix(FROM_THE_USER).unwrap_or(&note.text);
                    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
                    let words = head_and_tail(&words, MOST_PIECE);
                    lines.push(format!("entry {}: user: {words}", note.seq));
                }
            },
            Unit::Turn(turn) => {
                for block in turn.blocks.iter() {
                    if let AnswerBlock::ToolCall { name, arguments, .. } = block {
                        let what = first_line(arguments);
                        lines.push(format!("entry {}: {name} {what}", turn.seq));
                    }
                }
                let failed = turn.results.iter().filter(|entry| entry.failed);
                lines.extend(failed.map(|entry| {
                    format!("entry {}: failed: {}", entry.seq, first_line(&entry.text))
                }));
            }
        }
    }
    // The newest say most about where things stand.
    let mut kept = Vec::new();
    let mut tokens = 40;
    for line in lines.iter().rev() {
        tokens += count(line) + 1;
        if tokens > most {
            break;
        }
        kept.push(line.as_str());
    }
    kept.reverse();
    let left_out = lines.len() - kept.len();
    format!("{HEADING} ({left_out} older lines left out):\n{}", kept.join("\n"))
}

fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().take(120).collect()
}

/// A text cut in its middle until it has no more than `most` tokens.
pub(super) fn bounded(text: &str, most: u64) -> String {
    let mut cut = text.to_owned();
    loop {
        let tokens = count(&cut);
        if tokens <= most {
            return cut;
        }
        let share = most as f64 / tokens as f64;
        let length = (cut.len() as f64 * share * 0.95) as usize;
        if length < 64 {
            return String::new();
        }
        cut = head_and_tail(text, length.min(cut.len() - 1));
    }
}

fn head_and_tail(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(most * 2 / 3)];
    let tail = &text[text.ceil_char_boundary(text.len() - most / 4)..];
    format!("{head} […] {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context_with_a_summary(words: &str) -> crate::context::Context {
        let mut context = crate::context::Context::default();
        context.add_note(1, "the task");
        let text = words.to_owned();
        context.add_note(2, &as_note(&Summary { through: 9, text, usage: None, cost_usd: None }));
        context
    }

    #[test]
    fn what_an_earlier_summary_kept_reaches_the_next_one() {
        let filler = "entry 3: shell make\n".repeat(400);
        let words =
            format!("{HEADING} (2 older lines left out):\n{filler}entry 7: MARKER\n{filler}");
        let context = context_with_a_summary(&words);
        let units = context.units.as_slice();
        assert!(render(units, 100_000).contains("MARKER"));
        let plain = without_a_model(units, 100_000);
        assert!(plain.contains("entry 7: MARKER"), "{plain}");
        assert_eq!(plain.matches(HEADING).count(), 1, "{plain}");
    }

    #[test]
    fn what_the_user_said_reaches_a_summary_that_no_model_writes() {
        let mut context = crate::context::Context::default();
        context.add_note(1, "the task");
        context.add_note(2, &format!("{FROM_THE_USER}Not blue.\nRed, with a blue rim."));
        let plain = without_a_model(context.units.as_slice(), 1_000);
        assert!(plain.contains("entry 2: user: Not blue. Red, with a blue rim."), "{plain}");
    }

    #[test]
    fn a_text_is_cut_to_its_tokens() {
        let text: String = (0..5000).map(|n| format!("{n} λόγος ")).collect();
        for most in [50, 500, 5000] {
            let cut = bounded(&text, most);
            assert!(count(&cut) <= most && count(&cut) > most / 3, "{most}: {}", count(&cut));
        }
        assert_eq!(bounded("short", 50), "short");
        assert_eq!(bounded("much too long for nothing at all", 0), "");
    }
}
