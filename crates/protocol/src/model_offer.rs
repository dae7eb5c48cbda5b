//! Which models an installation has for tasks, and which of them a task gets.

use crate::request::{RequestError, invalid};

/// The models that could work on a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOffer {
    /// The model of tasks that name none.
    pub default: Option<String>,
    /// What may stand before the `/` of a model's name: each is a provider that is configured.
    pub providers: Vec<String>,
    /// Models whose price the operator says, by how their names begin.
    pub priced: Vec<String>,
    /// Models whose price is known without that, by their names.
    pub known_prices: Vec<String>,
    /// The model that is asked when the task's own does not answer.
    pub fallback: Option<String>,
}

/// Whether a model is another of the same name, with a date or a number behind it. `gpt-5-2025-08-07` is
/// one of `gpt-5`, and `gpt-5-pro` is not.
pub fn is_version_of(model: &str, name: &str) -> bool {
    let is_version = |c: char| c.is_ascii_digit() || c == '-';
    match model.strip_prefix(name) {
        Some("" | "-latest") => true,
        Some(rest) => rest.starts_with('-') && rest.chars().all(is_version),
        None => false,
    }
}

/// Before the name of a recording that is played again in place of a model.
pub const REPLAY: &str = "replay/";

/// Whether a text can be the name of a recording: it becomes part of a path.
fn is_recording_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=100).contains(&name.len()) && !name.starts_with('.') && name.chars().all(fits)
}

impl ModelOffer {
    /// The whole name of the model that a task gets.
    pub(crate) fn choose(&self, wanted: Option<String>) -> Result<String, RequestError> {
        let Some(wanted) = wanted else {
            return self.default.clone().ok_or(RequestError::NoModel);
        };
        if let Some(recording) = wanted.strip_prefix(REPLAY) {
            return match is_recording_name(recording) {
                true => Ok(wanted),
                false => Err(invalid(
                    "model",
                    "must be replay/NAME, with a name of letters, digits, `-`, `_` and `.`",
                )),
            };
        }
        let known = |provider: &str| self.providers.iter().any(|known| known == provider);
        let problem = match wanted.split_once('/') {
            Some((provider, name)) if known(provider) && !name.trim().is_empty() => {
                return Ok(wanted);
            }
            Some(("openai", _)) => "needs OPENAI_API_KEY in the server's environment".to_owned(),
            Some(("anthropic", _)) => {
                "needs ANTHROPIC_API_KEY in the server's environment".to_owned()
            }
            Some(("local", _)) => "needs `base_url` under [model] in bellglass.toml".to_owned(),
            _ if self.providers.is_empty() => return Err(RequestError::NoModel),
            _ => format!(
                "must be one of {}",
                self.providers
                    .iter()
                    .map(|name| format!("{name}/NAME"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        };
        Err(invalid("model", &problem))
    }

    pub(crate) fn has_price(&self, model: &str) -> bool {
        self.priced.iter().any(|priced| model.starts_with(priced.as_str()))
            || self.known_prices.iter().any(|known| is_version_of(model, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_gets_the_model_it_names_or_the_default_or_a_reason() {
        let strings = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let offer = ModelOffer {
            default: Some("local/small".into()),
            providers: strings(&["local", "openai"]),
            priced: strings(&["openai/gpt"]),
            ..ModelOffer::default()
        };
        for (wanted, chosen) in [
            (None, Ok("local/small")),
            (Some("openai/gpt-x"), Ok("openai/gpt-x")),
            (Some("local/a/b"), Ok("local/a/b")),
            (Some("openai/ "), Err("OPENAI_API_KEY")),
            (Some("anthropic/claude"), Err("ANTHROPIC_API_KEY")),
            (Some("replay/todo-app"), Ok("replay/todo-app")),
            (Some("replay/../x"), Err("replay/NAME")),
            (Some("replay/.x"), Err("replay/NAME")),
            (Some("gpt-x"), Err("one of local/NAME, openai/NAME")),
        ] {
            match (offer.choose(wanted.map(Into::into)), chosen) {
                (Ok(model), Ok(expected)) => assert_eq!(model, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (other, _) => panic!("{wanted:?} gives {other:?}"),
            }
        }
        assert_eq!(ModelOffer::default().choose(None), Err(RequestError::NoModel));
        assert_eq!(ModelOffer::default().choose(Some("x".into())), Err(RequestError::NoModel));
    }

    #[test]
    fn prices_go_by_how_a_name_begins() {
        let offer = ModelOffer { priced: vec!["openai/gpt".into()], ..ModelOffer::default() };
        assert!(offer.has_price("openai/gpt-5") && !offer.has_price("local/x"));
        let known_prices = vec!["openai/gpt-5".into()];
        let offer = ModelOffer { known_prices, ..ModelOffer::default() };
        for (model, priced) in [
            ("openai/gpt-5", true),
            ("openai/gpt-5-latest", true),
            ("openai/gpt-5-2025-08-07", true),
            ("openai/gpt-5-pro", false),
            ("openai/gpt-50", false),
        ] {
            assert_eq!(offer.has_price(model), priced, "{model}");
        }
    }
}
