//! Anthropic's Messages, with marks where the provider's cache may cut.

use std::collections::BTreeMap;
use std::time::Instant;

use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage, Wire};
use eventsource_stream::Event;
use serde_json::{Value, json};

use super::catalogue::{Effort, ModelFacts};
use super::http::json as parse;
use super::wire::{Gather, Taken, cut, shown};
use super::{Live, Message, ModelError, Request, ToolDefinition, ToolResult, arguments_object};

/// An answer as far as it has come.
#[derive(Default)]
pub(super) struct Messages {
    blocks: BTreeMap<u64, Value>,
    /// The arguments of calls, which come as pieces of JSON text.
    arguments: BTreeMap<u64, String>,
    stop: Option<String>,
    usage: Usage,
    is_whole: bool,
}

impl Gather for Messages {
    const PATH: &'static str = "/messages";

    fn body(request: &Request, facts: &ModelFacts) -> Value {
        body(request, facts)
    }

    fn take(&mut self, event: &Event, live: &Live) -> Result<Taken, ModelError> {
        let data = parse(event)?;
        Ok(match data["type"].as_str().unwrap_or(&event.event) {
            "error" => Taken::Failed(data),
            "message_stop" => {
                self.is_whole = true;
                Taken::Whole
            }
            _ => {
                live.say(data["delta"]["text"].as_str());
                self.take_data(&data);
                Taken::More
            }
        })
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn finish(
        self,
        _: &Request,
        facts: &ModelFacts,
        started: Instant,
    ) -> Result<ModelAnswer, ModelError> {
        match self.is_whole {
            true if self.blocks.is_empty() && self.stop.is_none() => {
                Err(ModelError::Nonsense("there is nothing in it".into()))
            }
            true => Ok(self.answer(facts, started)),
            false => Err(cut()),
        }
    }
}

/// Tokens to think with, of those that the answer may have.
fn thinking_budget(effort: Effort) -> u64 {
    match effort {
        Effort::Low => 2_048,
        Effort::Medium => 8_192,
        Effort::High => 24_576,
    }
}

fn body(request: &Request, facts: &ModelFacts) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    for message in request.messages.iter() {
        let (role, content) = match message {
            Message::User(text) => ("user", vec![json!({ "type": "text", "text": &**text })]),
            Message::Assistant(blocks) => ("assistant", answer(blocks)),
            Message::ToolResults(results) => {
                ("user", results.iter().map(|one| result(one, request, facts)).collect())
            }
        };
        if content.is_empty() {
            continue;
        }
        // Two messages of one role in a row become one.
        match messages.last_mut() {
            Some(last) if last["role"] == role => {
                if let Some(parts) = last["content"].as_array_mut() {
                    parts.extend(content);
                }
            }
            _ => messages.push(json!({ "role": role, "content": content })),
        }
    }
    mark_for_cache(&mut messages);
    let may_think = may_think(&messages);
    let most = request.most_output.unwrap_or(facts.output_tokens);
    let mut body = json!({
        "model": facts.model,
        "max_tokens": most,
        "system": [{
            "type": "text", "text": &*request.system, "cache_control": { "type": "ephemeral" },
        }],
        "messages": messages,
        "stream": true,
    });
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    // A request for a short text is not worth thinking about, and has no room for it.
    if let (Some(effort), None) = (facts.reasoning, request.most_output)
        && may_think
    {
        let budget = thinking_budget(effort).min(most / 2);
        body["thinking"] = json!({ "type": "enabled", "budget_tokens": budget });
    }
    body
}

/// Whether the API lets a model think now: results may only follow on calls before which it thought,
/// and those of another provider's model, whose place this one takes, have no thought that it can read.
fn may_think(messages: &[Value]) -> bool {
    let [.., calls, last] = messages else { return true };
    let has = |message: &Value, test: fn(&Value) -> bool| {
        message["content"].as_array().is_some_and(|parts| parts.iter().any(test))
    };
    // What the user said since then stands behind them in the same message.
    !has(last, |part| part["type"] == "tool_result") || has(calls, is_thought)
}

fn is_thought(part: &Value) -> bool {
    part["type"] == "thinking" || part["type"] == "redacted_thinking"
}

