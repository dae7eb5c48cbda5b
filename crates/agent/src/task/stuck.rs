//! Notices that a model goes round in circles: pure, over what it did in its last turns.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::numbers::without_numbers;

/// What a turn was, as far as repetition is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Tools were called and answered. `gist` is the result without its numbers.
    Acted { action: u64, result: u64, gist: u64, words: String },
    /// Every call was a mistake.
    Mistaken { tool: String, message: String },
}

impl Turn {
    pub(super) fn acted(actions: &[String], results: &[String], words: &[String]) -> Self {
        let gist = results.iter().map(|result| without_numbers(result));
        Self::Acted {
            action: digest(actions),
            result: digest(results),
            gist: digest(&gist.collect::<Vec<_>>()),
            words: words.join(" and "),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Acted { words, .. } => words.clone(),
            Self::Mistaken { tool, .. } => format!("a wrong call of `{tool}`"),
        }
    }
}

fn digest(pieces: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    pieces.hash(&mut hasher);
    hasher.finish()
}

/// The same action with the same result so often in a row is a circle.
const SAME: usize = 4;
/// The same action so often in a row with results that differ in numbers alone, such as the time that
/// the tests took, is one too. Whoever waits for a number to grow may look at it a few times.
const ALIKE: usize = 10;
/// So many turns that alternate between two.
const ALTERNATING: usize = 6;
/// Turns in a row in which every call was wrong.
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
        if self.turns.len() > ALIKE {
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
        if let Some(turns) = last(ALIKE)
            && let Turn::Acted { action, gist, words, .. } = turns[0]
            && turns.iter().all(|turn| {
                matches!(turn, Turn::Acted { action: other, gist: got, .. }
                    if (other, got) == (action, gist))
            })
        {
            return Some(format!(
                "{words} was done {ALIKE} times in a row, and the results differ in numbers alone"
            ));
        }
        if let Some(turns) = last(MISTAKES)
            && turns.iter().all(|turn| matches!(turn, Turn::Mistaken { .. }))
            && let Turn::Mistaken { tool, message } = turns[MISTAKES - 1]
        {
            return Some(format!(
                "every call was wrong {MISTAKES} times in a row, at last that of `{tool}`: {message}"
            ));
        }
        if let Some(turns) = last(ALTERNATING)
            && turns[0] != turns[1]
            && turns.iter().skip(2).zip(&turns).all(|(later, earlier)| later == earlier)
        {
            let (one, two) = (turns[0].words(), turns[1].words());
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
        let of = |name: &str, number: u64| vec![format!("{name} {}", letters(number))];
        Turn::acted(&of("action", action), &of("result", result), &of("action", action))
    }

    /// A number that is not left out as one.
    fn letters(number: u64) -> String {
        (0..=number).map(|_| 'x').collect()
    }

    /// The same tests again, which took another time.
    fn tested(time: u64) -> Turn {
        let result = format!("7 passed in 0.{time:02}s");
        Turn::acted(&["shell make test".into()], &[result], &["`make test`".into()])
    }

    fn verdict(turns: &[Turn]) -> Verdict {
        let mut watch = Watch::default();
        turns.iter().for_each(|turn| watch.acted(turn.clone()));
        watch.verdict()
    }

    #[test]
    fn circles_are_seen_and_progress_is_not_a_circle() {
        let mistake = |tool: &str| Turn::Mistaken { tool: tool.into(), message: "bad".into() };
        let (a, b, wrong) = (acted(1, 1), acted(2, 2), mistake("x"));
        for (turns, is_circle) in [
            (vec![a.clone(); 3], false),
            (vec![a.clone(); 4], true),
            (vec![acted(1, 1), acted(1, 2), acted(1, 3), acted(1, 4)], false),
            ([&a, &b].repeat(3).into_iter().cloned().collect(), true),
            ([&a, &b].repeat(2).into_iter().cloned().collect(), false),
            (vec![a.clone(), b.clone(), acted(3, 3), a.clone(), b.clone(), a.clone()], false),
            (vec![mistake("x"); 4], true),
            (vec![mistake("x"), mistake("y"), mistake("x"), mistake("z")], true),
            (vec![mistake("x"), mistake("y"), a.clone(), mistake("x"), mistake("z")], false),
            ([&wrong, &a].repeat(3).into_iter().cloned().collect(), true),
            ([&wrong, &a].repeat(2).into_iter().cloned().collect(), false),
            ((0..10).map(tested).collect(), true),
            ((0..9).map(tested).collect(), false),
            ((0..9).map(tested).chain([a.clone()]).chain((9..18).map(tested)).collect(), false),
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
