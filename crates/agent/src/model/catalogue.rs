//! Which models there are: providers with their addresses and keys, and what is known about each
//! model. Built once from the configuration; opens a model by its name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage, Wire};
use bellglass_protocol::model_offer::{ModelOffer, REPLAY, is_version_of};
use serde::Deserialize;

use super::chat::Chat;
use super::embeddings::{Embedder, Source};
use super::http::{Endpoint, KeyHeader};
use super::messages::Messages;
use super::pictures::Sight;
pub use super::prices::Price;
use super::recorder::{Recorded, Recorder};
use super::replay::Replay;
use super::responses::Responses;
use super::retry::{Attempts, Next};
use super::wire::WireModel;
use super::{Failure, Model, ModelError, Request, Secret, prices};
use crate::static_model::StaticModel;

/// What the operator decided about models.
#[derive(Clone, Debug, Default)]
pub struct CatalogueSettings {
    /// By the word before the `/` of a model's name.
    pub providers: BTreeMap<String, ProviderSettings>,
    /// The model of tasks that name none.
    pub default: Option<String>,
    /// The model that is asked when the task's own does not answer.
    pub fallback: Option<String>,
    /// How long a model server may be silent.
    pub idle: Option<Duration>,
    /// What holds for every model.
    pub every: ModelSettings,
    /// What holds for some, by how a model's whole name begins. The longest beginning counts.
    pub own: BTreeMap<String, ModelSettings>,
    /// The model that says where texts lie by their meaning, such as `openai/text-embedding-3-small`.
    pub embeddings: Option<String>,
    /// A model of this machine's that says the same, instead.
    pub static_embeddings: Option<Arc<StaticModel>>,
    /// Where recordings are, which tasks play again as `replay/NAME`.
    pub recordings: Option<PathBuf>,
    /// Whether what is asked and answered is recorded there, by the task's job.
    pub record: Recording,
    /// By how a model's whole name begins.
    pub prices: BTreeMap<String, Price>,
}

/// What the operator says about a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelSettings {
    /// How many tokens a conversation may have at the most.
    pub context_tokens: Option<u64>,
    pub reasoning: Option<Effort>,
    /// Whether it can be shown pictures.
    pub sight: Option<Sight>,
}

/// Whether exchanges with models are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    #[default]
    Off,
    On,
}

#[derive(Clone, Debug)]
pub struct ProviderSettings {
    pub base_url: String,
    pub key: Option<Secret>,
    pub wire: Wire,
}

/// How hard a model thinks, where that can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The default of tasks that do not say: as much as the largest models read.
const CONTEXT_TOKENS: u64 = 1_000_000;

/// A model that thinks may say nothing for minutes.
const IDLE: Duration = Duration::from_secs(300);

/// All models that can be asked.
#[derive(Debug)]
pub struct Catalogue {
    settings: CatalogueSettings,
    client: reqwest::Client,
    /// For servers on this machine, which are never reached through a proxy.
    local_client: reqwest::Client,
}

/// The models of one task: the first is asked; the others when it does not answer.
pub type Line = Vec<Arc<dyn Model>>;

impl Catalogue {
    pub fn new(settings: CatalogueSettings) -> Result<Self, ModelError> {
        let builder = || {
            let builder = reqwest::Client::builder().connect_timeout(Duration::from_secs(20));
            // A redirection would carry the key elsewhere.
            builder.redirect(reqwest::redirect::Policy::none())
        };
        let failed = |error: reqwest::Error| ModelError::NotReached(error.to_string());
        let client = builder().build().map_err(failed)?;
        let local_client = builder().no_proxy().build().map_err(failed)?;
        Ok(Self { settings, client, local_client })
    }

    fn client_for(&self, base_url: &str) -> reqwest::Client {
        let host = base_url.split("://").nth(1).unwrap_or_default();
        let is_here = ["127.", "localhost", "[::1]"].iter().any(|start| host.starts_with(start));
        if is_here { self.local_client.clone() } else { self.client.clone() }
    }

