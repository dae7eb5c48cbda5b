//! OpenAI's Responses. Nothing is stored at the provider's: reasoning comes encrypted and goes back.

use std::time::Instant;

use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage, Wire};
use eventsource_stream::Event;
use serde_json::{Value, json};

use super::catalogue::ModelFacts;
use super::http::json as parse;
use super::wire::{Gather, Taken, cut, shown};
use super::{Live, Message, ModelError, Request, ToolDefinition, ToolResult, arguments_object};

/// An answer as far as it has come.
#[derive(Default)]
pub(super) struct Responses {
    items: Vec<Value>,
    /// What the server says about the whole of it, at its end.
    response: Option<Value>,
    usage: Usage,
}

impl Gather for Responses {
    const PATH: &'static str = "/responses";

    fn body(request: &Request, facts: &ModelFacts) -> Value {
        body(request, facts)
    }

    fn take(&mut self, event: &Event, live: &Live) -> Result<Taken, ModelError> {
        let mut data = parse(event)?;
        Ok(match data["type"].as_str().unwrap_or(&event.event) {
            "response.output_item.done" => {
                self.items.push(data["item"].take());
                Taken::More
            }
            "response.output_text.delta" => {
                live.say(data["delta"].as_str());
                Taken::More
            }
            "response.completed" | "response.incomplete" => {
                self.usage = usage_of(&data["response"]);
                self.response = Some(data["response"].take());
                Taken::Whole
            }
            "response.failed" => {
                self.usage = usage_of(&data["response"]);
                Taken::Failed(data["response"].take())
            }
            "error" => Taken::Failed(data),
            // Pieces of what the items then hold whole.
            _ => Taken::More,
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
        let response = self.response.ok_or_else(cut)?;
        let mut items = self.items;
        if items.is_empty() {
            items = response["output"].as_array().cloned().unwrap_or_default();
        }
        // An answer may well be empty, but then the server says what it cost.
        if items.is_empty() && response["usage"].is_null() {
            return Err(ModelError::Nonsense("there is nothing in it".into()));
        }
        Ok(answer(&items, &response, facts, started))
    }
}

fn body(request: &Request, facts: &ModelFacts) -> Value {
    let mut input = Vec::new();
    for message in request.messages.iter() {
        match message {
            Message::User(text) => input.push(json!({
                "role": "user", "content": [{ "type": "input_text", "text": &**text }],
            })),
            Message::Assistant(blocks) => input.extend(blocks.iter().filter_map(item)),
            Message::ToolResults(results) => {
                input.extend(results.iter().map(|one| result(one, request, facts)));
            }
        }
    }
    let mut body = json!({
        "model": facts.model,
        "instructions": &*request.system,
        "input": input,
        "stream": true,
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": &*request.conversation,
    });
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    if let Some(most) = request.most_output {
        body["max_output_tokens"] = facts.room_for(most).into();
    }
    if let Some(effort) = facts.effort(request) {
        body["reasoning"] = json!({ "effort": effort.as_str() });
    }
    body
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": false,
    })
}

fn item(block: &AnswerBlock) -> Option<Value> {
    Some(match block {
        AnswerBlock::Text { text } => json!({
            "type": "message",
            "role": "assistant",
            "content": [{ "type": "output_text", "text": text }],
        }),
        AnswerBlock::ToolCall { id, name, arguments } => json!({
            "type": "function_call",
            "call_id": id,
            "name": name,
            "arguments": arguments_object(arguments).to_string(),
        }),
        AnswerBlock::Reasoning { wire: Wire::Responses, data, .. } => data.clone(),
        AnswerBlock::Reasoning { .. } => return None,
    })
}

fn result(result: &ToolResult, request: &Request, facts: &ModelFacts) -> Value {
    let (text, pictures) = shown(result, request, facts);
    let output = if pictures.is_empty() {
        Value::from(text)
    } else {
        let mut parts = vec![json!({ "type": "input_text", "text": text })];
        parts.extend(pictures.into_iter().map(|picture| {
            let url = format!("data:{};base64,{}", picture.media_type, picture.base64);
            json!({ "type": "input_image", "image_url": url, "detail": "high" })
        }));
        parts.into()
    };
    json!({ "type": "function_call_output", "call_id": &*result.call_id, "output": output })
}

fn answer(items: &[Value], response: &Value, facts: &ModelFacts, started: Instant) -> ModelAnswer {
    let mut blocks = Vec::new();
    let mut was_refused = false;
    for item in items {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        match item["type"].as_str() {
            Some("message") => {
                for part in item["content"].as_array().into_iter().flatten() {
                    was_refused |= part["type"] == "refusal";
                    let words = if part["type"] == "refusal" { "refusal" } else { "text" };
                    blocks.push(AnswerBlock::Text { text: text(&part[words]) });
                }
            }
            Some("function_call") => blocks.push(AnswerBlock::ToolCall {
                id: text(&item["call_id"]),
                name: text(&item["name"]),
                arguments: text(&item["arguments"]),
            }),
            Some("reasoning") => {
                let parts = item["summary"].as_array().into_iter().flatten();
                let summary: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
                blocks.push(AnswerBlock::Reasoning {
                    wire: Wire::Responses,
                    text: summary.join("\n"),
                    data: item.clone(),
                });
            }
            _ => {}
        }
    }
    let calls = blocks.iter().any(|block| matches!(block, AnswerBlock::ToolCall { .. }));
    let stop = match response["incomplete_details"]["reason"].as_str() {
        Some("content_filter") => StopCause::Refused,
        Some(_) => StopCause::OutputLimit,
        None if was_refused => StopCause::Refused,
        None if calls => StopCause::ToolCalls,
        None => StopCause::Finished,
    };
    facts.answer(blocks, stop, usage_of(response), started)
}

fn usage_of(response: &Value) -> Usage {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let usage = &response["usage"];
    Usage {
        input: number(&usage["input_tokens"]),
        cached: number(&usage["input_tokens_details"]["cached_tokens"]),
        cache_written: 0,
        output: number(&usage["output_tokens"]),
    }
}
