//! Makes a context smaller, in stages: leaves out old pictures, trims large old results, drops views
//! that newer ones stand for, and has the oldest part summarised. Each time by a tenth at least, or
//! not at all.

use bellglass_protocol::model::{Compaction, Summary};

use super::{Context, Entry, FileUse, Form, Unit, summary};
use crate::tokens::count;

/// What is kept of a trimmed result, at its head and again at its tail.
const KEPT_CHARACTERS: usize = 800;

/// Turns at the end that stay as they are as long as there is another way.
const PROTECTED_TURNS: usize = 6;

/// The same for pictures and views of files, of which only the newest say how things are.
const PROTECTED_VIEWS: usize = 2;

/// How small a context is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// It must not be larger than this.
    pub most: u64,
    /// It should be as small as this, so that the next compaction is far away.
    pub target: u64,
    /// What a summary may take.
    pub summary: u64,
    /// How many pictures may stay.
    pub pictures: usize,
}

/// The context cannot be made small enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the conversation has {before} tokens, which is too much for the model, and cannot be made \
     smaller than {after}"
)]
pub struct CannotShrink {
    pub before: u64,
    pub after: u64,
}

/// A compaction that is decided but for the words of its summary.
#[derive(Clone, Debug)]
pub struct Draft {
    context: Context,
    room: Room,
    compaction: Compaction,
    /// What is to be summarised, as text for whoever does it.
    pub to_summarise: Option<String>,
    /// A summary that needs no model, in case there is no better one.
    plain_summary: String,
}

impl Draft {
    /// Decides what to leave out.
    pub fn new(context: &Context, room: Room) -> Self {
        let mut draft = Self {
            context: context.clone(),
            room,
            compaction: Compaction { tokens_before: context.tokens, ..Compaction::default() },
            to_summarise: None,
            plain_summary: String::new(),
        };
        draft.leave_out_pictures();
        draft.trim(PROTECTED_TURNS);
        draft.drop_superseded();
        let mut protected = PROTECTED_TURNS;
        let end = loop {
            match draft.span_to_summarise(protected) {
                Some(end) => break Some(end),
                None if draft.is_small_enough() || protected <= 1 => {
                    break draft.longest_span(protected);
                }
                None => protected -= 1,
            }
        };
        if !draft.is_small_enough()
            && let Some(end) = end
        {
            let units = &draft.context.units;
            let through = units[1..end].iter().map(Unit::last_seq).max().unwrap_or_default();
            // A message that came while a tool ran stands behind its result with a lower number.
            let more = units[end..].iter().take_while(|unit| unit.last_seq() <= through).count();
            let span = &units[1..end + more];
            draft.to_summarise = Some(summary::render(span, room.most / 2));
            draft.plain_summary = summary::without_a_model(span, room.summary);
            let empty = Summary { through, text: String::new(), usage: None, cost_usd: None };
            draft.compaction.summary = Some(empty);
        }
        // Even the newest results may be too long: a part of them is better than an end.
        draft.trim(0);
        draft.compaction.trimmed.sort_unstable();
        draft.compaction.trimmed.dedup();
        draft.compaction.dropped.sort_unstable();
        draft.compaction.pictures.sort_unstable();
        draft
    }

    /// Completes the draft with a model's summary, or without one.
    pub fn complete(mut self, by_model: Option<Summary>) -> Result<Compaction, CannotShrink> {
        let must = self.must();
        if let Some(summary) = &mut self.compaction.summary {
            let through = summary.through;
            *summary = match by_model {
                Some(given) if !given.text.trim().is_empty() => {
                    let text = summary::bounded(&given.text, self.room.summary);
                    Summary { text, through, ..given }
                }
                // What it cost counts also where it was of no use.
                given => Summary {
                    through,
                    text: self.plain_summary,
                    usage: given.as_ref().and_then(|given| given.usage),
                    cost_usd: given.and_then(|given| given.cost_usd),
                },
            };
        }
        let mut after = self.context;
        after.apply(&self.compaction);
        self.compaction.tokens_after = after.tokens;
        if after.tokens <= must {
            Ok(self.compaction)
        } else {
            let before = self.compaction.tokens_before;
            Err(CannotShrink { before, after: after.tokens })
        }
    }

    fn is_small_enough(&self) -> bool {
        self.context.tokens <= self.room.target
    }

    /// The size with what is decided so far, the summary at its largest.
    fn estimate(&self) -> u64 {
        let Some(summary) = &self.compaction.summary else { return self.context.tokens };
        let units = self.context.units.iter().enumerate();
        let kept = units.filter(|(at, unit)| *at == 0 || unit.last_seq() > summary.through);
        kept.map(|(_, unit)| unit.tokens()).sum::<u64>() + self.largest_summary()
    }

    /// What a summary takes at the most, with the words around it.
    fn largest_summary(&self) -> u64 {
        self.room.summary + summary::tokens_around()
    }

    /// How small it has to become at least, so that there is a compaction at all.
    fn must(&self) -> u64 {
        self.room.most.min(self.compaction.tokens_before * 9 / 10)
    }