    /// What tasks are offered here.
    pub fn offer(&self) -> ModelOffer {
        let settings = &self.settings;
        let known = prices::KNOWN.iter().map(|(name, _)| (*name).to_owned());
        ModelOffer {
            default: settings.default.clone(),
            providers: settings.providers.keys().cloned().collect(),
            // A recording knows what it cost.
            priced: settings.prices.keys().cloned().chain([REPLAY.into()]).collect(),
            known_prices: known.collect(),
            fallback: settings.fallback.clone(),
        }
    }

    /// The model of a task and, where there is one, the fallback. `job` is the name of its recording.
    pub async fn line(&self, name: &str, job: &str) -> Result<Line, ModelError> {
        let recordings = self.settings.recordings.as_deref();
        if let Some(recording) = name.strip_prefix(REPLAY) {
            let none = || ModelError::Refused {
                status: 0,
                message: "there is no folder of recordings".into(),
            };
            let path = recordings.ok_or_else(none)?.join(format!("{recording}.jsonl"));
            return Ok(vec![Arc::new(Replay::open(name, &path).await?)]);
        }
        let mut line = Line::new();
        let own = self.open(name).await;
        if let Some(fallback) = self.settings.fallback.as_deref().filter(|other| *other != name) {
            match self.open(fallback).await {
                Ok(model) => line.push(model),
                // A task whose own model answers needs no other.
                Err(error) => tracing::warn!(model = fallback, %error, "there is no fallback now"),
            }
        }
        match own {
            Ok(model) => line.insert(0, model),
            Err(error) if line.is_empty() => return Err(error),
            // Which model a server has is asked before the task begins, and it may be away by then.
            Err(error) => {
                tracing::warn!(model = name, %error, "the task is left to the fallback");
            }
        }
        if let (Recording::On, Some(folder)) = (self.settings.record, recordings) {
            let _ = tokio::fs::create_dir_all(folder).await;
            // The conversation is kept so short that each of them can read it.
            let least = line.iter().map(|model| model.context_tokens()).min().unwrap_or_default();
            let recorder = Recorder::new(folder.join(format!("{job}.jsonl")), least);
            let recorded = |model| -> Arc<dyn Model> {
                Arc::new(Recorded { model, recorder: recorder.clone() })
            };
            line = line.into_iter().map(recorded).collect();
        }
        Ok(line)
    }

    /// What turns texts into vectors, if anything does.
    pub fn embedder(&self) -> Option<Embedder> {
        if let Some(model) = &self.settings.static_embeddings {
            return Some(Embedder(Source::Static(model.clone())));
        }
        let (provider, model) = self.settings.embeddings.as_deref()?.split_once('/')?;
        let endpoint = self.endpoint(self.settings.providers.get(provider)?);
        Some(Embedder(Source::Endpoint { endpoint, model: model.to_owned() }))
    }

    fn endpoint(&self, settings: &ProviderSettings) -> Endpoint {
        let header = match settings.wire {
            Wire::Messages => KeyHeader::Anthropic,
            Wire::Chat | Wire::Responses => KeyHeader::Bearer,
        };
        Endpoint::new(
            self.client_for(&settings.base_url),
            &settings.base_url,
            settings.key.clone(),
            header,
            self.settings.idle.unwrap_or(IDLE),
        )
    }

    /// Opens a model by its whole name. `local/` alone is the first model that the server has.
    async fn open(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        let unknown =
            |why: &str| ModelError::Refused { status: 0, message: format!("{name} {why}") };
        let (provider, model) = name.split_once('/').ok_or_else(|| unknown("names no provider"))?;
        let settings = self.settings.providers.get(provider);
        let settings =
            settings.ok_or_else(|| unknown("is of a provider that is not configured"))?;
        let endpoint = self.endpoint(settings);
        let facts = match model {
            FIRST => {
                let list = models_of(&endpoint).await?;
                let first = list["data"][0]["id"].as_str();
                let first = first
                    .ok_or_else(|| unknown("could not be found: the server lists no models"))?;
                self.facts(provider, first)
            }
            model => self.facts(provider, model),
        };
        Ok(match settings.wire {
            Wire::Chat => Arc::new(WireModel::<Chat>::new(endpoint, facts)),
            Wire::Responses => Arc::new(WireModel::<Responses>::new(endpoint, facts)),
            Wire::Messages => Arc::new(WireModel::<Messages>::new(endpoint, facts)),
        })
    }

