//! What a model says and what it costs, as a job's record keeps it.
//!
//! The same words for every provider. What only its provider understands is kept as it came.

use serde::{Deserialize, Serialize};

/// One whole answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelAnswer {
    /// Which model gave it, such as `openai/gpt-5.1`.
    pub model: String,
    /// What it is made of, in the order in which it came.
    pub blocks: Vec<AnswerBlock>,
    pub stop: StopCause,
    pub usage: Usage,
    /// What it cost; unknown where the model's price is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    pub duration_ms: u64,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    Text {
        text: String,
    },
    /// What the model thought. Given back to the provider that it came from, unchanged.
    Reasoning {
        wire: Wire,
        /// As far as it can be read.
        text: String,
        /// As the provider wrote it, signatures and encrypted parts included.
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        data: serde_json::Value,
    },
    ToolCall {
        /// The provider's name for the call, under which it expects the result.
        id: String,
        name: String,
        /// As the model wrote them: JSON, unless it made a mistake.
        arguments: String,
    },
}

/// In which language a model server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// OpenAI's Chat Completions, which most other servers speak too.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

/// Why an answer ended where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The model had said what it wanted to say.
    Finished,
    /// It waits for the results of its tool calls.
    ToolCalls,
    /// It may not write more at once.
    OutputLimit,
    /// The provider or the model declined to go on.
    Refused,
}

/// Tokens of one call, as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Usage {
    /// All that the model read, cached or not.
    pub input: u64,
    /// The part of `input` that came from the provider's cache.
    pub cached: u64,
    /// The part of `input` that was written to the provider's cache.
    pub cache_written: u64,
    /// All that the model wrote, its reasoning included.
    pub output: u64,
}

/// What a job's calls of models come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct UsageTotal {
    pub model_calls: u64,
    #[serde(flatten)]
    pub tokens: Usage,
    /// The sum of what is known.
    pub cost_usd: f64,
}

impl UsageTotal {
    pub fn add(&mut self, usage: &Usage, cost_usd: Option<f64>) {
        self.model_calls += 1;
        self.tokens.input += usage.input;
        self.tokens.cached += usage.cached;
        self.tokens.cache_written += usage.cache_written;
        self.tokens.output += usage.output;
        self.cost_usd += cost_usd.unwrap_or_default();
    }

    /// Tokens read and written.
    pub fn all_tokens(&self) -> u64 {
        self.tokens.input + self.tokens.output
    }
}

/// One line of the plan that a model keeps and the user sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PlanStep {
    /// What is to be done, in a few words.
    pub title: String,
    /// How far it has come.
    pub status: PlanStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    Pending,
    InProgress,
    Done,
}

/// What a model says when it stops working on its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    /// The task is done and was checked.
    Done,
    /// The task cannot be done; the summary says why.
    Impossible,
}

/// How the context was made smaller. Numbers are those of events; all that is left out stays there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compaction {
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// Tool results that were cut to their head and tail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trimmed: Vec<u64>,
    /// Tool results whose pictures were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<u64>,
    /// Views of files in whose place newer ones stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

/// Stands for the oldest part of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Summary {
    /// The last event that it stands for.
    pub through: u64,
    pub text: String,
    /// What the model that wrote it used; nothing where it was put together without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}