/// Marks the ends of the last two messages of the user's: what is before the older one was written
/// to the cache by the call before, what is before the newer one will be read by the next.
fn mark_for_cache(messages: &mut [Value]) {
    let users = messages.iter_mut().rev().filter(|message| message["role"] == "user");
    for message in users.take(2) {
        if let Some(last) = message["content"].as_array_mut().and_then(|parts| parts.last_mut()) {
            last["cache_control"] = json!({ "type": "ephemeral" });
        }
    }
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({
        "name": tool.name, "description": tool.description, "input_schema": tool.parameters,
    })
}

/// An answer as it goes back. The API refuses one that ends with a thought, so a thought that led to nothing
/// is left out.
fn answer(blocks: &[AnswerBlock]) -> Vec<Value> {
    let mut parts: Vec<Value> = blocks.iter().filter_map(block).collect();
    while parts.pop_if(|last| is_thought(last)).is_some() {}
    parts
}

fn block(block: &AnswerBlock) -> Option<Value> {
    Some(match block {
        // The API refuses empty texts.
        AnswerBlock::Text { text } if text.trim().is_empty() => return None,
        AnswerBlock::Text { text } => json!({ "type": "text", "text": text }),
        AnswerBlock::ToolCall { id, name, arguments } => json!({
            "type": "tool_use", "id": id, "name": name, "input": arguments_object(arguments),
        }),
        AnswerBlock::Reasoning { wire: Wire::Messages, data, .. } => data.clone(),
        AnswerBlock::Reasoning { .. } => return None,
    })
}

fn result(result: &ToolResult, request: &Request, facts: &ModelFacts) -> Value {
    let (text, pictures) = shown(result, request, facts);
    let text = if text.is_empty() { "(no output)" } else { &*text };
    let mut content = vec![json!({ "type": "text", "text": text })];
    content.extend(pictures.into_iter().map(|picture| {
        let source = json!({
            "type": "base64", "media_type": picture.media_type, "data": picture.base64,
        });
        json!({ "type": "image", "source": source })
    }));
    json!({
        "type": "tool_result",
        "tool_use_id": &*result.call_id,
        "content": content,
        "is_error": result.failed,
    })
}

impl Messages {
    fn take_data(&mut self, data: &Value) {
        let index = data["index"].as_u64().unwrap_or_default();
        match data["type"].as_str() {
            Some("message_start") => self.take_usage(&data["message"]["usage"]),
            Some("content_block_start") => {
                self.blocks.insert(index, data["content_block"].clone());
            }
            Some("content_block_delta") => self.take_delta(index, &data["delta"]),
            Some("message_delta") => {
                if let Some(reason) = data["delta"]["stop_reason"].as_str() {
                    self.stop = Some(reason.to_owned());
                }
                self.take_usage(&data["usage"]);
            }
            _ => {}
        }
    }

    fn take_delta(&mut self, index: u64, delta: &Value) {
        let field = match delta["type"].as_str() {
            Some("text_delta") => "text",
            Some("thinking_delta") => "thinking",
            Some("signature_delta") => "signature",
            Some("input_json_delta") => {
                let piece = delta["partial_json"].as_str().unwrap_or_default();
                self.arguments.entry(index).or_default().push_str(piece);
                return;
            }
            _ => return,
        };
        let Some(block) = self.blocks.get_mut(&index) else { return };
        let so_far = block[field].as_str().unwrap_or_default();
        block[field] = format!("{so_far}{}", delta[field].as_str().unwrap_or_default()).into();
    }

    /// What is not cached is counted apart from what is.
    fn take_usage(&mut self, usage: &Value) {
        let number = |field: &str| usage[field].as_u64();
        if let Some(fresh) = number("input_tokens") {
            self.usage.cached = number("cache_read_input_tokens").unwrap_or_default();
            self.usage.cache_written = number("cache_creation_input_tokens").unwrap_or_default();
            self.usage.input = fresh + self.usage.cached + self.usage.cache_written;
        }
        if let Some(output) = number("output_tokens") {
            self.usage.output = output;
        }
    }