    fn facts(&self, provider: &str, model: &str) -> ModelFacts {
        let name = format!("{provider}/{model}");
        let known = prices::KNOWN.iter().copied().filter(|(known, _)| is_version_of(&name, known));
        let known = || known.max_by_key(|(known, _)| known.len()).map(|(_, price)| price);
        let price = longest(&self.settings.prices, &name).or_else(known);
        let every = self.settings.every;
        let own = longest(&self.settings.own, &name).unwrap_or_default();
        let (known_context, output_tokens) = known_sizes(&name);
        // What is said of every model makes none read more than it is known to.
        let usual = every.context_tokens.into_iter().chain(known_context).min();
        let context_tokens = own.context_tokens.or(usual).unwrap_or(CONTEXT_TOKENS);
        let reasoning = own.reasoning.or(every.reasoning);
        let sight = own.sight.unwrap_or(match every.sight {
            Some(Sight::Blind) => Sight::Blind,
            // Nor does it make one see that is known not to.
            every => known_sight(&name).or(every).unwrap_or(Sight::Blind),
        });
        let model = model.to_owned();
        ModelFacts { name, model, context_tokens, output_tokens, reasoning, sight, price }
    }
}

/// What is said under the longest beginning of a name.
fn longest<T: Copy>(said: &BTreeMap<String, T>, name: &str) -> Option<T> {
    let fitting = said.iter().filter(|(start, _)| name.starts_with(start.as_str()));
    fitting.max_by_key(|(start, _)| start.len()).map(|(_, said)| *said)
}

/// What a server has. One that is away is waited for, as it is when it is asked.
async fn models_of(endpoint: &Endpoint) -> Result<serde_json::Value, ModelError> {
    let mut at = Attempts::default();
    loop {
        let error = match endpoint.get("/models").await {
            Ok(list) => return Ok(list),
            Err(error) => error,
        };
        match at.after(&error, 1, 0.5) {
            Next::GiveUp => return Err(error),
            Next::Wait(time, again) => {
                at = again;
                tokio::time::sleep(time).await;
            }
        }
    }
}

/// The name that stands for whatever model a server has.
pub const FIRST: &str = "default";

/// How much a model reads, where it is known, and how much it may be asked to write.
fn known_sizes(name: &str) -> (Option<u64>, u64) {
    const SIZES: [(&str, u64, u64); 7] = [
        ("openai/gpt-5", 272_000, 32_768),
        ("openai/gpt-4.1", 1_000_000, 32_768),
        ("openai/gpt-4o", 128_000, 16_384),
        ("openai/o", 200_000, 32_768),
        ("anthropic/claude-3-5", 200_000, 8_192),
        ("anthropic/claude-3", 200_000, 4_096),
        ("anthropic/claude", 200_000, 32_000),
    ];
    let found = SIZES.iter().find(|(start, ..)| name.starts_with(start));
    found.map_or((None, 32_000), |(_, context, output)| (Some(*context), *output))
}

/// Whether a model can be shown pictures, where it is known. One that cannot refuses the whole
/// conversation, so nothing is guessed.
fn known_sight(name: &str) -> Option<Sight> {
    const KNOWN: [(&str, Sight); 10] = [
        ("openai/o1-mini", Sight::Blind),
        ("openai/o3-mini", Sight::Blind),
        ("openai/o", Sight::Sees),
        ("openai/gpt-4o", Sight::Sees),
        ("openai/gpt-4.1", Sight::Sees),
        ("openai/gpt-4-turbo", Sight::Sees),
        ("openai/gpt-5", Sight::Sees),
        ("anthropic/claude-2", Sight::Blind),
        ("anthropic/claude-instant", Sight::Blind),
        ("anthropic/claude-", Sight::Sees),
    ];
    KNOWN.iter().find(|(start, _)| name.starts_with(start)).map(|(_, sight)| *sight)
}

