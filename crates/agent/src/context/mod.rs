//! The conversation as the model sees it: append-only between compactions, its tokens counted as
//! they come, and every tool call together with its result.
//!
//! Pure data. What is left out here stays in the event log under its number.

pub mod compaction;
mod summary;

use std::sync::Arc;

use bellglass_protocol::model::{AnswerBlock, Compaction};
use serde_json::json;

use crate::model::pictures::Picture;
use crate::model::{Message, ToolResult};
use crate::tokens::{TOKENS_OF_FRAME, TOKENS_OF_IMAGE, count};

/// How a note begins that the user's words are in.
pub(crate) const FROM_THE_USER: &str = "[Message from the user]\n";

/// All that a model is shown beside its instructions and tools. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The first is the task, which is never left out.
    units: Vec<Unit>,
    tokens: u64,
    /// The same as messages. Kept, so that a turn adds to it and does not build it anew.
    messages: Arc<Vec<Message>>,
    /// All pictures in it, the oldest first.
    pictures: Arc<Vec<Picture>>,
}

/// What is kept or left out as one: so no call is ever without its result.
#[derive(Clone, Debug)]
enum Unit {
    Note(Note),
    Turn(Turn),
}

/// Words that are not the model's: the task, a message, a reminder, a summary.
#[derive(Clone, Debug)]
struct Note {
    seq: u64,
    text: Arc<str>,
    tokens: u64,
}

/// An answer and the results of its calls.
#[derive(Clone, Debug)]
struct Turn {
    seq: u64,
    blocks: Arc<[AnswerBlock]>,
    answer_tokens: u64,
    results: Vec<Entry>,
}

/// The result of one call.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The event that holds it in full.
    pub seq: u64,
    pub call_id: Arc<str>,
    pub text: Arc<str>,
    pub failed: bool,
    pub pictures: Vec<Picture>,
    /// The file that it shows or changes.
    pub file: Option<FileUse>,
    tokens: u64,
    form: Form,
}

/// How much of a result is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    Trimmed,
    Dropped,
}

/// What a call did with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// The result shows its content.
    View(String),
    /// The content is another one now.
    Change(String),
}

impl FileUse {
    fn path(&self) -> &str {
        match self {
            Self::View(path) | Self::Change(path) => path,
        }
    }
}

impl Entry {
    pub fn new(seq: u64, call_id: &str, text: &str, failed: bool, file: Option<FileUse>) -> Self {
        let tokens = count(text) + TOKENS_OF_FRAME;
        let (call_id, text) = (call_id.into(), text.into());
        Self { seq, call_id, text, failed, pictures: Vec::new(), file, tokens, form: Form::Whole }
    }

    pub fn with_pictures(mut self, pictures: Vec<Picture>) -> Self {
        self.tokens += TOKENS_OF_IMAGE * pictures.len() as u64;
        self.pictures = pictures;
        self
    }

    fn rewrite(&mut self, text: String, form: Form) {
        self.tokens = count(&text) + TOKENS_OF_FRAME + self.picture_tokens();
        self.text = text.into();
        self.form = form;
    }

    fn picture_tokens(&self) -> u64 {
        TOKENS_OF_IMAGE * self.pictures.len() as u64
    }
}

impl Context {
    pub fn add_note(&mut self, seq: u64, text: &str) {
        let tokens = count(text) + TOKENS_OF_FRAME;
        self.tokens += tokens;
        self.push(Unit::Note(Note { seq, text: text.into(), tokens }));
    }

    /// Adds an answer. The results of its calls must follow, one for each, before anything else.
    pub fn add_answer(&mut self, seq: u64, blocks: &[AnswerBlock]) {
        let answer_tokens = blocks.iter().map(tokens_of_block).sum::<u64>() + TOKENS_OF_FRAME;
        self.tokens += answer_tokens;
        let turn = Turn { seq, blocks: blocks.into(), answer_tokens, results: Vec::new() };
        self.push(Unit::Turn(turn));
    }

    pub fn add_result(&mut self, entry: Entry) {
        if let Some(Unit::Turn(turn)) = self.units.last_mut() {
            self.tokens += entry.tokens;
            if !entry.pictures.is_empty() {
                Arc::make_mut(&mut self.pictures).extend_from_slice(&entry.pictures);
            }
            let messages = Arc::make_mut(&mut self.messages);
            match messages.last_mut() {
                Some(Message::ToolResults(results)) => results.push(entry.to_result()),
                _ => messages.push(Message::ToolResults(vec![entry.to_result()])),
            }
            turn.results.push(entry);
        }
    }

    /// The size of it all, by our own count.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// How many units there are: turns, and notes between them.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// The conversation as a request carries it.
    pub fn messages(&self) -> Arc<Vec<Message>> {
        self.messages.clone()
    }

