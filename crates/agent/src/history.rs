//! A job's own history as a model reads it: entries by number, and a search over all of them.
//!
//! Works on pages of events, so that the length of a history does not matter.

use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::model::AnswerBlock;

/// The most characters that one look into the history gives.
pub const MOST_SHOWN: usize = 24_000;

const MOST_FINDS: usize = 20;
const EXCERPT: usize = 160;

/// An event as text, if it says something that a model could want to know.
pub fn entry_text(event: &Event) -> Option<String> {
    Some(match &event.body {
        EventBody::Scheduled { spec } => match &spec.work {
            bellglass_protocol::job::Work::Task(task) => format!("the task: {task}"),
            bellglass_protocol::job::Work::Steps(_) | bellglass_protocol::job::Work::Session(_) => {
                return None;
            }
        },
        EventBody::ModelAnswered { answer, .. } => words_of(&answer.blocks, |_| true),
        EventBody::StepFinished { n, outcome } => {
            format!("result of step {n}: {}", outcome.output)
        }
        EventBody::ToolAnswered { tool, output, .. } => format!("result of {tool}: {output}"),
        EventBody::MessageReceived { text, .. } => format!("user: {text}"),
        EventBody::NetworkChanged { network, .. } => {
            format!("user: changed what the sandbox can reach to {network}")
        }
        EventBody::WorkspaceRestored { step, .. } => {
            format!("the workspace was put back to what it was after step {step}")
        }
        EventBody::DesktopTaken { .. } => "user: took over the desktop".into(),
        EventBody::DesktopReturned { .. } => "user: handed the desktop back".into(),
        EventBody::Paused { .. } => "the job was paused".into(),
        EventBody::Resumed { .. } => "the job was let go on".into(),
        EventBody::MemoryRecalled { texts, .. } if !texts.is_empty() => {
            format!("memories of earlier tasks: {}", texts.join("\n"))
        }
        EventBody::ModelNudged { text } => format!("reminder: {text}"),
        EventBody::QuestionAsked { question, .. } => format!("you asked the user: {question}"),
        EventBody::ContextCompacted { compaction } => {
            format!("summary: {}", compaction.summary.as_ref()?.text)
        }
        _ => return None,
    })
}

fn words_of(blocks: &[AnswerBlock], has: impl Fn(&str) -> bool) -> String {
    let blocks = blocks.iter().filter_map(|block| match block {
        AnswerBlock::Text { text } => Some(text.clone()),
        AnswerBlock::ToolCall { name, .. } if !has(name) => None,
        AnswerBlock::ToolCall { name, arguments, .. } => Some(format!("called {name} {arguments}")),
        AnswerBlock::Reasoning { .. } => None,
    });
    format!("you: {}", blocks.collect::<Vec<_>>().join("\n"))
}

/// The same for a search. What was looked for and found before says nothing that its source does not, and
/// would be found first.
fn searched_text(event: &Event) -> Option<String> {
    let looks_back = |tool: &str| matches!(tool, "recall" | "read_history");
    match &event.body {
        EventBody::ModelAnswered { answer, .. } => {
            Some(words_of(&answer.blocks, |tool| !looks_back(tool)))
        }
        EventBody::ToolAnswered { tool, .. } if looks_back(tool) => None,
        _ => entry_text(event),
    }
}

/// Gathers the best finds for some words, event by event.
#[derive(Debug)]
pub struct Search {
    words: Vec<String>,
    /// How many of the words an entry has, its number, and an excerpt. The best come first.
    finds: Vec<(usize, u64, String)>,
}

impl Search {
    pub fn new(query: &str) -> Self {
        let words = query.split_whitespace().take(16).map(str::to_lowercase).collect();
        Self { words, finds: Vec::new() }
    }

    pub fn look_at(&mut self, event: &Event) {
        let Some(text) = searched_text(event) else { return };
        let lower = text.to_lowercase();
        let hits: Vec<usize> = self.words.iter().filter_map(|word| lower.find(word)).collect();
        let Some(&first) = hits.first() else { return };
        self.finds.push((hits.len(), event.seq, excerpt(&text, place_in(&text, first))));
        if self.finds.len() >= 8 * MOST_FINDS {
            self.keep_best();
        }
    }

