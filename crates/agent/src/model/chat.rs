//! OpenAI's Chat Completions, as OpenAI and most other model servers speak them.

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
pub(super) struct Chat {
    text: String,
    reasoning: String,
    /// The field under which the server gives its reasoning.
    reasoning_field: &'static str,
    /// What gateways give of it beside the text, sealed parts included.
    reasoning_details: Vec<Value>,
    calls: Vec<Call>,
    finish: Option<String>,
    usage: Usage,
    saw_choice: bool,
    /// The server said that this is all.
    is_done: bool,
}

#[derive(Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// What the server wants back with the call, such as a signature.
    extra: Option<Value>,
}

/// The field of a message's reasoning under which the calls' own are kept, by their ids.
const EXTRA: &str = "extra_content";

impl Gather for Chat {
    const PATH: &'static str = "/chat/completions";

    fn body(request: &Request, facts: &ModelFacts) -> Value {
        body(request, facts)
    }

    fn take(&mut self, event: &Event, live: &Live) -> Result<Taken, ModelError> {
        if event.data.trim() == "[DONE]" {
            self.is_done = true;
            return Ok(Taken::Whole);
        }
        let chunk = parse(event)?;
        if !chunk["error"].is_null() {
            return Ok(Taken::Failed(chunk));
        }
        live.say(chunk["choices"][0]["delta"]["content"].as_str());
        self.take_chunk(&chunk);
        Ok(Taken::More)
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn finish(
        self,
        request: &Request,
        facts: &ModelFacts,
        started: Instant,
    ) -> Result<ModelAnswer, ModelError> {
        let has_content = !self.text.is_empty() || !self.calls.is_empty();
        if self.finish.is_none() && !(self.is_done && has_content) {
            return Err(match (self.is_done, self.saw_choice) {
                (true, false) => ModelError::Nonsense("there are no choices in it".into()),
                _ => cut(),
            });
        }
        Ok(self.answer(facts, request.messages.len(), started))
    }
}

fn body(request: &Request, facts: &ModelFacts) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": &*request.system })];
    for message in request.messages.iter() {
        match message {
            Message::User(text) => messages.push(json!({ "role": "user", "content": &**text })),
            Message::Assistant(blocks) => messages.push(assistant(blocks)),
            Message::ToolResults(results) => push_results(&mut messages, results, request, facts),
        }
    }
    let mut body = json!({
        "model": facts.model,
        "messages": messages,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    if let Some(most) = request.most_output {
        // Whoever else speaks this wire knows the older name.
        let field = if facts.is_of_openai() { "max_completion_tokens" } else { "max_tokens" };
        body[field] = facts.room_for(most).into();
    }
    if let Some(effort) = facts.effort(request) {
        body["reasoning_effort"] = effort.as_str().into();
    }
    body
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.parameters,
        },
    })
}