/// What is known about a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelFacts {
    /// Its whole name.
    pub(crate) name: String,
    /// Its name at its provider's.
    pub(crate) model: String,
    pub(crate) context_tokens: u64,
    /// The most that it is asked to write, where that has to be said.
    pub(crate) output_tokens: u64,
    pub(crate) reasoning: Option<Effort>,
    pub(crate) sight: Sight,
    price: Option<Price>,
}

impl ModelFacts {
    pub(crate) fn is_of_openai(&self) -> bool {
        self.name.starts_with("openai/")
    }

    /// How much a model is asked to write when a text of `most` tokens is wanted. What it thinks counts
    /// as written, and without room for it there would be no text.
    pub(crate) fn room_for(&self, most: u64) -> u64 {
        if self.thinks() { most + THINKING_ROOM } else { most }
    }

    /// How hard it is to think about a request. One for a short text is not worth much thought.
    pub(crate) fn effort(&self, request: &Request) -> Option<Effort> {
        match request.most_output {
            Some(_) if self.thinks() => Some(Effort::Low),
            _ => self.reasoning,
        }
    }

    /// Whether it thinks before it answers, as far as that is known.
    fn thinks(&self) -> bool {
        let name = self.name.strip_prefix("openai/").unwrap_or_default();
        let is_numbered_o = name
            .strip_prefix('o')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        self.reasoning.is_some() || name.starts_with("gpt-5") || is_numbered_o
    }

    #[cfg(test)]
    pub(crate) fn of_test(name: &str) -> Self {
        let catalogue = Catalogue::new(CatalogueSettings::default()).expect("nothing to go wrong");
        let (provider, model) = name.split_once('/').expect("a whole name");
        catalogue.facts(provider, model)
    }

    /// A failure, and what it cost.
    pub(crate) fn failure(&self, error: ModelError, usage: Usage) -> Failure {
        let usage = Some(usage).filter(|usage| *usage != Usage::default());
        let cost_usd = usage.and_then(|usage| Some(self.price?.of(&usage)));
        Failure { error, usage, cost_usd }
    }

