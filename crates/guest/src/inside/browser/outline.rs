//! A page as text: what it says, and what can be worked on, each with a number to refer to it by.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// The longest outline.
const LONGEST: usize = 60 << 10;
/// Levels of a page that are followed.
const DEEPEST: usize = 400;

/// Kinds of things that a person works on.
const WORKED_ON: [&str; 18] = [
    "button",
    "checkbox",
    "combobox",
    "link",
    "listbox",
    "menuitem",
    "option",
    "radio",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
    "Date",
    "DateTime",
    "InputTime",
    "ColorWell",
];

/// Kinds of things that give a page its order.
const ORDERING: [&str; 12] = [
    "heading",
    "image",
    "img",
    "list",
    "listitem",
    "table",
    "row",
    "cell",
    "navigation",
    "main",
    "form",
    "dialog",
];

/// Puts an accessibility tree into words.
pub(super) fn outline(tree: &Value) -> String {
    let nodes = tree["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let by_id: HashMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["nodeId"].as_str()?, node))).collect();
    let mut page = Page { text: String::new(), by_id };
    if let Some(root) = nodes.first() {
        page.show(root, 0, 0, "");
    }
    if page.text.len() > LONGEST {
        page.text.truncate(page.text.floor_char_boundary(LONGEST));
        page.text.push_str("\n[the page goes on; scroll or open a part of it]\n");
    }
    page.text
}

/// The numbers of all that can be worked on and has this name.
pub(super) fn named(tree: &Value, name: &str) -> Vec<u64> {
    let nodes = tree["nodes"].as_array().into_iter().flatten();
    let is_meant = |node: &&Value| {
        let word = |field: &str| node[field]["value"].as_str().unwrap_or_default();
        node["ignored"] != true && WORKED_ON.contains(&word("role")) && word("name").trim() == name
    };
    nodes.filter(is_meant).filter_map(|node| node["backendDOMNodeId"].as_u64()).collect()
}

struct Page<'a> {
    text: String,
    /// What was not shown yet.
    by_id: HashMap<&'a str, &'a Value>,
}

impl Page<'_> {
    fn show(&mut self, node: &Value, indent: usize, depth: usize, above: &str) {
        if depth > DEEPEST || self.text.len() > LONGEST {
            return;
        }
        let word = |field: &str| node[field]["value"].as_str().unwrap_or_default();
        let (role, name) = (word("role"), word("name").trim());
        let ignored = node["ignored"] == true;
        let mut inner = indent;
        let mut said = above;
        if !ignored && WORKED_ON.contains(&role) {
            let number = node["backendDOMNodeId"].as_u64().unwrap_or_default();
            self.line(indent, &format!("[{number}] {role} {name:?}{}", state(node)));
            (inner, said) = (indent + 1, name);
        } else if !ignored && ORDERING.contains(&role) {
            if !name.is_empty() {
                self.line(indent, &format!("{role}: {name}"));
                said = name;
                inner = indent + 1;
            }
        } else if !ignored && role == "StaticText" && !name.is_empty() && name != above {
            self.line(indent, name);
            return;
        }
        let children = node["childIds"].as_array().into_iter().flatten();
        for child in children.filter_map(Value::as_str).collect::<Vec<_>>() {
            if let Some(child) = self.by_id.remove(child) {
                self.show(child, inner, depth + 1, said);
            }
        }
    }

    fn line(&mut self, indent: usize, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(self.text, "{}{text}", "  ".repeat(indent.min(20)));
    }
}

/// What a thing is set to.
fn state(node: &Value) -> String {
    let mut text = String::new();
    match &node["value"]["value"] {
        Value::String(value) if !value.is_empty() => text.push_str(&format!(" = {value:?}")),
        Value::Number(value) => text.push_str(&format!(" = {value}")),
        _ => {}
    }
    for property in node["properties"].as_array().into_iter().flatten() {
        let name = property["name"].as_str().unwrap_or_default();
        let value = &property["value"]["value"];
        match name {
            "checked" | "selected" | "expanded" | "disabled"
                if value == true || value == "true" =>
            {
                text.push_str(&format!(" ({name})"));
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_becomes_an_outline() {
        let tree = json!({"nodes": [
            {"nodeId": "1", "role": {"value": "RootWebArea"}, "name": {"value": "T"}, "childIds": ["2", "3", "5"]},
            {"nodeId": "2", "role": {"value": "heading"}, "name": {"value": "Hello"}, "childIds": ["4"]},
            {"nodeId": "3", "role": {"value": "textbox"}, "name": {"value": "Name"}, "backendDOMNodeId": 7,
             "value": {"value": "Ada"}, "properties": [{"name": "disabled", "value": {"value": true}}]},
            {"nodeId": "4", "role": {"value": "StaticText"}, "name": {"value": "Hello"}},
            {"nodeId": "5", "ignored": true, "childIds": ["6"]},
            {"nodeId": "6", "role": {"value": "StaticText"}, "name": {"value": "a\nb"}},
        ]});
        assert_eq!(
            outline(&tree),
            "heading: Hello\n[7] textbox \"Name\" = \"Ada\" (disabled)\na b\n"
        );
    }

    #[test]
    fn things_are_found_by_their_names() {
        let node = |id: u64, role: &str, name: &str| json!({"role": {"value": role}, "name": {"value": name}, "backendDOMNodeId": id});
        let tree = json!({"nodes": [node(1, "heading", "Send"), node(2, "button", "Send"), node(3, "link", "Send ")]});
        assert_eq!((named(&tree, "Send"), named(&tree, "send")), (vec![2, 3], vec![]));
    }

    #[test]
    fn circles_end() {
        assert_eq!(outline(&json!({})), "");
        let one = json!({"nodes": [{"nodeId": "1", "role": {"value": "generic"}, "childIds": ["1", "1"]}]});
        assert_eq!(outline(&one), "");
    }
}
