//! When to ask a model again, and when to ask another one. Pure: says how long to wait, and waits
//! for nothing.

use std::time::Duration;

use super::ModelError;

/// How often one model is asked the same thing.
const MOST_ATTEMPTS: u32 = 6;

/// The first wait; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);

const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Where a question stands with the models of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Which model of the line is asked.
    pub model: usize,
    /// How often it was asked already.
    pub failures: u32,
    /// How many models before it did not answer the same question.
    pub passed: usize,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask again after this time.
    Wait(Duration, Attempts),
    /// No model answers.
    GiveUp,
}

impl Attempts {
    /// The next question goes to whoever answered the last one.
    pub fn answered(self) -> Self {
        Self { failures: 0, passed: 0, ..self }
    }

    /// Decides after a failure. `chance`, from 0 to 1, spreads those who wait for one server.
    pub fn after(self, error: &ModelError, models: usize, chance: f64) -> Next {
        let failures = self.failures + 1;
        if error.is_temporary() && failures < MOST_ATTEMPTS {
            let again = Self { failures, ..self };
            return Next::Wait(wait(failures, error.retry_after(), chance), again);
        }
        // What is too long is made shorter, not given to somebody else. A fallback that fails later on
        // leads back to the first: by then it may answer again.
        if self.passed + 1 < models && !matches!(error, ModelError::ContextTooLong(_)) {
            let model = (self.model + 1) % models;
            return Next::Wait(
                Duration::ZERO,
                Self { model, failures: 0, passed: self.passed + 1 },
            );
        }
        Next::GiveUp
    }
}

fn wait(failures: u32, asked_for: Option<Duration>, chance: f64) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_WAIT);
    let spread = doubled.mul_f64(0.75 + 0.5 * chance.clamp(0.0, 1.0));
    asked_for.map_or(spread, |asked_for| asked_for.min(LONGEST_WAIT).max(spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(retry_after: Option<u64>) -> ModelError {
        let retry_after = retry_after.map(Duration::from_secs);
        ModelError::Busy { status: 429, message: String::new(), retry_after }
    }

    #[test]
    fn waits_grow_and_then_the_next_model_is_asked() {
        let mut at = Attempts::default();
        let mut waits = Vec::new();
        let next = loop {
            match at.after(&busy(None), 2, 0.5) {
                Next::Wait(time, next) if next.model == 0 => {
                    waits.push(time.as_millis());
                    at = next;
                }
                other => break other,
            }
        };
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000]);
        let second = Attempts { model: 1, failures: 0, passed: 1 };
        assert_eq!(next, Next::Wait(Duration::ZERO, second));
    }

    #[test]
    fn a_server_is_waited_for_as_long_as_it_says_but_not_for_ever() {
        let at = Attempts::default();
        for (asked, waited) in [(7, 7), (100_000, 60)] {
            let next = at.after(&busy(Some(asked)), 1, 0.5);
            let expected = Attempts { model: 0, failures: 1, passed: 0 };
            assert_eq!(next, Next::Wait(Duration::from_secs(waited), expected));
        }
    }

    #[test]
    fn what_cannot_succeed_is_not_tried_again() {
        let refused = ModelError::KeyRefused { status: 401, message: String::new() };
        assert_eq!(Attempts::default().after(&refused, 1, 0.0), Next::GiveUp);
        let second = Next::Wait(Duration::ZERO, Attempts { model: 1, failures: 0, passed: 1 });
        assert_eq!(Attempts::default().after(&refused, 2, 0.0), second);
        let long = ModelError::ContextTooLong(String::new());
        assert_eq!(Attempts::default().after(&long, 2, 0.0), Next::GiveUp);
    }

    #[test]
    fn a_fallback_that_fails_leads_back_to_the_first() {
        let refused = ModelError::KeyRefused { status: 401, message: String::new() };
        let Next::Wait(_, fallback) = Attempts::default().after(&refused, 2, 0.0) else { panic!() };
        assert_eq!(fallback.after(&refused, 2, 0.0), Next::GiveUp);
        let Next::Wait(_, first) = fallback.answered().after(&refused, 2, 0.0) else { panic!() };
        assert_eq!(first.model, 0);
        assert_eq!(first.after(&refused, 2, 0.0), Next::GiveUp);
    }
}
