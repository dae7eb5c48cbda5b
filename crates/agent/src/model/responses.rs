//! OpenAI's Responses. Nothing is stored at the provider's: reasoning comes encrypted and goes back.

use std::time::Instant;

use async_trait::async_trait;
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage, Wire};
use serde_json::{Value, json};

use super::catalogue::ModelFacts;
use super::http::{Endpoint, json as parse};
use super::{Message, Model, ModelError, Request, ToolDefinition, ToolResult, arguments_object};

pub(crate) struct ResponsesModel {
    pub(crate) endpoint: Endpoint,
    pub(crate) facts: ModelFacts,
}

#[async_trait]
impl Model for ResponsesModel {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn context_tokens(&self) -> u64 {
        self.facts.context_tokens
    }

    async fn ask(&self, request: &Request) -> Result<ModelAnswer, ModelError> {
        let started = Instant::now();
        let body = body(request, &self.facts);
        let mut events = self.endpoint.stream("/responses", &body).await?;
        let mut items: Vec<Value> = Vec::new();
        loop {
            let Some(event) = events.next().await? else {
                return Err(ModelError::Cut("the stream ended before the answer did".into()));
            };
            let mut data = parse(&event)?;
            match data["type"].as_str().unwrap_or(&event.event) {
                "response.output_item.done" => items.push(data["item"].take()),
                "response.output_text.delta" => request.live.say(data["delta"].as_str()),
                "response.completed" | "response.incomplete" => {
                    let response = &data["response"];
                    if items.is_empty() {
                        items = response["output"].as_array().cloned().unwrap_or_default();
                    }
                    return Ok(answer(&items, response, &self.facts, started));
                }
                "response.failed" => return Err(events.error(&data["response"])),
                "error" => return Err(events.error(&data)),
                // Pieces of what the items then hold whole.
                _ => {}
            }
        }
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
            Message::ToolResults(results) => input.extend(results.iter().map(result)),
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
        body["max_output_tokens"] = most.into();
    }
    if let Some(effort) = facts.reasoning {
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

fn result(result: &ToolResult) -> Value {
    let output = if result.images.is_empty() {
        Value::from(&*result.text)
    } else {
        let mut parts = vec![json!({ "type": "input_text", "text": &*result.text })];
        parts.extend(result.images.iter().map(|image| {
            let url = format!("data:{};base64,{}", image.media_type, image.base64);
            json!({ "type": "input_image", "image_url": url })
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
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let usage = &response["usage"];
    let usage = Usage {
        input: number(&usage["input_tokens"]),
        cached: number(&usage["input_tokens_details"]["cached_tokens"]),
        cache_written: 0,
        output: number(&usage["output_tokens"]),
    };
    facts.answer(blocks, stop, usage, started)
}
