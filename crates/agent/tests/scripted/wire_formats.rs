//! The scripted server's answers in the words of each provider, as streams of events.

use serde_json::{Value, json};

use super::{Reply, Said};

/// All events of a reply, each ready to be sent.
pub(super) fn events(path: &str, reply: &Reply) -> Vec<String> {
    let format: fn(&Said) -> Vec<String> = if path.ends_with("/chat/completions") {
        chat
    } else if path.ends_with("/responses") {
        responses
    } else {
        messages
    };
    match reply {
        Reply::Say(said)
        | Reply::SayLater(said)
        | Reply::SayInHalves(said)
        | Reply::SilenceInside(said) => format(said),
        Reply::Cut(said) => {
            let mut events = format(said);
            events.truncate(events.len() / 2);
            events
        }
        Reply::CutCall(said) => {
            let mut events = format(said);
            let is_argument = |event: &String| event.contains("ls\\\"") || event.contains("\\\"ls");
            let end = events.iter().position(is_argument).expect("the call's argument is ls");
            events.truncate(end);
            events
        }
        Reply::NotJson => vec!["data: {\"choices\": [\n\n".into()],
        Reply::ErrorInside { kind, message } => {
            let error = json!({ "type": "error", "error": { "type": kind, "message": message } });
            vec![format!("event: error\ndata: {error}\n\n")]
        }
        Reply::NoChoices if path.ends_with("/chat/completions") => {
            vec![data(json!({ "choices": [] })), "data: [DONE]\n\n".into()]
        }
        Reply::NoChoices if path.ends_with("/responses") => {
            vec![named(json!({ "type": "response.completed", "response": {} }))]
        }
        Reply::NoChoices => vec![
            named(json!({ "type": "message_start", "message": { "usage": {} } })),
            named(json!({ "type": "message_stop" })),
        ],
        Reply::Fail { .. } | Reply::Silence => Vec::new(),
    }
}

fn data(value: Value) -> String {
    format!("data: {value}\n\n")
}

fn named(value: Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap())
}

/// A text in pieces of a few characters.
fn fragments(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(7).map(|piece| piece.iter().collect()).collect()
}

fn chat(said: &Said) -> Vec<String> {
    let delta = |delta: Value| data(json!({ "choices": [{ "index": 0, "delta": delta }] }));
    let mut events = vec![delta(json!({ "role": "assistant", "content": "" }))];
    for piece in said.reasoning.iter().flat_map(|text| fragments(text)) {
        events.push(delta(json!({ "reasoning_content": piece })));
    }
    for piece in fragments(&said.text) {
        events.push(delta(json!({ "content": piece })));
    }
    for (index, (name, _)) in said.calls.iter().enumerate() {
        let function = json!({ "name": name, "arguments": "" });
        let call = json!({ "index": index, "id": format!("call_{index}"), "type": "function", "function": function });
        events.push(delta(json!({ "tool_calls": [call] })));
    }
    // The fragments of parallel calls are mixed.
    let mut arguments: Vec<_> =
        said.calls.iter().map(|(_, arguments)| fragments(arguments).into_iter()).collect();
    loop {
        let before = events.len();
        for (index, pieces) in arguments.iter_mut().enumerate() {
            if let Some(piece) = pieces.next() {
                let call = json!({ "index": index, "function": { "arguments": piece } });
                events.push(delta(json!({ "tool_calls": [call] })));
            }
        }
        if events.len() == before {
            break;
        }
    }
    let reason = if said.calls.is_empty() { "stop" } else { "tool_calls" };
    events.push(data(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })));
    if let Some((input, cached, output)) = said.usage {
        events.push(data(json!({ "choices": [], "usage": {
            "prompt_tokens": input,
            "completion_tokens": output,
            "prompt_tokens_details": { "cached_tokens": cached },
        } })));
    }
    events.push("data: [DONE]\n\n".into());
    events
}

fn responses(said: &Said) -> Vec<String> {
    let mut items = Vec::new();
    if let Some(text) = &said.reasoning {
        items.push(json!({
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{ "type": "summary_text", "text": text }],
            "encrypted_content": "c2VhbGVk",
        }));
    }
    if !said.text.is_empty() {
        let content = json!([{ "type": "output_text", "text": said.text }]);
        items.push(json!({ "type": "message", "role": "assistant", "content": content }));
    }
    for (index, (name, arguments)) in said.calls.iter().enumerate() {
        items.push(json!({
            "type": "function_call", "call_id": format!("call_{index}"), "name": name, "arguments": arguments,
        }));
    }
    let mut events = vec![named(json!({ "type": "response.created", "response": {} }))];
    for (index, item) in items.iter().enumerate() {
        for piece in fragments(item["content"][0]["text"].as_str().unwrap_or_default()) {
            events.push(named(json!({
                "type": "response.output_text.delta", "output_index": index, "delta": piece,
            })));
        }
        for piece in fragments(item["arguments"].as_str().unwrap_or_default()) {
            events.push(named(json!({
                "type": "response.function_call_arguments.delta", "output_index": index, "delta": piece,
            })));
        }
        events.push(named(json!({
            "type": "response.output_item.done", "output_index": index, "item": item,
        })));
    }
    let (input, cached, output) = said.usage.unwrap_or_default();
    events.push(named(json!({ "type": "response.completed", "response": { "usage": {
        "input_tokens": input,
        "output_tokens": output,
        "input_tokens_details": { "cached_tokens": cached },
    } } })));
    events
}

fn messages(said: &Said) -> Vec<String> {
    let (input, cached, output) = said.usage.unwrap_or_default();
    let usage = json!({
        "input_tokens": input - cached, "cache_read_input_tokens": cached, "output_tokens": 1,
    });
    let mut events = vec![named(json!({ "type": "message_start", "message": { "usage": usage } }))];
    let mut blocks = Vec::new();
    if let Some(text) = &said.reasoning {
        let deltas = fragments(text)
            .into_iter()
            .map(|piece| json!({ "type": "thinking_delta", "thinking": piece }))
            .chain([json!({ "type": "signature_delta", "signature": "c2ln" })]);
        let start = json!({ "type": "thinking", "thinking": "", "signature": "" });
        blocks.push((start, deltas.collect::<Vec<_>>()));
    }
    if !said.text.is_empty() {
        let deltas = fragments(&said.text)
            .into_iter()
            .map(|piece| json!({ "type": "text_delta", "text": piece }));
        blocks.push((json!({ "type": "text", "text": "" }), deltas.collect()));
    }
    for (index, (name, arguments)) in said.calls.iter().enumerate() {
        let deltas = fragments(arguments)
            .into_iter()
            .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        let start =
            json!({ "type": "tool_use", "id": format!("call_{index}"), "name": name, "input": {} });
        blocks.push((start, deltas.collect()));
    }
    for (index, (start, deltas)) in blocks.into_iter().enumerate() {
        events.push(named(json!({
            "type": "content_block_start", "index": index, "content_block": start,
        })));
        events.push(named(json!({ "type": "ping" })));
        for delta in deltas {
            events.push(named(json!({
                "type": "content_block_delta", "index": index, "delta": delta,
            })));
        }
        events.push(named(json!({ "type": "content_block_stop", "index": index })));
    }
    let reason = if said.calls.is_empty() { "end_turn" } else { "tool_use" };
    events.push(named(json!({
        "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": output },
    })));
    events.push(named(json!({ "type": "message_stop" })));
    events
}
