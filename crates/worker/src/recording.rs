//! How much of what a job does goes into its log.
//!
//! The log is read whole by many, so a job must not be able to make it as long as it likes. Until a
//! job has recorded a good deal, its steps are recorded well; after that, each leaves a few lines.
//! The full output of a step is kept elsewhere, under limits of its own.
//!
//! A model reads the results of its steps from the log and must see as much of the last one as of the
//! first. So for a task what the model is shown stays as it was; how long that gets is bounded by the
//! task's budget.

use bellglass_protocol::job::Work;

/// What a job may record before its records become short.
const RECORDED_WELL: u64 = 16 << 20;

/// How well a step is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    Full,
    /// Well as far as a model is shown it, and shortly otherwise.
    AsShown,
    Short,
}

impl Recording {
    /// By what the job is, and how many bytes of its log are records already.
    pub(crate) fn after(work: &Work, recorded: u64) -> Self {
        match work {
            _ if recorded < RECORDED_WELL => Self::Full,
            Work::Task(_) => Self::AsShown,
            Work::Steps(_) | Work::Session(_) => Self::Short,
        }
    }

    /// Bytes kept from the beginning, and again from the end, of each of a step's two outputs.
    pub(crate) fn stream_kept(self) -> usize {
        match self {
            Self::Full => 32 << 10,
            Self::AsShown | Self::Short => 256,
        }
    }

    /// The same for what a model is shown, which holds both.
    pub(crate) fn shown_kept(self) -> usize {
        match self {
            Self::Full | Self::AsShown => 16 << 10,
            Self::Short => 256,
        }
    }

    /// The longest text that is taken over from a guest's own words.
    pub(crate) fn most_guest_text(self) -> usize {
        match self {
            Self::Full | Self::AsShown => 64 << 10,
            Self::Short => 512,
        }
    }

    /// Output of one step that becomes events; the end of longer output is in the step's record.
    pub(crate) fn most_live(self) -> usize {
        match self {
            Self::Full => 64 << 10,
            Self::AsShown | Self::Short => 256,
        }
    }

    /// Events of output that one step may have. Slow output in small pieces would make more.
    pub(crate) fn most_live_events(self) -> usize {
        match self {
            Self::Full => 500,
            Self::AsShown | Self::Short => 4,
        }
    }

    /// Whether a text goes into the log as it is.
    pub(crate) fn keeps(self, text: &str) -> bool {
        self != Self::Short || !text.chars().any(is_costly)
    }

    /// A text as it goes into the log. A control character takes six bytes there, so where bytes
    /// are short it is replaced.
    pub(crate) fn fit(self, text: String) -> String {
        if self.keeps(&text) {
            return text;
        }
        text.chars().map(|c| if is_costly(c) { '?' } else { c }).collect()
    }
}

fn is_costly(c: char) -> bool {
    c.is_ascii_control() && !matches!(c, '\n' | '\r' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_recorded_well_and_the_rest_shortly() {
        let steps = Work::Steps(Vec::new());
        assert_eq!(Recording::after(&steps, 0), Recording::Full);
        assert_eq!(Recording::after(&steps, RECORDED_WELL - 1), Recording::Full);
        assert_eq!(Recording::after(&steps, RECORDED_WELL), Recording::Short);
    }

    #[test]
    fn a_model_is_shown_as_much_of_its_last_result_as_of_its_first() {
        let task = Work::Task("Build it.".into());
        let late = Recording::after(&task, u64::MAX);
        assert_eq!(late.shown_kept(), Recording::Full.shown_kept());
        assert_eq!(late.most_guest_text(), Recording::Full.most_guest_text());
        assert_eq!(late.stream_kept(), Recording::Short.stream_kept());
        assert_eq!(late.most_live(), Recording::Short.most_live());
    }

    #[test]
    fn short_records_cannot_be_blown_up() {
        let text = "a\0\u{1b}[1m\n\té".to_owned();
        assert_eq!(Recording::Full.fit(text.clone()), text);
        assert_eq!(Recording::Short.fit(text), "a??[1m\n\té");
    }
}
