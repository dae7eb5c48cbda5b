//! `docs/tools.md`: made from the API document, and kept current.

use serde_json::Value;

/// The page from the schemas of the calls.
fn page(document: &Value) -> String {
    let mut page = String::from(
        "# Tools\n\nWhat a step may ask for. Steps of a playbook, calls of a model and calls over MCP have \
         the same\nfields. This page is made from the definitions (`crates/protocol/src/tool.rs`); \
         `UPDATE_OPENAPI=1\ncargo test -p bellglass-server` writes it anew.\n",
    );
    for call in document["components"]["schemas"]["ToolCall"]["oneOf"].as_array().unwrap() {
        let fields = call["properties"].as_object().unwrap();
        let name = fields["tool"]["enum"][0].as_str().unwrap();
        let words = one_line(call["description"].as_str().unwrap());
        page.push_str(&format!("\n## {name}\n\n{words}\n"));
        let others: Vec<_> = fields.iter().filter(|(field, _)| *field != "tool").collect();
        if others.is_empty() {
            continue;
        }
        page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
        let required = call["required"].as_array().unwrap();
        for (field, schema) in others {
            let needed = if required.iter().any(|r| r == field) { "" } else { " (optional)" };
            let words = one_line(words_of(schema));
            assert!(!words.is_empty(), "{name}.{field} says nothing about itself");
            let kind = kind(document, schema);
            page.push_str(&format!("| `{field}` | {kind}{needed} | {words} |\n"));
        }
    }
    page
}

/// What may be left out has its words beside the one choice that is not null.
fn words_of(schema: &Value) -> &str {
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    let mut all = std::iter::once(schema).chain(choices);
    all.find_map(|schema| schema["description"].as_str()).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A schema in a few words.
fn kind(document: &Value, schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return kind(document, &document["components"]["schemas"][name]);
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        return words.join(" or ");
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let kinds: Vec<String> = choices
                .iter()
                .filter(|choice| choice["type"] != "null")
                .map(|choice| kind(document, choice))
                .collect();
            return kinds.join(" or ");
        }
    }
    match &schema["type"] {
        Value::String(word) if word == "array" => {
            format!("list of {}", kind(document, &schema["items"]))
        }
        Value::String(word) if word == "object" && schema["properties"].is_object() => {
            let fields = schema["properties"].as_object().unwrap();
            let fields: Vec<String> = fields
                .iter()
                .map(|(field, inner)| format!("`{field}`: {}", kind(document, inner)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::String(word) => word.clone(),
        Value::Array(words) => {
            let words: Vec<&str> =
                words.iter().filter_map(Value::as_str).filter(|word| *word != "null").collect();
            words.join(" or ")
        }
        _ => "value".into(),
    }
}

#[test]
fn the_page_of_tools_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tools.md");
    let document = serde_json::to_value(bellglass_server::openapi()).unwrap();
    let page = page(&document);
    for name in bellglass_protocol::tool::ToolCall::NAMES {
        assert!(page.contains(&format!("\n## {name}\n")), "{name} is not on the page");
        let words = bellglass_protocol::tool::ToolCall::description(name).unwrap();
        assert!(page.contains(&one_line(words)), "{name} is described differently");
    }
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == page,
        "the tools have changed; write their page anew with UPDATE_OPENAPI=1 cargo test -p bellglass-server"
    );
}
