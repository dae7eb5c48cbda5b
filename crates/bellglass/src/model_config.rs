//! Which models there are, put together from the configuration and the keys in the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use bellglass_agent::model::Secret;
use bellglass_agent::model::catalogue::{
    Catalogue, CatalogueSettings, Effort, FIRST, ModelSettings, Price, ProviderSettings, Recording,
};
use bellglass_agent::model::pictures::Sight;
use bellglass_agent::static_model::StaticModel;
use bellglass_protocol::model::Wire;
use bellglass_protocol::quantity::Seconds;
use serde::Deserialize;

/// What `bellglass.toml` says under `[model]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelSection {
    /// The model of tasks that name none.
    default: Option<String>,
    /// The model that is asked when the task's own does not answer.
    fallback: Option<String>,
    /// A model server of one's own, whose models are called `local/NAME`.
    base_url: Option<String>,
    /// How that server is spoken to.
    wire: Option<Wire>,
    /// How long a model server may be silent.
    idle_time: Option<Seconds>,
    /// How many tokens a conversation may have; no model is given more than it is known to read.
    context_tokens: Option<u64>,
    reasoning: Option<Effort>,
    /// Whether models can be shown pictures, where that is not known.
    images: Option<bool>,
    /// What holds for some models, by how their names begin.
    settings: BTreeMap<String, OneModelSection>,
    /// Where recordings are, for `replay/NAME`; below the data folder by default.
    recordings: Option<PathBuf>,
    /// Whether all that models are asked and answer is recorded.
    record: bool,
    prices: BTreeMap<String, Price>,
}

/// What `bellglass.toml` says under `[model.settings.NAME]`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OneModelSection {
    context_tokens: Option<u64>,
    reasoning: Option<Effort>,
    images: Option<bool>,
}

impl OneModelSection {
    fn settings(self) -> ModelSettings {
        let Self { context_tokens, reasoning, images } = self;
        let sight = images.map(|images| if images { Sight::Sees } else { Sight::Blind });
        ModelSettings { context_tokens, reasoning, sight }
    }
}

/// What `bellglass.toml` says under `[memory]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MemorySection {
    /// The model that says where texts lie by their meaning.
    embeddings: Option<String>,
    /// A folder with a static model that says the same.
    embeddings_folder: Option<PathBuf>,
}

/// What the environment says about models. Nothing here is ever shown.
#[derive(Debug, Default)]
pub(crate) struct ModelEnvironment {
    openai_key: Option<Secret>,
    openai_base_url: Option<String>,
    anthropic_key: Option<Secret>,
    anthropic_base_url: Option<String>,
    local_key: Option<Secret>,
    /// `BELLGLASS_MODEL`
    default: Option<String>,
    /// `BELLGLASS_RECORDINGS`
    recordings: Option<PathBuf>,
    /// `BELLGLASS_RECORD`
    record: Option<bool>,
}

impl ModelEnvironment {
    pub(crate) fn read() -> Self {
        let text =
            |name| std::env::var(name).ok().filter(|value: &String| !value.trim().is_empty());
        let key = |name| text(name).map(|key| Secret::new(key.trim()));
        Self {
            openai_key: key("OPENAI_API_KEY"),
            openai_base_url: text("OPENAI_BASE_URL"),
            anthropic_key: key("ANTHROPIC_API_KEY"),
            anthropic_base_url: text("ANTHROPIC_BASE_URL"),
            local_key: key("BELLGLASS_MODEL_KEY"),
            default: text("BELLGLASS_MODEL"),
            recordings: text("BELLGLASS_RECORDINGS").map(PathBuf::from),
            record: text("BELLGLASS_RECORD").map(|value| value.trim() != "0"),
        }
    }
}

/// What tasks get where only a key says which provider is wanted.
const OPENAI_MODEL: &str = "openai/gpt-5.1";
const ANTHROPIC_MODEL: &str = "anthropic/claude-sonnet-4-5";