    /// What was found, as text for a model.
    pub fn finish(mut self) -> String {
        self.keep_best();
        if self.finds.is_empty() {
            return "nothing in this job's history has any of these words".into();
        }
        let lines = self.finds.iter().map(|(_, seq, text)| format!("entry {seq}: {text}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn keep_best(&mut self) {
        self.finds
            .sort_by_key(|(hits, seq, _)| (std::cmp::Reverse(*hits), std::cmp::Reverse(*seq)));
        self.finds.truncate(MOST_FINDS);
    }
}

/// Where a byte of the text in small letters lies in the text itself.
fn place_in(text: &str, in_lower: usize) -> usize {
    let mut passed = 0;
    let mut places = text.char_indices();
    let found = places.find(|(_, c)| {
        passed += c.to_lowercase().map(char::len_utf8).sum::<usize>();
        passed > in_lower
    });
    found.map_or(text.len(), |(at, _)| at)
}

fn excerpt(text: &str, at: usize) -> String {
    let start = text.floor_char_boundary(at.saturating_sub(EXCERPT / 2));
    let end = text.ceil_char_boundary((at + EXCERPT).min(text.len()));
    let piece: String = text[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
    format!("…{piece}…")
}

/// Entries of a range, one below the other, as far as there is room.
#[derive(Debug, Default)]
pub struct Reading {
    text: String,
    stopped_at: Option<u64>,
    /// Bytes of the first entry that are passed over.
    start: usize,
}

impl Reading {
    /// Begins with this byte of the first entry.
    pub fn from(start: u64) -> Self {
        Self { start: usize::try_from(start).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Takes in an event; `false` when there is no room for more.
    pub fn take(&mut self, event: &Event) -> bool {
        let Some(text) = entry_text(event) else { return true };
        let room = MOST_SHOWN.saturating_sub(self.text.len());
        if room < 200 && !self.text.is_empty() {
            self.stopped_at = Some(event.seq);
            return false;
        }
        let start = text.floor_char_boundary(std::mem::take(&mut self.start));
        let end = text.floor_char_boundary((start + room).min(text.len()));
        self.text.push_str(&format!("[entry {}] {}\n", event.seq, &text[start..end]));
        if end < text.len() {
            let (seq, rest) = (event.seq, text.len() - end);
            self.text.push_str(&format!(
                "[… {rest} more bytes of entry {seq}: read_history from {seq} with start {end} …]\n"
            ));
        }
        true
    }

    pub fn finish(self) -> String {
        match self.stopped_at {
            Some(seq) => format!("{}[there is more: go on from entry {seq}]", self.text),
            None if self.text.is_empty() => "there are no entries with these numbers".into(),
            None => self.text,
        }
    }
}

/// Lines of a text by number, with a word about what is left out.
pub fn lines(text: &str, offset: u64, limit: u64) -> String {
    let total = text.lines().count();
    let first = usize::try_from(offset.max(1)).unwrap_or(usize::MAX);
    let limit = usize::try_from(limit.clamp(1, 2_000)).unwrap_or(2_000);
    let mut shown = String::new();
    let mut last = first - 1;
    for line in text.lines().skip(first - 1).take(limit) {
        if shown.len() + line.len() > MOST_SHOWN && !shown.is_empty() {
            break;
        }
        let end = line.floor_char_boundary(MOST_SHOWN);
        shown.push_str(&line[..end]);
        if end < line.len() {
            // Where the line lies is found by its address within the text.
            let byte = line.as_ptr() as usize - text.as_ptr() as usize + end;
            shown.push_str(&format!(
                "\n[… {} more bytes of line {}: read_output with start {byte} …]",
                line.len() - end,
                last + 1
            ));
        }
        shown.push('\n');
        last += 1;
    }
    if last < first {
        return format!("the output has {total} lines");
    }
    format!("{shown}[lines {first} to {last} of {total}]")
}

/// Text from a byte on, as much as is shown at once.
pub fn bytes(text: &str, start: u64) -> String {
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(text.len());
    let start = text.floor_char_boundary(start);
    let end = text.floor_char_boundary((start + MOST_SHOWN).min(text.len()));
    format!("{}\n[bytes {start} to {end} of {}]", &text[start..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::id::JobId;
    use bellglass_protocol::model::{ModelAnswer, StopCause, Usage};

    #[test]
    fn what_is_too_long_to_be_shown_at_once_can_be_read_to_its_end() {
        let long: String = (0..20_000).map(|n| format!("{n}é ")).collect();
        let (mut read, mut start) = (String::new(), 0);
        while start < long.len() {
            let mut reading = Reading::from(start as u64);
            assert!(reading.take(&message(7, &long)));
            let shown = reading.finish();
            let piece = shown.strip_prefix("[entry 7] ").unwrap();
            let piece = piece.strip_prefix("user: ").unwrap_or(piece);
            let end = piece.find("\n[… ").unwrap_or(piece.len() - 1);
            read.push_str(&piece[..end]);
            start += end;
        }
        assert!(read.contains("19999é") && read.contains("10000é"));
        let (mut read, mut start) = (String::new(), 0);
        while start < long.len() {
            let shown = bytes(&long, start as u64);
            let piece = shown.rsplit_once("\n[bytes ").unwrap().0;
            read.push_str(piece);
            start += piece.len();
        }
        assert_eq!(read, long);
        let one_line = lines(&long, 1, 10);
        let at = one_line.split("with start ").nth(1).unwrap().split(' ').next().unwrap();
        let at: usize = at.parse().unwrap();
        assert!(bytes(&long, at as u64).starts_with(&long[at..at + 50]));
    }

    fn message(seq: u64, text: &str) -> Event {
        event(seq, EventBody::MessageReceived { by: "user".into(), text: text.into() })
    }

    fn event(seq: u64, body: EventBody) -> Event {
        Event { seq, at: jiff::Timestamp::UNIX_EPOCH, job: JobId::generate(), body }
    }

    #[test]
    fn a_search_does_not_find_itself() {
        let mut search = Search::new("xylophone");
        let call = |name: &str| {
            let (id, arguments) = ("c".into(), r#"{"query":"Xylophone"}"#.into());
            AnswerBlock::ToolCall { id, name: name.into(), arguments }
        };
        let said = AnswerBlock::Text { text: "İ look for the XYLOPHONE".into() };
        let answered = |seq, blocks| {
            let answer = ModelAnswer {
                model: "x".into(),
                blocks,
                stop: StopCause::ToolCalls,
                usage: Usage::default(),
                cost_usd: None,
                duration_ms: 1,
            };
            event(seq, EventBody::ModelAnswered { answer: Box::new(answer), heard: None })
        };
        let found = |seq, tool: &str| {
            let (call_id, output) = ("c".into(), "entry 1: …a Xylophone…".into());
            event(
                seq,
                EventBody::ToolAnswered { call_id, tool: tool.into(), output, failed: false },
            )
        };
        search.look_at(&message(1, "a Xylophone is there"));
        search.look_at(&answered(2, vec![call("recall")]));
        search.look_at(&found(3, "recall"));
        search.look_at(&answered(4, vec![call("read_history")]));
        search.look_at(&found(5, "read_history"));
        search.look_at(&answered(6, vec![said, call("recall")]));
        search.look_at(&answered(7, vec![call("shell")]));
        let text = search.finish();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[1], "entry 6: …you: İ look for the XYLOPHONE…");
        assert_eq!(lines[2], "entry 1: …user: a Xylophone is there…");
    }

    #[test]
    fn the_entries_with_most_of_the_words_come_first() {
        let mut search = Search::new("port Database");
        for (seq, text) in [
            (1, "the database listens"),
            (2, "nothing"),
            (3, "the DATABASE port is 5432"),
            (4, "a port"),
        ] {
            search.look_at(&message(seq, text));
        }
        let found = search.finish();
        let order: Vec<&str> = found.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(order, ["entry 3", "entry 4", "entry 1"]);
        assert!(found.contains("port is 5432"));
    }

    #[test]
    fn a_search_over_very_much_holds_little() {
        let mut search = Search::new("needle");
        for seq in 0..10_000 {
            search.look_at(&message(seq, "a needle in here"));
        }
        assert!(search.finds.len() < 8 * MOST_FINDS);
        assert!(search.finish().starts_with("entry 9999:"));
    }

    #[test]
    fn a_long_range_says_where_to_go_on() {
        let mut reading = Reading::default();
        let long = "x".repeat(MOST_SHOWN / 2);
        let taken = (1..9).take_while(|seq| reading.take(&message(*seq, &long))).count();
        assert_eq!(taken, 2);
        assert!(reading.finish().ends_with("go on from entry 3]"));
    }

    #[test]
    fn lines_are_read_by_range() {
        let text: String = (1..=10).map(|n| format!("line {n}\n")).collect();
        assert_eq!(lines(&text, 4, 2), "line 4\nline 5\n[lines 4 to 5 of 10]");
        assert_eq!(lines(&text, 11, 2), "the output has 10 lines");
    }
}
