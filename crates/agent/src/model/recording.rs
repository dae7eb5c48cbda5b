//! Recordings of what models were asked and what they answered: one JSON document on each line, first
//! what the models are like, then every exchange.
//!
//! A conversation mostly grows at its end, so an exchange holds only what is new in it.

use bellglass_protocol::model::{AnswerBlock, ModelAnswer};
use serde::{Deserialize, Serialize};

use super::{Failure, Message, Request};
use crate::numbers::without_chance;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Of this format.
    pub(super) version: u32,
    /// What the models could read at the most.
    pub(super) context_tokens: u64,
}

pub(super) const VERSION: u32 = 1;

/// Any further line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Exchange {
    /// How many messages of the exchange before are the beginning of this one.
    pub(super) kept: usize,
    /// The messages after those.
    pub(super) messages: Vec<RecordedMessage>,
    #[serde(flatten)]
    pub(super) reply: RecordedReply,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordedReply {
    Answer(Box<ModelAnswer>),
    /// There was no answer; the error's code and its words.
    Failure {
        code: String,
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordedMessage {
    User(String),
    Assistant(Vec<AnswerBlock>),
    ToolResults(Vec<RecordedResult>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RecordedResult {
    pub(super) call_id: String,
    pub(super) text: String,
    pub(super) failed: bool,
    /// Pictures are counted and not kept.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(super) images: usize,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

impl RecordedMessage {
    pub(super) fn all_of(request: &Request) -> Vec<Self> {
        request.messages.iter().map(Self::of).collect()
    }

    fn of(message: &Message) -> Self {
        match message {
            Message::User(text) => Self::User(text.to_string()),
            Message::Assistant(blocks) => Self::Assistant(blocks.to_vec()),
            Message::ToolResults(results) => Self::ToolResults(
                results
                    .iter()
                    .map(|result| RecordedResult {
                        call_id: result.call_id.to_string(),
                        text: result.text.to_string(),
                        failed: result.failed,
                        images: result.pictures.len(),
                    })
                    .collect(),
            ),
        }
    }

    /// Whether two messages say the same. Most numbers do not count: times, process ids and ports are
    /// others at each run.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::User(one), Self::User(other)) => without_chance(one) == without_chance(other),
            (Self::Assistant(one), Self::Assistant(other)) => one == other,
            (Self::ToolResults(one), Self::ToolResults(other)) => {
                one.len() == other.len()
                    && one.iter().zip(other).all(|(one, other)| one.says_the_same(other))
            }
            _ => false,
        }
    }

    /// What it says, for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::User(text) => text.clone(),
            Self::Assistant(blocks) => serde_json::to_string(blocks).unwrap_or_default(),
            Self::ToolResults(results) => {
                results.iter().map(|result| result.text.as_str()).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl RecordedResult {
    fn says_the_same(&self, other: &Self) -> bool {
        (&self.call_id, self.failed, self.images) == (&other.call_id, other.failed, other.images)
            && without_chance(&self.text) == without_chance(&other.text)
    }
}

impl RecordedReply {
    pub(super) fn of(asked: &Result<ModelAnswer, Failure>) -> Self {
        match asked {
            Ok(answer) => Self::Answer(Box::new(answer.clone())),
            Err(Failure { error, .. }) => {
                Self::Failure { code: error.code().into(), message: error.to_string() }
            }
        }
    }
}
