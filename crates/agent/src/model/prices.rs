//! What tokens cost, as far as it is known here. An operator's own list goes before this one.

use bellglass_protocol::model::Usage;
use serde::Deserialize;

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Input that comes from the provider's cache; as `input` if it is not said.
    pub cached: Option<f64>,
    /// Input that is written to the provider's cache; as `input` if it is not said.
    pub cache_written: Option<f64>,
}

impl Price {
    pub(crate) fn of(&self, usage: &Usage) -> f64 {
        let fresh = usage.input.saturating_sub(usage.cached + usage.cache_written);
        let cached = self.cached.unwrap_or(self.input);
        let written = self.cache_written.unwrap_or(self.input);
        let millionths = fresh as f64 * self.input
            + usage.cached as f64 * cached
            + usage.cache_written as f64 * written
            + usage.output as f64 * self.output;
        millionths / 1e6
    }
}

const fn price(input: f64, cached: f64, cache_written: f64, output: f64) -> Price {
    Price { input, output, cached: Some(cached), cache_written: Some(cache_written) }
}

/// Known prices by a model's whole name. Dates and numbers after it are versions of the same; the longest
/// name that fits counts.
pub(crate) const KNOWN: [(&str, Price); 12] = [
    ("openai/gpt-5.1", price(1.25, 0.125, 1.25, 10.0)),
    ("openai/gpt-5", price(1.25, 0.125, 1.25, 10.0)),
    ("openai/gpt-5-mini", price(0.25, 0.025, 0.25, 2.0)),
    ("openai/gpt-5-nano", price(0.05, 0.005, 0.05, 0.4)),
    ("openai/gpt-4.1", price(2.0, 0.5, 2.0, 8.0)),
    ("openai/gpt-4.1-mini", price(0.4, 0.1, 0.4, 1.6)),
    ("openai/gpt-4o", price(2.5, 1.25, 2.5, 10.0)),
    ("openai/gpt-4o-mini", price(0.15, 0.075, 0.15, 0.6)),
    ("anthropic/claude-opus-4-5", price(5.0, 0.5, 6.25, 25.0)),
    ("anthropic/claude-opus-4", price(15.0, 1.5, 18.75, 75.0)),
    ("anthropic/claude-sonnet-4", price(3.0, 0.3, 3.75, 15.0)),
    ("anthropic/claude-haiku-4", price(1.0, 0.1, 1.25, 5.0)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_input_is_cheaper() {
        let usage =
            Usage { input: 1_000_000, cached: 800_000, cache_written: 100_000, output: 10_000 };
        let cost = price(3.0, 0.3, 3.75, 15.0).of(&usage);
        assert!((cost - (0.3 + 0.24 + 0.375 + 0.15)).abs() < 1e-9, "{cost}");
    }
}
