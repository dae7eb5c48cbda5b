//! The tools that a model is offered, each from its one definition: those of the sandbox from
//! `ToolCall`, those of the loop from [`own`].

mod descriptions;
pub mod own;
mod schema;

use bellglass_protocol::tool::ToolCall;
use serde_json::Value;

use crate::model::ToolDefinition;
use own::OwnCall;

/// A model's call as it is understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Understood {
    /// To be run in the sandbox.
    Sandbox(ToolCall),
    /// To be answered by the loop itself.
    Own(OwnCall),
    /// To be passed on to a tool that is not ours.
    Other(Value),
    /// A mistake, in words that say how to do better.
    Mistake(String),
}

/// All tools, in an order that never changes within a conversation.
pub fn definitions() -> Vec<ToolDefinition> {
    let sandbox = schema::variants::<ToolCall>("tool");
    let own = schema::variants::<OwnCall>("tool");
    let all = own.into_iter().chain(sandbox);
    all.map(|(name, parameters)| {
        let description = descriptions::of(&name).to_owned();
        ToolDefinition { name, description, parameters }
    })
    .collect()
}

/// Reads a call of a model's. `others` are the tools that are not ours.
pub fn understand(name: &str, arguments: &str, others: &[ToolDefinition]) -> Understood {
    let is_sandbox = ToolCall::NAMES.contains(&name);
    let is_other = others.iter().any(|tool| tool.name == name);
    if !is_sandbox && !is_other && !OwnCall::NAMES.contains(&name) {
        let ours = OwnCall::NAMES.iter().chain(&ToolCall::NAMES).copied();
        let names: Vec<&str> = ours.chain(others.iter().map(|tool| tool.name.as_str())).collect();
        return Understood::Mistake(format!(
            "there is no tool named `{}`; the tools are {}",
            short(name),
            names.join(", ")
        ));
    }
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let mut value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            return Understood::Mistake(format!(
                "the arguments of `{name}` are not valid JSON: {error}. Call the tool again with \
                 one whole JSON object"
            ));
        }
    };
    let Some(fields) = value.as_object_mut() else {
        return Understood::Mistake(format!("the arguments of `{name}` must be one JSON object"));
    };
    if is_other {
        return Understood::Other(value);
    }
    // Models write null for what they leave out.
    fields.retain(|_, value| !value.is_null());
    fields.insert("tool".into(), name.into());
    let understood = if is_sandbox {
        serde_json::from_value(value).map(Understood::Sandbox)
    } else {
        serde_json::from_value(value).map(Understood::Own)
    };
    understood.unwrap_or_else(|error| {
        Understood::Mistake(format!(
            "the arguments of `{name}` do not fit: {error}. Look at the tool's parameters and call \
             it again"
        ))
    })
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_offered_with_a_schema_and_words_of_its_own() {
        let tools = definitions();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let expected: Vec<&str> = OwnCall::NAMES.iter().chain(&ToolCall::NAMES).copied().collect();
        assert_eq!(names, expected);
        for tool in &tools {
            assert!(tool.description.len() > 80, "describe {} in descriptions.rs", tool.name);
            let parameters = &tool.parameters;
            assert_eq!(parameters["type"], "object", "{}", tool.name);
            assert_eq!(parameters["additionalProperties"], false, "{}", tool.name);
            let text = parameters.to_string();
            assert!(!text.contains("$ref") && !text.contains("\"null\""), "{}: {text}", tool.name);
            for (field, schema) in parameters["properties"].as_object().unwrap() {
                assert!(schema["description"].is_string(), "{}.{field} says nothing", tool.name);
            }
        }
    }

    #[test]
    fn calls_are_understood_or_the_mistake_is_named() {
        let name = "mcp__a__b".to_owned();
        let description = String::new();
        let others = [ToolDefinition { name, description, parameters: Value::Null }];
        for (name, arguments, part) in [
            ("shell", r#"{"command":"ls","cwd":null}"#, "Sandbox(Shell"),
            ("list_files", "", "Sandbox(ListFiles"),
            ("finish", r#"{"outcome":"done","summary":"ok"}"#, "Own(Finish"),
            ("fly", "{}", "there is no tool named `fly`"),
            ("shell", "{\"command\":", "not valid JSON"),
            ("shell", "[1]", "one JSON object"),
            ("shell", "{}", "missing field `command`"),
            ("shell", r#"{"command":"ls","x":1}"#, "unknown field `x`"),
            ("mcp__a__b", r#"{"x":null}"#, "Other(Object {\"x\": Null})"),
            ("mcp__a__b", "[]", "one JSON object"),
        ] {
            let understood = format!("{:?}", understand(name, arguments, &others));
            assert!(understood.contains(part), "{name} {arguments}: {understood}");
        }
    }
}
