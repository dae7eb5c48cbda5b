//! Our MCP client alone, for MCP's own conformance suite: greets the server whose address is the last
//! argument, and calls each of its tools once. Called by `scripts/mcp-conformance.sh`.

use std::collections::BTreeMap;

use bellglass_agent::mcp::http::{HttpPeer, Reach};
use bellglass_agent::mcp::{Connected, PATIENCE};
use serde_json::{Map, Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args().next_back().expect("the address of an MCP server");
    let peer = HttpPeer::new(&url, BTreeMap::new(), Reach::Anywhere).expect("an address");
    let server = Connected::greet("suite", Box::new(peer), PATIENCE).await;
    let server = server.unwrap_or_else(|error| panic!("the server cannot be used: {error}"));
    for tool in server.definitions() {
        let called = server.call(&tool.name, &arguments(&tool.parameters)).await;
        let result = called.expect("it is a tool of this server");
        println!("{}: {}", tool.name, result.text);
        assert!(!result.failed, "{} failed", tool.name);
    }
}

/// Something for every argument that has to be there.
fn arguments(schema: &Value) -> Value {
    let mut arguments = Map::new();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let value = match schema["properties"][name]["type"].as_str() {
            Some("number" | "integer") => json!(5),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("five"),
        };
        arguments.insert(name.to_owned(), value);
    }
    arguments.into()
}