/// All models that tasks can have.
pub(crate) fn catalogue(
    section: &ModelSection,
    memory: &MemorySection,
    environment: &ModelEnvironment,
    data: &Path,
) -> anyhow::Result<Catalogue> {
    let mut providers = BTreeMap::new();
    let mut first = Vec::new();
    if let Some(base_url) = &section.base_url {
        let (base_url, key) = (base_url.clone(), environment.local_key.clone());
        let wire = section.wire.unwrap_or(Wire::Chat);
        providers.insert("local".to_owned(), ProviderSettings { base_url, key, wire });
        first.push(format!("local/{FIRST}"));
    }
    if environment.anthropic_key.is_some() || environment.anthropic_base_url.is_some() {
        let base_url = environment.anthropic_base_url.as_deref();
        let base_url = base_url.map_or("https://api.anthropic.com/v1".into(), with_version);
        let (key, wire) = (environment.anthropic_key.clone(), Wire::Messages);
        providers.insert("anthropic".to_owned(), ProviderSettings { base_url, key, wire });
        first.push(ANTHROPIC_MODEL.to_owned());
    }
    if environment.openai_key.is_some() || environment.openai_base_url.is_some() {
        let (base_url, wire) = match &environment.openai_base_url {
            // Servers that stand in for OpenAI's know Chat Completions, and few know more.
            Some(base_url) => (base_url.clone(), Wire::Chat),
            None => ("https://api.openai.com/v1".to_owned(), Wire::Responses),
        };
        let key = environment.openai_key.clone();
        providers.insert("openai".to_owned(), ProviderSettings { base_url, key, wire });
        first.push(match environment.openai_base_url {
            Some(_) => format!("openai/{FIRST}"),
            None => OPENAI_MODEL.to_owned(),
        });
    }
    let named = environment.default.clone().or_else(|| section.default.clone());
    for name in named.iter().chain(&section.fallback).chain(&memory.embeddings) {
        let provider = name.split_once('/').map_or("", |(provider, _)| provider);
        anyhow::ensure!(
            provider == "replay" || providers.contains_key(provider),
            "the model `{name}` cannot be used: write it as openai/NAME with OPENAI_API_KEY set, \
             anthropic/NAME with ANTHROPIC_API_KEY set, or local/NAME with `base_url` under [model]"
        );
    }
    anyhow::ensure!(
        memory.embeddings.is_none() || memory.embeddings_folder.is_none(),
        "`embeddings` and `embeddings_folder` under [memory] exclude each other: say one of them"
    );
    let static_embeddings = memory.embeddings_folder.as_deref().map(|folder| {
        let model = StaticModel::open(folder);
        model.with_context(|| format!("the embedding model in {} cannot be used", folder.display()))
    });
    let recordings = environment.recordings.as_ref().or(section.recordings.as_ref()).cloned();
    let ModelSection { context_tokens, reasoning, images, .. } = *section;
    let settings = CatalogueSettings {
        embeddings: memory.embeddings.clone(),
        static_embeddings: static_embeddings.transpose()?.map(Arc::new),
        recordings: Some(recordings.unwrap_or_else(|| data.join("recordings"))),
        record: match environment.record.unwrap_or(section.record) {
            true => Recording::On,
            false => Recording::Off,
        },
        providers,
        default: named.or_else(|| first.into_iter().next()),
        fallback: section.fallback.clone(),
        idle: section.idle_time.map(Seconds::duration),
        every: OneModelSection { context_tokens, reasoning, images }.settings(),
        own: section.settings.iter().map(|(name, own)| (name.clone(), own.settings())).collect(),
        prices: section.prices.clone(),
    };
    Ok(Catalogue::new(settings)?)
}

/// Anthropic's own programs leave the version out of this variable.
fn with_version(base_url: &str) -> String {
    let base_url = base_url.trim_end_matches('/');
    if base_url.ends_with("/v1") { base_url.to_owned() } else { format!("{base_url}/v1") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_model(
        section: &str,
        environment: ModelEnvironment,
    ) -> Result<Option<String>, String> {
        let section: ModelSection = toml::from_str(section).unwrap();
        let catalogue =
            catalogue(&section, &MemorySection::default(), &environment, Path::new("x"))
                .map_err(|error| error.to_string())?;
        Ok(catalogue.offer().default)
    }

    #[test]
    fn the_model_follows_from_what_is_configured() {
        let key = || Some(Secret::new("k"));
        let openai = || ModelEnvironment { openai_key: key(), ..ModelEnvironment::default() };
        let both = || ModelEnvironment { anthropic_key: key(), ..openai() };
        let named = || ModelEnvironment { default: Some("openai/x".into()), ..openai() };
        let chosen = |section, environment| default_model(section, environment).unwrap();
        assert_eq!(chosen("", ModelEnvironment::default()), None);
        assert_eq!(chosen("", openai()).as_deref(), Some(OPENAI_MODEL));
        assert_eq!(chosen("", both()).as_deref(), Some(ANTHROPIC_MODEL));
        assert_eq!(chosen("", named()).as_deref(), Some("openai/x"));
        let local = "base_url = \"http://127.0.0.1:1/v1\"";
        assert_eq!(chosen(local, both()).as_deref(), Some("local/default"));
        assert_eq!(chosen("default = \"openai/y\"", both()).as_deref(), Some("openai/y"));
    }

    #[test]
    fn a_single_model_has_settings_of_its_own() {
        let section = "context_tokens = 1\n[settings.\"openai/gpt-5.1\"]\nimages = false\n";
        let section: ModelSection = toml::from_str(section).unwrap();
        let own = section.settings["openai/gpt-5.1"].settings();
        assert_eq!((own.context_tokens, own.sight), (None, Some(Sight::Blind)));
        let unknown = toml::from_str::<ModelSection>("[settings.x]\ncontext = 1\n");
        assert!(unknown.unwrap_err().to_string().contains("unknown field `context`"));
    }

    #[test]
    fn a_model_of_a_provider_without_key_is_refused_at_the_start() {
        let error = default_model("default = \"openai/y\"", ModelEnvironment::default());
        assert!(error.unwrap_err().contains("OPENAI_API_KEY"));
        let error = default_model("fallback = \"gpt\"", ModelEnvironment::default());
        assert!(error.is_err());
    }
}