    fn answer(mut self, facts: &ModelFacts, started: Instant) -> ModelAnswer {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut blocks = Vec::new();
        for (index, block) in self.blocks {
            blocks.push(match block["type"].as_str() {
                Some("text") => AnswerBlock::Text { text: text(&block["text"]) },
                Some("tool_use") => AnswerBlock::ToolCall {
                    id: text(&block["id"]),
                    name: text(&block["name"]),
                    arguments: match self.arguments.remove(&index) {
                        Some(arguments) if !arguments.is_empty() => arguments,
                        _ => block["input"].to_string(),
                    },
                },
                // Thinking, open or redacted, and whatever else only the provider understands.
                _ => AnswerBlock::Reasoning {
                    wire: Wire::Messages,
                    text: text(&block["thinking"]),
                    data: block,
                },
            });
        }
        let stop = match self.stop.as_deref() {
            Some("tool_use") => StopCause::ToolCalls,
            Some("max_tokens" | "model_context_window_exceeded") => StopCause::OutputLimit,
            Some("refusal") => StopCause::Refused,
            _ => StopCause::Finished,
        };
        facts.answer(blocks, stop, self.usage, started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_marked_at_the_last_two_turns() {
        let message = |role: &str| json!({ "role": role, "content": [{ "type": "text" }] });
        let mut messages = ["user", "assistant", "user", "assistant", "user"].map(message);
        mark_for_cache(&mut messages);
        let marked: Vec<bool> = messages
            .iter()
            .map(|message| !message["content"][0]["cache_control"].is_null())
            .collect();
        assert_eq!(marked, [false, false, true, false, true]);
    }

    fn thought() -> AnswerBlock {
        let data = json!({ "type": "thinking", "thinking": "hm", "signature": "c2ln" });
        AnswerBlock::Reasoning { wire: Wire::Messages, text: "hm".into(), data }
    }

    fn call() -> AnswerBlock {
        AnswerBlock::ToolCall { id: "c".into(), name: "shell".into(), arguments: "{}".into() }
    }

    /// What is sent of a conversation to a model that is to think.
    fn sent(messages: Vec<Message>) -> Value {
        let mut facts = ModelFacts::of_test("anthropic/claude-sonnet-4-5");
        facts.reasoning = Some(Effort::High);
        let request = Request {
            system: "".into(),
            tools: [].into(),
            messages: std::sync::Arc::new(messages),
            most_output: None,
            conversation: "".into(),
            pictures: Default::default(),
            live: Default::default(),
        };
        body(&request, &facts)
    }

    #[test]
    fn a_thought_that_led_to_nothing_does_not_go_back() {
        let user = |text: &str| Message::User(text.into());
        let nothing = AnswerBlock::Text { text: " ".into() };
        for blocks in [vec![thought()], vec![thought(), thought(), nothing]] {
            let body = sent(vec![user("do it"), Message::Assistant(blocks.into()), user("go on")]);
            let messages = body["messages"].as_array().unwrap();
            assert_eq!(messages.len(), 1, "{body:#}");
            assert_eq!(messages[0]["content"][1]["text"], "go on");
            assert_eq!(body["thinking"]["type"], "enabled");
        }
        let said = AnswerBlock::Text { text: "so".into() };
        let body = sent(vec![user("do it"), Message::Assistant([thought(), said].into())]);
        assert_eq!(body["messages"][1]["content"][0]["type"], "thinking");
    }

    #[test]
    fn results_of_calls_without_a_thought_forbid_one_also_when_somebody_speaks_behind_them() {
        let user = |text: &str| Message::User(text.into());
        let results = || {
            let (call_id, text) = ("c".into(), "ok".into());
            let result = ToolResult { call_id, text, failed: false, pictures: Vec::new() };
            Message::ToolResults(vec![result])
        };
        let idle = || Message::Assistant([thought()].into());
        for (blocks, may) in [(vec![call()], false), (vec![thought(), call()], true)] {
            let turn = || vec![user("do it"), Message::Assistant(blocks.clone().into()), results()];
            for more in [vec![], vec![user("and tests")], vec![idle(), user("go on")]] {
                let body = sent([turn(), more].concat());
                assert_eq!(!body["thinking"].is_null(), may, "{body:#}");
            }
        }
    }

    #[test]
    fn thinking_keeps_its_signature() {
        let mut answer = Messages::default();
        for data in [
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "", "signature": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "thinking_delta", "thinking": "let me" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "thinking_delta", "thinking": " see" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "signature_delta", "signature": "c2ln" } }),
        ] {
            answer.take_data(&data);
        }
        let whole = json!({ "type": "thinking", "thinking": "let me see", "signature": "c2ln" });
        assert_eq!(answer.blocks[&0], whole);
    }
}
