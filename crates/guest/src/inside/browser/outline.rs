//! A page as text: what it says, and what can be worked on, each with a number to refer to it by.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::devtools::LONGEST_MESSAGE;

/// What all trees of a page may have together, as bytes of the messages that they came in: a page may have many
/// frames, and each of them as long a tree as any message.
const MOST_OF_TREES: usize = LONGEST_MESSAGE;
/// The longest outline.
const LONGEST: usize = 60 << 10;
/// What stands below one that was cut.
const GOES_ON: &str = "\n[the page goes on: `script` gives more of its text, such as \
    document.body.innerText.slice(50000, 100000), and `name` reaches what is not shown here]\n";
/// What is shown of the address of a frame.
const LONGEST_ADDRESS: usize = 500;
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

/// The accessibility trees of a page and of the frames in it.
pub(super) struct Outline {
    tree: Value,
    /// By the number of the element that shows it.
    frames: HashMap<u64, Frame>,
    /// For trees of further frames.
    room: usize,
}

/// A page within a page.
pub(super) struct Frame {
    pub(super) address: String,
    pub(super) inside: Inside,
}

/// What is known of a page within a page.
pub(super) enum Inside {
    Tree(Value),
    /// It cannot be read from here.
    OfAnotherSite,
    /// It would be too much beside the others.
    LeftOut,
}

impl Outline {
    /// Of a page's own tree, which came in so many bytes.
    pub(super) fn of(tree: Value, bytes: usize) -> Self {
        let room = MOST_OF_TREES.saturating_sub(bytes);
        Self { tree, frames: HashMap::new(), room }
    }

    /// Keeps the tree of a frame, which came in so many bytes, if there is room for it.
    pub(super) fn take_in(&mut self, tree: Value, bytes: usize) -> Inside {
        match self.room.checked_sub(bytes) {
            Some(room) => {
                self.room = room;
                Inside::Tree(tree)
            }
            None => Inside::LeftOut,
        }
    }

    pub(super) fn add_frame(&mut self, owner: u64, frame: Frame) {
        self.frames.insert(owner, frame);
    }

    /// All of it in words.
    pub(super) fn text(&self) -> String {
        let frames = self.frames.iter().map(|(owner, frame)| (*owner, frame)).collect();
        let mut page = Page { text: String::new(), by_id: HashMap::new(), frames };
        page.show_tree(&self.tree, 0, 0);
        if page.text.len() > LONGEST {
            page.text.truncate(page.text.floor_char_boundary(LONGEST));
            page.text.push_str(GOES_ON);
        }
        page.text
    }

    /// The numbers of all that can be worked on and has this name.
    pub(super) fn named(&self, name: &str) -> Vec<u64> {
        let trees = self.frames.values().filter_map(|frame| match &frame.inside {
            Inside::Tree(tree) => Some(tree),
            Inside::OfAnotherSite | Inside::LeftOut => None,
        });
        let nodes = [&self.tree].into_iter().chain(trees).flat_map(nodes_of);
        let is_meant = |node: &&Value| {
            let word = |field: &str| node[field]["value"].as_str().unwrap_or_default();
            let is_named = word("name").trim() == name;
            node["ignored"] != true && WORKED_ON.contains(&word("role")) && is_named
        };
        let mut numbers: Vec<u64> =
            nodes.filter(is_meant).filter_map(|node| node["backendDOMNodeId"].as_u64()).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn nodes_of(tree: &Value) -> &[Value] {
    tree["nodes"].as_array().map(Vec::as_slice).unwrap_or_default()
}

struct Page<'a> {
    text: String,
    /// What was not shown yet: nodes of the tree that is shown now, and frames.
    by_id: HashMap<&'a str, &'a Value>,
    frames: HashMap<u64, &'a Frame>,
}

impl<'a> Page<'a> {
    fn show_tree(&mut self, tree: &'a Value, indent: usize, depth: usize) {
        let nodes = nodes_of(tree);
        let by_id = nodes.iter().filter_map(|node| Some((node["nodeId"].as_str()?, node)));
        let around = std::mem::replace(&mut self.by_id, by_id.collect());
        if let Some(root) = nodes.first() {
            self.show(root, indent, depth, "");
        }
        self.by_id = around;
    }

    fn show_frame(&mut self, frame: &'a Frame, indent: usize, depth: usize) {
        let end = frame.address.floor_char_boundary(LONGEST_ADDRESS);
        let address = &frame.address[..end];
        let words = match &frame.inside {
            Inside::Tree(tree) => {
                self.line(indent, &format!("frame: {address}"));
                return self.show_tree(tree, indent + 1, depth + 1);
            }
            Inside::OfAnotherSite => {
                format!("frame of another site: {address} (`open` it to read it)")
            }
            Inside::LeftOut => {
                format!(
                    "frame: {address} (left out, as the page is too large; `open` it to read it)"
                )
            }
        };
        self.line(indent, &words);
    }

