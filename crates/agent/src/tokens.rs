//! Counts tokens: with a real tokenizer, corrected by what the provider reports.

/// The tokens of a text by a tokenizer of OpenAI's. Other models cut text otherwise; that is what
/// [`Calibration`] is for.
pub fn count(text: &str) -> u64 {
    bpe_openai::o200k_base().count(text) as u64
}

/// What a picture is taken for; models count between a few hundred and a few thousand.
pub(crate) const TOKENS_OF_IMAGE: u64 = 1_500;

/// What a message costs beside its text: its role, its brackets, its ids.
pub(crate) const TOKENS_OF_FRAME: u64 = 8;

/// How many of a model's own tokens one of ours is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration(f64);

impl Default for Calibration {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Calibration {
    /// Learns from a call. What is beyond reason is a mistake of the server's and not ours.
    pub fn learn(&mut self, counted: u64, reported: u64) {
        if counted > 0 && reported > 0 {
            self.0 = (reported as f64 / counted as f64).clamp(0.5, 3.0);
        }
    }

    /// A count of ours in the model's tokens.
    pub fn apply(&self, counted: u64) -> u64 {
        (counted as f64 * self.0).ceil() as u64
    }

    /// A number of the model's tokens as a count of ours, rounded down.
    pub fn invert(&self, tokens: u64) -> u64 {
        (tokens as f64 / self.0).floor() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_usage_corrects_the_count() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.apply(100), 100);
        calibration.learn(1000, 1300);
        assert_eq!((calibration.apply(100), calibration.invert(130)), (130, 100));
        calibration.learn(1000, 0);
        assert_eq!(calibration.apply(100), 130);
        calibration.learn(10, 1_000_000);
        assert_eq!(calibration.apply(100), 300);
    }

    #[test]
    fn ordinary_text_has_a_token_for_about_every_four_letters() {
        let text = "The quick brown fox jumps over the lazy dog. ".repeat(100);
        let tokens = count(&text);
        assert!((900..1200).contains(&tokens), "{tokens}");
    }
}