    /// All pictures in it, the oldest first.
    pub fn pictures(&self) -> Arc<Vec<Picture>> {
        self.pictures.clone()
    }

    fn push(&mut self, unit: Unit) {
        unit.write(Arc::make_mut(&mut self.messages));
        self.units.push(unit);
    }

    /// The conversation as a document for people and for later: each entry by its number.
    pub fn to_json(&self) -> serde_json::Value {
        let units = self.units.iter().map(|unit| match unit {
            Unit::Note(note) => json!({ "entry": note.seq, "role": "user", "text": &*note.text }),
            Unit::Turn(turn) => {
                let results = turn.results.iter().map(|entry| {
                    let mut result = json!({
                        "entry": entry.seq,
                        "call_id": &*entry.call_id,
                        "text": &*entry.text,
                        "failed": entry.failed,
                        "shown": match entry.form {
                            Form::Whole => "whole",
                            Form::Trimmed => "head_and_tail",
                            Form::Dropped => "left_out",
                        },
                    });
                    if !entry.pictures.is_empty() {
                        let names = entry.pictures.iter().map(|picture| &*picture.artifact);
                        result["pictures"] = names.collect();
                    }
                    result
                });
                json!({
                    "entry": turn.seq,
                    "role": "assistant",
                    "blocks": &*turn.blocks,
                    "results": results.collect::<Vec<_>>(),
                })
            }
        });
        json!({ "tokens": self.tokens, "messages": units.collect::<Vec<_>>() })
    }

    /// Does what a recorded compaction says.
    pub fn apply(&mut self, compaction: &Compaction) {
        for entry in self.entries_mut() {
            if compaction.pictures.binary_search(&entry.seq).is_ok() {
                compaction::leave_out_pictures(entry);
            }
            if compaction.dropped.binary_search(&entry.seq).is_ok() {
                compaction::drop_entry(entry);
            } else if compaction.trimmed.binary_search(&entry.seq).is_ok() {
                compaction::trim_entry(entry);
            }
        }
        if let Some(summary) = &compaction.summary {
            let end = self.units.iter().position(|unit| unit.last_seq() > summary.through);
            let end = end.unwrap_or(self.units.len()).max(1);
            let text = summary::as_note(summary);
            let tokens = count(&text) + TOKENS_OF_FRAME;
            let note = Unit::Note(Note { seq: summary.through, text: text.into(), tokens });
            self.units.splice(1.min(end)..end, [note]);
        }
        self.tokens = self.units.iter().map(Unit::tokens).sum();
        let mut messages = Vec::with_capacity(2 * self.units.len());
        self.units.iter().for_each(|unit| unit.write(&mut messages));
        self.messages = Arc::new(messages);
        self.pictures =
            Arc::new(self.entries().flat_map(|entry| &entry.pictures).cloned().collect());
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.units.iter().flat_map(|unit| match unit {
            Unit::Note(_) => [].iter(),
            Unit::Turn(turn) => turn.results.iter(),
        })
    }

    fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.units.iter_mut().flat_map(|unit| match unit {
            Unit::Note(_) => [].iter_mut(),
            Unit::Turn(turn) => turn.results.iter_mut(),
        })
    }
}

impl Entry {
    fn to_result(&self) -> ToolResult {
        ToolResult {
            call_id: self.call_id.clone(),
            text: self.text.clone(),
            failed: self.failed,
            pictures: self.pictures.clone(),
        }
    }
}

impl Unit {
    fn tokens(&self) -> u64 {
        match self {
            Self::Note(note) => note.tokens,
            Self::Turn(turn) => {
                turn.answer_tokens + turn.results.iter().map(|entry| entry.tokens).sum::<u64>()
            }
        }
    }

    fn write(&self, messages: &mut Vec<Message>) {
        match self {
            Self::Note(note) => messages.push(Message::User(note.text.clone())),
            Self::Turn(turn) => {
                messages.push(Message::Assistant(turn.blocks.clone()));
                if !turn.results.is_empty() {
                    let results = turn.results.iter().map(Entry::to_result).collect();
                    messages.push(Message::ToolResults(results));
                }
            }
        }
    }

    /// The newest event in it.
    fn last_seq(&self) -> u64 {
        match self {
            Self::Note(note) => note.seq,
            Self::Turn(turn) => turn.results.iter().map(|entry| entry.seq).fold(turn.seq, u64::max),
        }
    }
}

fn tokens_of_block(block: &AnswerBlock) -> u64 {
    match block {
        AnswerBlock::Text { text } => count(text),
        AnswerBlock::Reasoning { data, .. } => count(&data.to_string()),
        AnswerBlock::ToolCall { name, arguments, .. } => {
            count(name) + count(arguments) + TOKENS_OF_FRAME
        }
    }
}