fn assistant(blocks: &[AnswerBlock]) -> Value {
    let mut text = String::new();
    let mut calls = Vec::new();
    let mut reasoning = None;
    for block in blocks {
        match block {
            AnswerBlock::Text { text: piece } => text.push_str(piece),
            AnswerBlock::ToolCall { id, name, arguments } => calls.push(json!({
                "id": id,
                "type": "function",
                "function": {
                    "name": name, "arguments": arguments_object(arguments).to_string(),
                },
            })),
            AnswerBlock::Reasoning { wire: Wire::Chat, data, .. } => reasoning = Some(data),
            AnswerBlock::Reasoning { .. } => {}
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if calls.is_empty() {
        return message;
    }
    if text.is_empty() {
        message["content"] = Value::Null;
    }
    // Servers that give reasoning this way want it back with the calls that came of it.
    for (name, value) in reasoning.and_then(Value::as_object).into_iter().flatten() {
        if name != EXTRA {
            message[name] = value.clone();
            continue;
        }
        for call in &mut calls {
            if let Some(extra) = call["id"].as_str().and_then(|id| value.get(id)) {
                call[EXTRA] = extra.clone();
            }
        }
    }
    message["tool_calls"] = calls.into();
    message
}

/// A tool's message holds text alone, so pictures follow in a message of the user's.
fn push_results(
    messages: &mut Vec<Value>,
    results: &[ToolResult],
    request: &Request,
    facts: &ModelFacts,
) {
    let mut parts = Vec::new();
    for result in results {
        let (text, pictures) = shown(result, request, facts);
        messages.push(json!({
            "role": "tool", "tool_call_id": &*result.call_id, "content": text,
        }));
        parts.extend(pictures.into_iter().map(|picture| {
            let url = format!("data:{};base64,{}", picture.media_type, picture.base64);
            json!({ "type": "image_url", "image_url": { "url": url, "detail": "high" } })
        }));
    }
    if !parts.is_empty() {
        messages.push(json!({ "role": "user", "content": parts }));
    }
}

impl Chat {
    fn take_chunk(&mut self, chunk: &Value) {
        let usage = &chunk["usage"];
        if usage.is_object() {
            let number = |value: &Value| value.as_u64().unwrap_or_default();
            self.usage = Usage {
                input: number(&usage["prompt_tokens"]),
                cached: number(&usage["prompt_tokens_details"]["cached_tokens"]),
                cache_written: 0,
                output: number(&usage["completion_tokens"]),
            };
        }
        let choice = &chunk["choices"][0];
        if choice.is_null() {
            return;
        }
        self.saw_choice = true;
        let delta = &choice["delta"];
        if let Some(piece) = delta["content"].as_str() {
            self.text.push_str(piece);
        }
        for field in ["reasoning_content", "reasoning"] {
            if let Some(piece) = delta[field].as_str() {
                self.reasoning.push_str(piece);
                self.reasoning_field = field;
                break;
            }
        }
        for part in delta["reasoning_details"].as_array().into_iter().flatten() {
            self.take_detail(part);
        }
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(part);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
    }

    /// Pieces of one kind that follow each other are one.
    fn take_detail(&mut self, part: &Value) {
        let is_same = |last: &Value| last["type"] == part["type"] && last["index"] == part["index"];
        let Some(last) = self.reasoning_details.last_mut().filter(|last| is_same(last)) else {
            self.reasoning_details.push(part.clone());
            return;
        };
        for (name, value) in part.as_object().into_iter().flatten() {
            match (name.as_str(), last[name].as_str(), value.as_str()) {
                ("text" | "summary" | "data", Some(before), Some(piece)) => {
                    last[name] = format!("{before}{piece}").into();
                }
                _ if !value.is_null() => last[name] = value.clone(),
                _ => {}
            }
        }
    }

    /// Calls come in fragments that name the call by its index; some servers leave that out, and some
    /// give all calls the same one.
    fn take_call(&mut self, part: &Value) {
        let index = part["index"].as_u64();
        let id = part["id"].as_str().unwrap_or_default();
        let name = part["function"]["name"].as_str().unwrap_or_default();
        let known = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().position(|call| call.id == id),
        };
        let is_another = |call: &Call| {
            !id.is_empty() && !call.id.is_empty() && call.id != id && !name.is_empty()
        };
        let known = known.filter(|at| !is_another(&self.calls[*at]));
        let at = known.unwrap_or_else(|| {
            self.calls.push(Call { index, ..Call::default() });
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            call.id = id.to_owned();
        }
        // Some servers say the whole name with every fragment.
        if call.name != name {
            call.name.push_str(name);
        }
        if !part[EXTRA].is_null() {
            call.extra = Some(part[EXTRA].clone());
        }
        let function = &part["function"];
        match &function["arguments"] {
            Value::String(piece) => call.arguments.push_str(piece),
            // Some servers give the object itself instead of its text.
            object @ Value::Object(_) => call.arguments = object.to_string(),
            _ => {}
        }
    }

    fn answer(self, facts: &ModelFacts, turn: usize, started: Instant) -> ModelAnswer {
        let mut blocks = Vec::new();
        let mut data = serde_json::Map::new();
        if !self.reasoning.is_empty() {
            data.insert(self.reasoning_field.into(), self.reasoning.as_str().into());
        }
        if !self.reasoning_details.is_empty() {
            data.insert("reasoning_details".into(), self.reasoning_details.into());
        }
        let extra =
            self.calls.iter().filter_map(|call| Some((call.id.clone(), call.extra.clone()?)));
        let extra: serde_json::Map<String, Value> = extra.collect();
        if !extra.is_empty() {
            data.insert(EXTRA.into(), extra.into());
        }
        if !data.is_empty() {
            let (wire, text, data) = (Wire::Chat, self.reasoning, data.into());
            blocks.push(AnswerBlock::Reasoning { wire, text, data });
        }
        if !self.text.is_empty() {
            blocks.push(AnswerBlock::Text { text: self.text });
        }
        let calls = !self.calls.is_empty();
        for (at, call) in self.calls.into_iter().enumerate() {
            // Without an id of the server's, one that no other call of the conversation has.
            let id = if call.id.is_empty() { format!("call-{turn}-{at}") } else { call.id };
            blocks.push(AnswerBlock::ToolCall { id, name: call.name, arguments: call.arguments });
        }
        let stop = match self.finish.as_deref() {
            Some("length") => StopCause::OutputLimit,
            Some("content_filter") => StopCause::Refused,
            _ if calls => StopCause::ToolCalls,
            _ => StopCause::Finished,
        };
        facts.answer(blocks, stop, self.usage, started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(chunks: &[Value]) -> Chat {
        let mut answer = Chat::default();
        chunks.iter().for_each(|chunk| answer.take_chunk(chunk));
        answer
    }

    #[test]
    fn fragments_of_parallel_calls_are_put_together() {
        let part = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
        let answer = gathered(&[
            part(
                json!({ "index": 0, "id": "a", "function": { "name": "shell", "arguments": "" } }),
            ),
            part(
                json!({ "index": 1, "id": "b", "function": { "name": "plan", "arguments": "{\"x" } }),
            ),
            part(json!({ "index": 0, "function": { "arguments": "{\"command\":" } })),
            part(json!({ "index": 1, "function": { "arguments": "\":1}" } })),
            part(json!({ "index": 0, "function": { "arguments": "\"ls\"}" } })),
        ]);
        let calls: Vec<_> =
            answer.calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("a", "shell", r#"{"command":"ls"}"#), ("b", "plan", r#"{"x":1}"#)]);
    }

    #[test]
    fn servers_that_leave_out_the_index_are_understood() {
        let part = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
        let answer = gathered(&[
            part(json!({ "id": "a", "function": { "name": "x", "arguments": { "k": 1 } } })),
            part(json!({ "id": "b", "function": { "name": "y", "arguments": "{" } })),
            part(json!({ "function": { "arguments": "}" } })),
        ]);
        assert_eq!(answer.calls.len(), 2);
        assert_eq!(answer.calls[0].arguments, r#"{"k":1}"#);
        assert_eq!(answer.calls[1].arguments, "{}");
    }

    #[test]
    fn calls_that_share_an_index_and_names_that_are_repeated_are_understood() {
        let part = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
        let call = |id: &str, name: &str, arguments: &str| {
            part(json!({
                "index": 0, "id": id, "function": { "name": name, "arguments": arguments },
            }))
        };
        let answer = gathered(&[
            call("a", "shell", "{"),
            call("a", "shell", "}"),
            call("b", "plan", "{"),
            call("", "plan", "}"),
        ]);
        let calls: Vec<_> =
            answer.calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("a", "shell", "{}"), ("b", "plan", "{}")]);
    }

    #[test]
    fn what_a_gateway_seals_goes_back_where_it_came_from() {
        let detail =
            |part: Value| json!({ "choices": [{ "delta": { "reasoning_details": [part] } }] });
        let signature = json!({ "google": { "thought_signature": "s" } });
        let answer = gathered(&[
            detail(json!({ "type": "reasoning.text", "index": 0, "text": "h" })),
            detail(json!({ "type": "reasoning.text", "index": 0, "text": "m", "signature": "x" })),
            detail(json!({ "type": "reasoning.encrypted", "index": 1, "data": "q" })),
            json!({ "choices": [{ "delta": { "tool_calls": [{
                "index": 0, "id": "a", "extra_content": signature,
                "function": { "name": "shell", "arguments": "{}" },
            }] } }] }),
        ]);
        let facts = ModelFacts::of_test("local/x");
        let message = assistant(&answer.answer(&facts, 0, Instant::now()).blocks);
        assert_eq!(
            message["reasoning_details"],
            json!([
                { "type": "reasoning.text", "index": 0, "text": "hm", "signature": "x" },
                { "type": "reasoning.encrypted", "index": 1, "data": "q" },
            ])
        );
        assert_eq!(message["tool_calls"][0]["extra_content"], signature);
        assert!(message.get("extra_content").is_none(), "{message}");
    }

    #[test]
    fn reasoning_goes_back_with_its_calls_and_mistakes_become_objects() {
        let blocks = [
            AnswerBlock::Reasoning {
                wire: Wire::Chat,
                text: "hm".into(),
                data: json!({ "reasoning_content": "hm" }),
            },
            AnswerBlock::ToolCall {
                id: "a".into(),
                name: "shell".into(),
                arguments: "{oops".into(),
            },
        ];
        let message = assistant(&blocks);
        assert_eq!(message["reasoning_content"], "hm");
        let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap()["not_json"], "{oops");
    }
}
