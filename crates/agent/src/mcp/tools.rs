//! What a server says about its tools and their results, as far as a model is shown it. Pure.

use bellglass_protocol::mcp::MCP_PREFIX;
use serde_json::{Value, json};

use crate::drive::OtherResult;
use crate::model::ToolDefinition;

/// Tools of one server.
const MOST_TOOLS: usize = 128;
/// Model servers take no longer names.
const LONGEST_NAME: usize = 64;
const LONGEST_DESCRIPTION: usize = 4000;
const LARGEST_SCHEMA: usize = 32 << 10;
/// The most of a result that is recorded; a model is shown less of it.
const LONGEST_RESULT: usize = 256 << 10;

/// Takes the tools of one page of a server's list.
pub(super) fn add_page(server: &str, page: &Value, found: &mut Vec<(ToolDefinition, String)>) {
    for tool in page["tools"].as_array().into_iter().flatten() {
        if found.len() >= MOST_TOOLS {
            return;
        }
        let Some(own_name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
            continue;
        };
        let name = offered_name(server, own_name, found);
        let description =
            clip(tool["description"].as_str().unwrap_or_default(), LONGEST_DESCRIPTION);
        let schema = &tool["inputSchema"];
        let fits = schema["type"] == "object" && schema.to_string().len() <= LARGEST_SCHEMA;
        let parameters = if fits { schema.clone() } else { json!({ "type": "object" }) };
        let offered = ToolDefinition { name, description, parameters };
        found.push((offered, own_name.to_owned()));
    }
}

/// A name that says where the tool is from, that models accept, and that no other tool has.
fn offered_name(server: &str, name: &str, taken: &[(ToolDefinition, String)]) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let mut whole: String = format!("{MCP_PREFIX}{server}__{name}").chars().map(fit).collect();
    whole.truncate(LONGEST_NAME);
    let is_taken = |name: &str| taken.iter().any(|(tool, _)| tool.name == name);
    let mut number = 2;
    let mut free = whole.clone();
    while is_taken(&free) {
        let end = format!("_{number}");
        free = format!("{}{end}", &whole[..whole.len().min(LONGEST_NAME - end.len())]);
        number += 1;
    }
    free
}

pub(super) fn result(result: &Value) -> OtherResult {
    OtherResult { text: result_text(result), failed: result["isError"] == true }
}

/// A result in words. Pictures and sounds are only named.
pub fn result_text(result: &Value) -> String {
    let mut texts = Vec::new();
    for part in result["content"].as_array().into_iter().flatten() {
        texts.push(match part["type"].as_str() {
            Some("text") => part["text"].as_str().unwrap_or_default().to_owned(),
            Some("resource") => match part["resource"]["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[a resource: {}]", short(&part["resource"]["uri"])),
            },
            Some("resource_link") => format!("[a resource: {}]", short(&part["uri"])),
            Some(kind @ ("image" | "audio")) => {
                format!("[{kind}, {}, not shown]", short(&part["mimeType"]))
            }
            _ => "[something that cannot be shown]".into(),
        });
    }
    if texts.is_empty() && !result["structuredContent"].is_null() {
        texts.push(result["structuredContent"].to_string());
    }
    clip(&texts.join("\n"), LONGEST_RESULT)
}

fn short(value: &Value) -> String {
    clip(value.as_str().unwrap_or_default(), 200)
}

fn clip(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => {
            let kept = &text[..text.floor_char_boundary(most)];
            format!("{kept}\n[… {} bytes left out …]", text.len() - kept.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_get_names_that_models_accept_and_keep_apart() {
        let long = "x".repeat(100);
        let page = json!({ "tools": [
            { "name": "read", "description": "Reads.", "inputSchema": { "type": "object", "properties": { "a": {} } } },
            { "name": "a.b c" }, { "name": "a_b c" }, { "name": long }, { "name": format!("{long}y") },
            { "name": "" }, { "no": "name" },
        ]});
        let mut found = Vec::new();
        add_page("git", &page, &mut found);
        let names: Vec<&str> = found.iter().map(|(tool, _)| tool.name.as_str()).collect();
        assert_eq!(names[..3], ["mcp__git__read", "mcp__git__a_b_c", "mcp__git__a_b_c_2"]);
        assert_eq!(names.len(), 5);
        assert!(names.iter().all(|name| name.len() <= LONGEST_NAME));
        assert_ne!(names[3], names[4]);
        assert_eq!(found[0].0.parameters["properties"], json!({ "a": {} }));
        assert_eq!(found[1].0.parameters, json!({ "type": "object" }));
        assert_eq!(found[1].1, "a.b c");
    }

    #[test]
    fn results_become_bounded_words() {
        let result = json!({ "content": [
            { "type": "text", "text": "hello" },
            { "type": "image", "mimeType": "image/png", "data": "xxxx" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "inside" } },
            { "type": "strange" },
        ]});
        let text = result_text(&result);
        assert_eq!(
            text,
            "hello\n[image, image/png, not shown]\ninside\n[something that cannot be shown]"
        );
        let structured = json!({ "content": [], "structuredContent": { "a": 1 } });
        assert_eq!(result_text(&structured), r#"{"a":1}"#);
        let long = json!({ "content": [{ "type": "text", "text": "é".repeat(LONGEST_RESULT) }] });
        assert!(result_text(&long).len() < LONGEST_RESULT + 100);
    }
}
