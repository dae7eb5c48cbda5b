//! What a task has spent, and whether it may go on. Looked at before every call.

use bellglass_protocol::event::JobError;
use bellglass_protocol::job::Budget;
use bellglass_protocol::model::{Usage, UsageTotal};
use bellglass_protocol::quantity::{ByteSize, Seconds};
use jiff::Timestamp;

/// What was spent so far, by the job's record.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    pub(super) models: UsageTotal,
    pub(super) steps: u32,
    pub(super) output: u64,
    /// When the first sandbox was ready.
    pub(super) since: Option<Timestamp>,
    /// When the pause began that lasts.
    paused_since: Option<Timestamp>,
    paused_seconds: f64,
}

impl Spent {
    /// Adds what a model used that gave no answer to the task, as far as it said so.
    pub(super) fn add_aside(&mut self, usage: Option<&Usage>, cost_usd: Option<f64>) {
        if let Some(usage) = usage {
            self.models.add(usage, cost_usd);
        }
    }

    pub(super) fn pause(&mut self, at: Timestamp) {
        self.paused_since.get_or_insert(at);
    }

    pub(super) fn resume(&mut self, at: Timestamp) {
        if let Some(since) = self.paused_since.take() {
            self.paused_seconds += seconds_between(since, at);
        }
    }

    fn seconds(&self, now: Timestamp) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        seconds_between(since, now) - self.paused_seconds
    }

    /// Why no model may be asked, if so. Whoever has no steps left can still say that the task is done.
    pub(super) fn forbids_question(&self, budget: &Budget, now: Timestamp) -> Option<JobError> {
        self.forbids_step(&Budget { steps: None, ..*budget }, now)
    }

    /// Why no tool may be called, if so.
    pub(super) fn forbids_step(&self, budget: &Budget, now: Timestamp) -> Option<JobError> {
        let models = &self.models;
        let used_up = [
            budget
                .steps
                .filter(|most| self.steps >= *most)
                .map(|most| format!("{} of {most} steps", self.steps)),
            budget
                .tokens
                .filter(|most| models.all_tokens() >= *most)
                .map(|most| format!("{} of {most} tokens", models.all_tokens())),
            budget
                .usd
                .filter(|most| models.cost_usd >= *most)
                .map(|most| format!("{:.4} of {most} US dollars", models.cost_usd)),
            budget
                .time
                .filter(|most| self.seconds(now) >= most.get())
                .map(|most: Seconds| format!("{:.0} s of {most}", self.seconds(now))),
            budget
                .output
                .filter(|most| self.output >= most.0)
                .map(|most| format!("{} of {most} of output", ByteSize(self.output))),
        ];
        let used_up: Vec<String> = used_up.into_iter().flatten().collect();
        (!used_up.is_empty()).then(|| JobError {
            code: "budget_exhausted".into(),
            message: format!(
                "the task's budget is used up: {}; what was made so far can be downloaded",
                used_up.join(", ")
            ),
        })
    }
}

fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_bound_ends_the_task_by_itself() {
        let mut spent = Spent { steps: 5, output: 1000, since: Some(at(100)), ..Spent::default() };
        spent.models.add(&Usage { input: 90, output: 10, ..Usage::default() }, Some(0.5));
        let is_over = |budget: Budget| spent.forbids_step(&budget, at(160)).is_some();
        let none = Budget::default;
        assert!(!is_over(none()));
        for (most, over) in [(5, true), (6, false)] {
            assert_eq!(is_over(Budget { steps: Some(most), ..none() }), over);
        }
        for (most, over) in [(100, true), (101, false)] {
            assert_eq!(is_over(Budget { tokens: Some(most), ..none() }), over);
        }
        for (most, over) in [(0.5, true), (0.6, false)] {
            assert_eq!(is_over(Budget { usd: Some(most), ..none() }), over);
        }
        for (most, over) in [(60, true), (61, false)] {
            assert_eq!(is_over(Budget { time: Some(Seconds::whole(most)), ..none() }), over);
        }
        for (most, over) in [(1000, true), (1001, false)] {
            assert_eq!(is_over(Budget { output: Some(ByteSize(most)), ..none() }), over);
        }
    }

    #[test]
    fn without_steps_there_is_still_a_word_to_say() {
        let spent = Spent { steps: 5, since: Some(at(100)), ..Spent::default() };
        let steps = Budget { steps: Some(5), ..Budget::default() };
        assert!(spent.forbids_question(&steps, at(160)).is_none());
        let both = Budget { time: Some(Seconds::whole(60)), ..steps };
        assert!(spent.forbids_question(&both, at(160)).is_some());
    }

    #[test]
    fn a_pause_costs_no_time() {
        let mut spent = Spent { since: Some(at(0)), ..Spent::default() };
        spent.pause(at(10));
        spent.resume(at(500));
        assert_eq!(spent.seconds(at(520)), 30.0);
    }
}