    pub(crate) fn answer(
        &self,
        blocks: Vec<AnswerBlock>,
        stop: StopCause,
        usage: Usage,
        started: Instant,
    ) -> ModelAnswer {
        ModelAnswer {
            model: self.name.clone(),
            blocks: with_distinct_ids(blocks),
            stop,
            usage,
            cost_usd: self.price.map(|price| price.of(&usage)),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Tokens for thoughts about a short text.
const THINKING_ROOM: u64 = 8_000;

/// A result is found by its call's id, so no two calls of an answer may share one.
fn with_distinct_ids(mut blocks: Vec<AnswerBlock>) -> Vec<AnswerBlock> {
    let mut seen = std::collections::HashSet::new();
    for (at, block) in blocks.iter_mut().enumerate() {
        if let AnswerBlock::ToolCall { id, .. } = block
            && !seen.insert(id.clone())
        {
            *id = format!("{id}-{at}");
            seen.insert(id.clone());
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(settings: CatalogueSettings) -> Catalogue {
        Catalogue::new(settings).unwrap()
    }

    #[test]
    fn the_operators_price_goes_before_ours_and_the_longest_name_counts() {
        let own = Price { input: 7.0, output: 7.0, cached: None, cache_written: None };
        let prices = BTreeMap::from([("openai/gpt-5-mini".to_owned(), own)]);
        let catalogue = catalogue(CatalogueSettings { prices, ..CatalogueSettings::default() });
        for (model, input) in [
            ("gpt-5-mini", Some(7.0)),
            ("gpt-5-nano", Some(0.05)),
            ("gpt-5-2025-08-07", Some(1.25)),
            // Another model, and a dear one.
            ("gpt-5-pro", None),
            ("x", None),
        ] {
            let price = catalogue.facts("openai", model).price;
            assert_eq!(price.map(|price| price.input), input, "{model}");
        }
    }

    #[test]
    fn what_is_not_known_about_a_model_is_a_million_tokens() {
        let catalogue = catalogue(CatalogueSettings::default());
        assert_eq!(catalogue.facts("local", "x").context_tokens, 1_000_000);
        assert_eq!(catalogue.facts("anthropic", "claude-x").context_tokens, 200_000);
    }

    #[test]
    fn pictures_are_for_models_that_are_known_to_see() {
        let unsaid = catalogue(CatalogueSettings::default());
        for (provider, model, sight) in [
            ("openai", "gpt-5.1", Sight::Sees),
            ("openai", "o3-mini", Sight::Blind),
            ("openai", "default", Sight::Blind),
            ("anthropic", "claude-sonnet-4-5", Sight::Sees),
            ("local", "x", Sight::Blind),
        ] {
            assert_eq!(unsaid.facts(provider, model).sight, sight, "{provider}/{model}");
        }
        for (every, local, mini, large) in [
            (Sight::Sees, Sight::Sees, Sight::Blind, Sight::Sees),
            (Sight::Blind, Sight::Blind, Sight::Blind, Sight::Blind),
        ] {
            let every = ModelSettings { sight: Some(every), ..ModelSettings::default() };
            let said = catalogue(CatalogueSettings { every, ..CatalogueSettings::default() });
            assert_eq!(said.facts("local", "x").sight, local);
            assert_eq!(said.facts("openai", "o3-mini").sight, mini);
            assert_eq!(said.facts("openai", "gpt-5.1").sight, large);
        }
    }

    #[test]
    fn what_is_said_of_one_model_goes_before_what_is_known_and_what_is_said_of_all() {
        let tokens =
            |tokens| ModelSettings { context_tokens: Some(tokens), ..ModelSettings::default() };
        let large = ModelSettings {
            reasoning: Some(Effort::High),
            sight: Some(Sight::Blind),
            ..tokens(1_000_000)
        };
        let own = BTreeMap::from([
            ("openai/gpt-5".to_owned(), tokens(100_000)),
            ("openai/gpt-5.1".to_owned(), large),
        ]);
        let every = ModelSettings { reasoning: Some(Effort::Low), ..tokens(300_000) };
        let catalogue = catalogue(CatalogueSettings { every, own, ..CatalogueSettings::default() });
        for (provider, model, tokens) in [
            ("openai", "gpt-5.1-2025-11-13", 1_000_000),
            ("openai", "gpt-5-mini", 100_000),
            ("anthropic", "claude-sonnet-4-5", 200_000),
            ("openai", "gpt-4.1", 300_000),
            ("local", "x", 300_000),
        ] {
            assert_eq!(catalogue.facts(provider, model).context_tokens, tokens, "{model}");
        }
        let one = catalogue.facts("openai", "gpt-5.1");
        assert_eq!((one.reasoning, one.sight), (Some(Effort::High), Sight::Blind));
        let other = catalogue.facts("openai", "gpt-5-mini");
        assert_eq!((other.reasoning, other.sight), (Some(Effort::Low), Sight::Sees));
    }

    #[test]
    fn a_short_text_has_room_beside_the_thoughts() {
        for (name, room) in [("openai/gpt-5.1", 9_500), ("openai/o3", 9_500), ("local/o3", 1_500)] {
            assert_eq!(ModelFacts::of_test(name).room_for(1_500), room, "{name}");
        }
    }

    #[test]
    fn calls_with_one_id_are_told_apart() {
        let call =
            || AnswerBlock::ToolCall { id: "a".into(), name: "x".into(), arguments: "".into() };
        let ids: Vec<_> = with_distinct_ids(vec![call(), call()])
            .into_iter()
            .map(|block| match block {
                AnswerBlock::ToolCall { id, .. } => id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, ["a", "a-1"]);
    }
}