    /// Leaves out pictures, the oldest first, as long as there are too many or too little room. Those
    /// of the last turns stay, unless they alone are too many.
    fn leave_out_pictures(&mut self) {
        let old = self.first_of_last(PROTECTED_VIEWS);
        let mut left = self.context.pictures.len();
        for (at, unit) in self.context.units.iter_mut().enumerate() {
            let Unit::Turn(turn) = unit else { continue };
            for entry in &mut turn.results {
                let crowded = at < old && self.context.tokens > self.room.target;
                if entry.pictures.is_empty() || (left <= self.room.pictures && !crowded) {
                    continue;
                }
                left -= entry.pictures.len();
                let before = entry.tokens;
                leave_out_pictures(entry);
                self.context.tokens = self.context.tokens + entry.tokens - before;
                self.compaction.pictures.push(entry.seq);
            }
        }
    }

    /// Cuts large results to head and tail, the oldest first, but those of the last turns.
    fn trim(&mut self, protected: usize) {
        let enough = if protected == 0 { self.must() } else { self.room.target };
        let mut tokens = self.estimate();
        let unprotected = self.first_of_last(protected);
        // What the summary stands for is gone already.
        let through = self.compaction.summary.as_ref().map_or(0, |summary| summary.through);
        for unit in &mut self.context.units[..unprotected] {
            if unit.last_seq() <= through {
                continue;
            }
            let Unit::Turn(turn) = unit else { continue };
            for entry in &mut turn.results {
                if tokens <= enough {
                    break;
                }
                if entry.form != Form::Whole {
                    continue;
                }
                let before = entry.tokens;
                let Some(text) = trimmed(entry) else { continue };
                if count(&text) * 5 > (before - entry.picture_tokens()) * 4 {
                    continue;
                }
                trim_entry(entry);
                tokens = tokens.saturating_sub(before - entry.tokens);
                self.compaction.trimmed.push(entry.seq);
            }
        }
        self.recount();
    }

    /// Drops views of files that were seen or changed again later.
    fn drop_superseded(&mut self) {
        if self.is_small_enough() {
            return;
        }
        let protected = self.first_of_last(PROTECTED_VIEWS);
        let mut newer = std::collections::HashSet::new();
        for (at, unit) in self.context.units.iter_mut().enumerate().rev() {
            let Unit::Turn(turn) = unit else { continue };
            for entry in turn.results.iter_mut().rev() {
                let superseded = match &entry.file {
                    Some(FileUse::View(path)) => newer.contains(path),
                    Some(FileUse::Change(_)) | None => false,
                };
                let is_old = at < protected && entry.form != Form::Dropped;
                if is_old && superseded {
                    drop_entry(entry);
                    self.compaction.dropped.push(entry.seq);
                }
                if let Some(file) = &entry.file {
                    newer.insert(file.path().to_owned());
                }
            }
        }
        let dropped = &self.compaction.dropped;
        self.compaction.trimmed.retain(|seq| !dropped.contains(seq));
        self.recount();
    }

    /// Where the shortest span after the task ends whose summary makes the context small enough.
    fn span_to_summarise(&self, protected: usize) -> Option<usize> {
        let mut left = self.context.tokens + self.largest_summary();
        let units = &self.context.units[..self.first_of_last(protected)];
        units.iter().enumerate().skip(1).find_map(|(at, unit)| {
            left -= unit.tokens();
            (left <= self.room.target).then_some(at + 1)
        })
    }

    fn longest_span(&self, protected: usize) -> Option<usize> {
        let end = self.first_of_last(protected);
        (end > 1).then_some(end)
    }

    /// The index of the first of the last so many turns.
    fn first_of_last(&self, turns: usize) -> usize {
        let units = self.context.units.iter().enumerate().rev();
        let mut last = units.filter(|(_, unit)| matches!(unit, Unit::Turn(_)));
        match turns.checked_sub(1) {
            None => self.context.units.len(),
            Some(skipped) => last.nth(skipped).map_or(0, |(at, _)| at),
        }
    }

    fn recount(&mut self) {
        self.context.tokens = self.context.units.iter().map(Unit::tokens).sum();
    }
}

/// Head and tail of a result, with a word where the rest is. `None` if it is short.
fn trimmed(entry: &Entry) -> Option<String> {
    let text = &*entry.text;
    if text.len() <= 3 * KEPT_CHARACTERS {
        return None;
    }
    let head = &text[..text.floor_char_boundary(KEPT_CHARACTERS)];
    let tail = &text[text.ceil_char_boundary(text.len() - KEPT_CHARACTERS)..];
    let left_out = text.len() - head.len() - tail.len();
    Some(format!(
        "{head}\n[… {left_out} bytes left out to save room; entry {} of the history has them: \
         read_history …]\n{tail}",
        entry.seq
    ))
}

pub(super) fn trim_entry(entry: &mut Entry) {
    if let Some(text) = trimmed(entry) {
        entry.rewrite(text, Form::Trimmed);
    }
}

pub(super) fn drop_entry(entry: &mut Entry) {
    let what = match &entry.file {
        Some(file) => format!("an earlier view of {}; there is a newer one below", file.path()),
        None => "an earlier result".to_owned(),
    };
    let text =
        format!("[left out: {what}. Entry {} of the history has it: read_history]", entry.seq);
    entry.pictures.clear();
    entry.rewrite(text, Form::Dropped);
}

pub(super) fn leave_out_pictures(entry: &mut Entry) {
    if entry.pictures.is_empty() {
        return;
    }
    entry.pictures.clear();
    let text = format!(
        "{}\n[its pictures are left out to save room; read_history of entry {} shows them again]",
        entry.text, entry.seq
    );
    entry.rewrite(text, entry.form);
}
