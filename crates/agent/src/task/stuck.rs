//! Notices that a model goes round in circles: pure, over what it did in its last turns.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// What a turn was, as far as repetition is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Tools were called and answered.
    Acted { action: u64, result: u64, words: String },
    /// Every call was a mistake.
    Mistaken { tool: String, message: String },
}

/// Hashes what a turn did or got.
pub(super) fn digest(pieces: impl IntoIterator<Item = String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    pieces.into_iter().for_each(|piece| piece.hash(&mut hasher));
    hasher.finish()
}

/// The same action with the same result so often in a row is a circle.
const SAME: usize = 4;
/// So many turns that alternate between two.
const ALTERNATING: usize = 6;
/// Wrong calls in a row.
const MISTAKES: usize = 4;
/// Answers in a row that call no tool.
const TALK: u32 = 2;
/// A circle so many turns after a warning is a new one.
const FORGIVEN: u32 = 12;

#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    turns: VecDeque<Turn>,
    /// Answers without a call, in a row.
    talk: u32,
    /// Turns since the model was warned.
    warned: Option<u32>,
}

/// What to do about a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// Tell the model once.
    Warn(String),
    /// It was told.
    Stuck(String),
}

impl Watch {
    pub(super) fn acted(&mut self, turn: Turn) {
        self.talk = 0;
        self.turns.push_back(turn);
        if self.turns.len() > ALTERNATING {
            self.turns.pop_front();
        }
        self.warned = self.warned.map(|turns| turns + 1).filter(|turns| *turns < FORGIVEN);
    }

    pub(super) fn talked(&mut self) {
        self.talk += 1;
    }

    /// The model was told. What it did before no longer counts.
    pub(super) fn warned(&mut self) {
        if self.talk == 0 {
            self.warned = Some(0);
            self.turns.clear();
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        if self.talk >= TALK {
            return Verdict::Stuck(format!(
                "it answered {TALK} times in a row without calling a tool"
            ));
        }
        match (self.circle(), self.warned) {
            (None, _) => Verdict::GoOn,
            (Some(facts), None) => Verdict::Warn(facts),
            (Some(facts), Some(_)) => Verdict::Stuck(facts),
        }
    }

    fn circle(&self) -> Option<String> {
        let last = |count: usize| -> Option<Vec<&Turn>> {
            let start = self.turns.len().checked_sub(count)?;
            Some(self.turns.iter().skip(start).collect())
        };
        if let Some(turns) = last(SAME)
            && let Turn::Acted { words, .. } = turns[0]
            && turns.iter().all(|turn| *turn == turns[0])
        {
            return Some(format!("{words} was done {SAME} times in a row with the same result"));
        }
        if let Some(turns) = last(MISTAKES)
            && let Turn::Mistaken { tool, message } = turns[MISTAKES - 1]
            && turns
                .iter()
                .all(|turn| matches!(turn, Turn::Mistaken { tool: other, .. } if other == tool))
        {
            return Some(format!(
                "`{tool}` was called wrongly {MISTAKES} times in a row: {message}"
            ));
        }
        if let Some(turns) = last(ALTERNATING)
            && turns[0] != turns[1]
            && turns.iter().skip(2).zip(&turns).all(|(later, earlier)| later == earlier)
            && let (Turn::Acted { words: one, .. }, Turn::Acted { words: two, .. }) =
                (turns[0], turns[1])
        {
            return Some(format!(
                "{one} and {two} alternate, each with the same result every time"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acted(action: u64, result: u64) -> Turn {
        Turn::Acted { action, result, words: format!("action {action}") }
    }

    fn verdict(turns: &[Turn]) -> Verdict {
        let mut watch = Watch::default();
        turns.iter().for_each(|turn| watch.acted(turn.clone()));
        watch.verdict()
    }

    #[test]
    fn circles_are_seen_and_progress_is_not_a_circle() {
        let mistake = |tool: &str| Turn::Mistaken { tool: tool.into(), message: "bad".into() };
        let (a, b) = (acted(1, 1), acted(2, 2));
        for (turns, is_circle) in [
            (vec![a.clone(); 3], false),
            (vec![a.clone(); 4], true),
            (vec![acted(1, 1), acted(1, 2), acted(1, 3), acted(1, 4)], false),
            ([&a, &b].repeat(3).into_iter().cloned().collect(), true),
            ([&a, &b].repeat(2).into_iter().cloned().collect(), false),
            (vec![a.clone(), b.clone(), acted(3, 3), a.clone(), b.clone(), a.clone()], false),
            (vec![mistake("x"); 4], true),
            (vec![mistake("x"), mistake("y"), mistake("x"), mistake("x")], false),
        ] {
            assert_eq!(matches!(verdict(&turns), Verdict::Warn(_)), is_circle, "{turns:?}");
        }
    }

    #[test]
    fn one_warning_then_the_end() {
        let mut watch = Watch::default();
        let repeat = |watch: &mut Watch| (0..SAME).for_each(|_| watch.acted(acted(1, 1)));
        repeat(&mut watch);
        assert!(matches!(watch.verdict(), Verdict::Warn(_)));
        watch.warned();
        assert_eq!(watch.verdict(), Verdict::GoOn);
        repeat(&mut watch);
        assert!(matches!(watch.verdict(), Verdict::Stuck(_)));
    }

    #[test]
    fn a_warning_is_forgotten_after_enough_progress() {
        let mut watch = Watch::default();
        (0..SAME).for_each(|_| watch.acted(acted(1, 1)));
        watch.warned();
        (0..u64::from(FORGIVEN)).for_each(|n| watch.acted(acted(n, n)));
        (0..SAME).for_each(|_| watch.acted(acted(1, 1)));
        assert!(matches!(watch.verdict(), Verdict::Warn(_)));
    }

    #[test]
    fn talk_without_action_ends_after_one_reminder() {
        let mut watch = Watch::default();
        watch.talked();
        assert_eq!(watch.verdict(), Verdict::GoOn);
        watch.warned();
        watch.talked();
        assert!(matches!(watch.verdict(), Verdict::Stuck(_)));
    }
}