    fn show(&mut self, node: &'a Value, indent: usize, depth: usize, above: &str) {
        if depth > DEEPEST || self.text.len() > LONGEST {
            return;
        }
        let shown_by = node["backendDOMNodeId"].as_u64();
        if let Some(frame) = shown_by.and_then(|owner| self.frames.remove(&owner)) {
            return self.show_frame(frame, indent, depth);
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
            Outline::of(tree, 0).text(),
            "heading: Hello\n[7] textbox \"Name\" = \"Ada\" (disabled)\na b\n"
        );
    }

    #[test]
    fn things_are_found_by_their_names() {
        let node = |id: u64, role: &str, name: &str| json!({"role": {"value": role}, "name": {"value": name}, "backendDOMNodeId": id});
        let tree = json!({"nodes": [node(1, "heading", "Send"), node(2, "button", "Send"), node(3, "link", "Send ")]});
        let outline = Outline::of(tree, 0);
        assert_eq!((outline.named("Send"), outline.named("send")), (vec![2, 3], vec![]));
    }

    #[test]
    fn frames_stand_where_they_are_shown() {
        let word = |id: &str, text: &str| json!({"nodeId": id, "role": {"value": "StaticText"}, "name": {"value": text}});
        let within = |word: Value, owner: u64| {
            json!({"nodes": [
                {"nodeId": "1", "role": {"value": "RootWebArea"}, "childIds": ["2", "3"]},
                word,
                {"nodeId": "3", "ignored": owner == 9, "role": {"value": "Iframe"}, "backendDOMNodeId": owner},
            ]})
        };
        let mut outline = Outline::of(within(word("2", "outside"), 7), 0);
        let button = json!({"nodeId": "2", "role": {"value": "button"}, "name": {"value": "Go"}, "backendDOMNodeId": 8});
        let frame = |address: &str, inside| Frame { address: address.into(), inside };
        outline.add_frame(7, frame("http://a/", Inside::Tree(within(button, 9))));
        outline.add_frame(9, frame("http://b/", Inside::OfAnotherSite));
        // One that shows itself, as no browser would tell.
        outline.add_frame(8, frame("http://c/", Inside::Tree(within(word("2", "round"), 8))));
        assert_eq!(outline.named("Go"), [8]);
        assert_eq!(
            outline.text(),
            "outside\nframe: http://a/\n  frame: http://c/\n    round\n\
             \x20 frame of another site: http://b/ (`open` it to read it)\n"
        );
    }

    #[test]
    fn all_trees_together_are_bounded() {
        let leaf = |text: &str| json!({"nodes": [{"nodeId": "1", "role": {"value": "StaticText"}, "name": {"value": text}}]});
        let shown = |owner: u64| json!({"nodeId": owner.to_string(), "role": {"value": "Iframe"}, "backendDOMNodeId": owner});
        let root =
            json!({"nodeId": "1", "role": {"value": "RootWebArea"}, "childIds": ["2", "3", "4"]});
        let page = json!({"nodes": [root, shown(2), shown(3), shown(4)]});
        let half = MOST_OF_TREES / 2;
        let mut outline = Outline::of(page, half);
        for (owner, text, bytes) in [(2, "one", half - 9), (3, "two", 10), (4, "three", 9)] {
            let inside = outline.take_in(leaf(text), bytes);
            outline.add_frame(owner, Frame { address: format!("http://{text}/"), inside });
        }
        assert_eq!(
            outline.text(),
            "frame: http://one/\n  one\n\
             frame: http://two/ (left out, as the page is too large; `open` it to read it)\n\
             frame: http://three/\n  three\n"
        );
    }

    #[test]
    fn a_page_that_is_too_long_says_how_to_read_on() {
        let numbers = || 2..10_000;
        let words: Vec<Value> = numbers()
            .map(|n| json!({"nodeId": n.to_string(), "role": {"value": "StaticText"}, "name": {"value": format!("word {n}")}}))
            .collect();
        let ids: Vec<String> = numbers().map(|n| n.to_string()).collect();
        let root = json!({"nodeId": "1", "role": {"value": "RootWebArea"}, "childIds": ids});
        let nodes = [vec![root], words].concat();
        let text = Outline::of(json!({ "nodes": nodes }), 0).text();
        assert!(text.starts_with("word 2\n") && text.ends_with(GOES_ON));
        assert!(text.len() <= LONGEST + GOES_ON.len());
    }

    #[test]
    fn circles_end() {
        assert_eq!(Outline::of(json!({}), 0).text(), "");
        let one = json!({"nodes": [{"nodeId": "1", "role": {"value": "generic"}, "childIds": ["1", "1"]}]});
        assert_eq!(Outline::of(one, 0).text(), "");
    }
}
