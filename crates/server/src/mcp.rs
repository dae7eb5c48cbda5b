//! Bellglass as an MCP server: the tools of one sandbox, for any client. Knows messages and nothing of
//! how they travel.

use async_trait::async_trait;
use bellglass_protocol::step::encode_base64;
use bytes::Bytes;
use serde_json::{Value, json};

/// A tool as clients see it.
#[derive(Clone, Debug)]
pub struct ToolListing {
    pub name: String,
    pub description: String,
    /// A JSON schema of its arguments.
    pub schema: Value,
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct ToolAnswer {
    pub text: String,
    pub failed: bool,
    pub pictures: Vec<ToolPicture>,
}

/// A picture that a call gave.
#[derive(Clone, Debug)]
pub struct ToolPicture {
    pub media_type: String,
    pub content: Bytes,
}

impl ToolAnswer {
    fn failure(text: String) -> Self {
        Self { text, failed: true, pictures: Vec::new() }
    }
}

/// The sandbox behind the door.
#[async_trait]
pub trait Sandboxed: Send + Sync {
    fn tools(&self) -> Vec<ToolListing>;

    /// Runs a tool that exists. The error says why it could not even be tried.
    async fn call(&self, name: &str, arguments: Value) -> Result<ToolAnswer, String>;
}

/// Versions of the protocol that are spoken, the newest first.
pub const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const INSTRUCTIONS: &str = "A sealed Linux sandbox of its own. Commands run and files lie in \
    /workspace; nothing outside of the sandbox can be reached but what its network policy allows.";

/// Answers one message. Nothing for messages that want no answer.
pub async fn answer(message: &Value, sandbox: &dyn Sandboxed) -> Option<Value> {
    let id = message.get("id").cloned();
    let Some(method) = message["method"].as_str() else {
        // An answer to a question that was never asked, or no message at all.
        let is_answer = message.get("result").is_some() || message.get("error").is_some();
        return (!is_answer).then(|| error(Value::Null, -32600, "this is not a request"));
    };
    let Some(id) = id.filter(|id| id.is_string() || id.is_number()) else {
        let wrong = |_| error(Value::Null, -32600, "an id is a text or a number");
        return message.get("id").map(wrong);
    };
    let params = &message["params"];
    let result = match method {
        "initialize" => Ok(welcome(params)),
        "ping" => Ok(json!({})),
        "tools/list" => {
            Ok(json!({ "tools": sandbox.tools().iter().map(listed).collect::<Vec<_>>() }))
        }
        "tools/call" => call(params, sandbox).await,
        _ => Err((-32601, format!("there is no method `{}` here", short(method)))),
    };
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, words)) => error(id, code, &words),
    })
}

pub fn error(id: Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

fn welcome(params: &Value) -> Value {
    let wanted = params["protocolVersion"].as_str().unwrap_or_default();
    let version = VERSIONS.iter().find(|version| **version == wanted).unwrap_or(&VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": { "listChanged": false } },
        "serverInfo": {
            "name": "bellglass", "title": "Bellglass", "version": env!("CARGO_PKG_VERSION"),
        },
        "instructions": INSTRUCTIONS,
    })
}

fn listed(tool: &ToolListing) -> Value {
    json!({ "name": tool.name, "description": tool.description, "inputSchema": tool.schema })
}

async fn call(params: &Value, sandbox: &dyn Sandboxed) -> Result<Value, (i32, String)> {
    let name = params["name"].as_str().unwrap_or_default();
    if !sandbox.tools().iter().any(|tool| tool.name == name) {
        return Err((-32602, format!("there is no tool named `{}`", short(name))));
    }
    let arguments = match &params["arguments"] {
        Value::Null => json!({}),
        arguments => arguments.clone(),
    };
    // What goes wrong with a tool is for the model to read, not for its program.
    let answer = sandbox.call(name, arguments).await;
    let answer = answer.unwrap_or_else(ToolAnswer::failure);
    let mut content = vec![json!({ "type": "text", "text": answer.text })];
    content.extend(answer.pictures.iter().map(|picture| {
        let data = encode_base64(&picture.content);
        json!({ "type": "image", "mimeType": picture.media_type, "data": data })
    }));
    Ok(json!({ "content": content, "isError": answer.failed }))
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    #[async_trait]
    impl Sandboxed for Echo {
        fn tools(&self) -> Vec<ToolListing> {
            let (name, description) = ("echo".into(), "Says it again.".into());
            vec![ToolListing { name, description, schema: json!({ "type": "object" }) }]
        }

        async fn call(&self, _: &str, arguments: Value) -> Result<ToolAnswer, String> {
            match arguments["text"].as_str() {
                Some(text) => {
                    let content = Bytes::from_static(b"PNG");
                    let picture = ToolPicture { media_type: "image/png".into(), content };
                    let pictures = vec![picture];
                    Ok(ToolAnswer { text: text.into(), failed: false, pictures })
                }
                None => Err("there is no text".into()),
            }
        }
    }

    #[tokio::test]
    async fn messages_are_answered_as_the_protocol_wants() {
        for (message, expected) in [
            (json!({ "id": 1, "method": "ping" }), Some(json!({ "result": {} }))),
            (
                json!({ "id": "a", "method": "initialize", "params": { "protocolVersion": "2025-03-26" } }),
                Some(json!({ "result": { "protocolVersion": "2025-03-26" } })),
            ),
            (
                json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": "1999" } }),
                Some(json!({ "result": { "protocolVersion": VERSIONS[0] } })),
            ),
            (
                json!({ "id": 1, "method": "tools/list" }),
                Some(json!({ "result": { "tools": [{ "name": "echo" }] } })),
            ),
            (
                json!({ "id": 1, "method": "tools/call", "params": { "name": "echo", "arguments": { "text": "x" } } }),
                Some(json!({ "result": { "content": [
                        { "type": "text", "text": "x" },
                        { "type": "image", "mimeType": "image/png", "data": "UE5H" },
                    ], "isError": false } })),
            ),
            (
                json!({ "id": 1, "method": "tools/call", "params": { "name": "echo" } }),
                Some(json!({ "result": { "isError": true } })),
            ),
            (
                json!({ "id": 1, "method": "tools/call", "params": { "name": "fly" } }),
                Some(json!({ "error": { "code": -32602 } })),
            ),
            (json!({ "id": 1, "method": "x" }), Some(json!({ "error": { "code": -32601 } }))),
            (json!({ "id": [], "method": "x" }), Some(json!({ "error": { "code": -32600 } }))),
            (json!([]), Some(json!({ "error": { "code": -32600 } }))),
            (json!({ "method": "notifications/initialized" }), None),
            (json!({ "id": 3, "result": {} }), None),
        ] {
            let answered = answer(&message, &Echo).await;
            match (answered, expected) {
                (None, None) => {}
                (Some(answered), Some(expected)) => {
                    assert!(holds(&answered, &expected), "{message}: {answered}");
                    assert!(answered["id"] == message["id"] || answered["id"].is_null());
                }
                (answered, _) => panic!("{message}: {answered:?}"),
            }
        }
    }

    fn holds(whole: &Value, part: &Value) -> bool {
        match part {
            Value::Object(fields) => fields.iter().all(|(name, part)| holds(&whole[name], part)),
            Value::Array(items) => {
                items.iter().enumerate().all(|(at, part)| holds(&whole[at], part))
            }
            part => whole == part,
        }
    }
}
