//! What a cell gave: text for whoever reads along, attachments, and outputs for the notebook.

use bellglass_protocol::step::{OutputStream, ToolError, decode_base64};
use bellglass_protocol::wire::{MAX_ATTACHMENT, MAX_ATTACHMENTS};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::message::Message;
use crate::inside::answer::Given;
use crate::inside::failure::failure;

/// Printed text of one cell that the notebook keeps.
const MOST_PRINTED: usize = 1 << 20;

/// What an output costs beside its text.
const OF_AN_OUTPUT: usize = 256;

/// Results and errors of one cell that it keeps, in bytes: a loop that shows pictures must not fill the memory.
const MOST_SHOWN: usize = 32 << 20;

/// Rich forms that are worth more than text, best first.
const RICH: [&str; 9] = [
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/svg+xml",
    "text/html",
    "text/markdown",
    "text/latex",
    "application/json",
    "application/vnd.vegalite.v5+json",
];

#[derive(Default)]
pub(super) struct Cell {
    pub(super) outputs: Vec<Value>,
    pub(super) attachments: Vec<Given>,
    pub(super) error: Option<ToolError>,
    pub(super) count: Option<u64>,
    /// Whether the code asked that its kernel end after it.
    pub(super) exits: bool,
    printed: usize,
    shown: usize,
    /// Rich forms that are not among the attachments, since there were enough of them already.
    too_many: usize,
    /// Those that are too large for one.
    too_large: usize,
}

impl Cell {
    /// Takes an output. Returns what is to be shown of it as text.
    pub(super) fn take(&mut self, message: Message) -> Option<(OutputStream, String)> {
        let content = message.content;
        match message.kind.as_str() {
            "stream" => {
                let text = content["text"].as_str()?.to_owned();
                let (stream, name) = match content["name"].as_str() {
                    Some("stderr") => (OutputStream::Stderr, "stderr"),
                    _ => (OutputStream::Stdout, "stdout"),
                };
                self.print(name, &text);
                Some((stream, text))
            }
            "display_data" | "execute_result" | "update_display_data" => {
                let kind = if message.kind == "execute_result" {
                    "execute_result"
                } else {
                    "display_data"
                };
                let data = content["data"].as_object().cloned().unwrap_or_default();
                let text = self.rich(&data);
                let metadata = content["metadata"].as_object().cloned().unwrap_or_default();
                let mut output = json!({"output_type": kind, "data": data, "metadata": metadata});
                if kind == "execute_result" {
                    output["execution_count"] = content["execution_count"].clone();
                }
                self.keep(output);
                text.map(|text| (OutputStream::Stdout, text))
            }
            "error" => {
                let word = |field: &str| content[field].as_str().unwrap_or_default().to_owned();
                let trace: Vec<&str> = content["traceback"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                let (name, value) = (word("ename"), word("evalue"));
                let mut text = without_colours(&trace.join("\n"));
                if text.trim().is_empty() {
                    text = format!("{name}: {value}");
                }
                text.push('\n');
                self.error =
                    Some(failure("exception", format!("{name}: {}", without_colours(&value))));
                self.keep(json!({
                    "output_type": "error", "ename": name, "evalue": value, "traceback": trace,
                }));
                Some((OutputStream::Stderr, text))
            }
            _ => None,
        }
    }

    /// Takes the answer to the request that ran the code.
    pub(super) fn end(&mut self, reply: &Value) {
        self.count = reply["execution_count"].as_u64();
        self.exits = reply["payload"].as_array().into_iter().flatten().any(|payload| {
            payload["source"] == "ask_exit" && payload["keepkernel"] != Value::Bool(true)
        });
    }

    /// Says which rich outputs are not among the attachments.
    pub(super) fn left_out(&self) -> Option<String> {
        let reasons = [
            (self.too_many, format!("a call gives at most {MAX_ATTACHMENTS}")),
            (self.too_large, format!("one may have at most {} MiB", MAX_ATTACHMENT >> 20)),
        ];
        let said: Vec<String> = reasons
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, why)| match count {
                1 => format!("1 rich output was left out: {why}"),
                _ => format!("{count} rich outputs were left out: {why}"),
            })
            .collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Keeps a result or an error for the notebook, as long as there is room.
    fn keep(&mut self, output: Value) {
        if self.shown >= MOST_SHOWN {
            return;
        }
        self.shown += size(&output);
        self.outputs.push(if self.shown < MOST_SHOWN {
            output
        } else {
            json!({"output_type": "stream", "name": "stderr", "text": "[further results were left out]\n"})
        });
    }

    fn print(&mut self, name: &str, text: &str) {
        if self.printed >= MOST_PRINTED {
            return;
        }
        let is_more = self
            .outputs
            .last()
            .is_some_and(|last| last["output_type"] == "stream" && last["name"] == name);
        // Code that writes here and there in turn makes an output of each word.
        self.printed += if is_more { 0 } else { OF_AN_OUTPUT };
        let room = text.floor_char_boundary(MOST_PRINTED.saturating_sub(self.printed));
        self.printed += text.len();
        let mut kept = text[..room.min(text.len())].to_owned();
        if self.printed >= MOST_PRINTED {
            kept.push_str("\n[the rest was left out]\n");
        }
        match self.outputs.last_mut() {
            Some(last) if is_more => {
                // In its place: code may print so often that copies would hold it up.
                if let Value::String(text) = &mut last["text"] {
                    text.push_str(&kept);
                }
            }
            _ => self.outputs.push(json!({"output_type": "stream", "name": name, "text": kept})),
        }
    }

    /// Keeps the rich forms of a result. Returns its plain form.
    fn rich(&mut self, data: &Map<String, Value>) -> Option<String> {
        for media_type in RICH {
            let Some(value) = data.get(media_type) else { continue };
            let is_image = media_type.starts_with("image/") && !media_type.ends_with("+xml");
            let content = match value {
                Value::String(text) if is_image => decode_base64(text).unwrap_or_default(),
                Value::String(text) => text.clone().into_bytes(),
                Value::Array(lines) => {
                    lines.iter().filter_map(Value::as_str).collect::<String>().into_bytes()
                }
                other => other.to_string().into_bytes(),
            };
            if content.len() as u64 > MAX_ATTACHMENT {
                self.too_large += 1;
            } else if self.attachments.len() == MAX_ATTACHMENTS {
                self.too_many += 1;
            } else if !content.is_empty() {
                let media_type = media_type.to_owned();
                self.attachments.push(Given { media_type, content: Bytes::from(content) });
            }
            if is_image {
                break;
            }
        }
        let plain = data.get("text/plain").and_then(Value::as_str)?;
        Some(format!("{}\n", without_colours(plain)))
    }
}

/// About how much memory a value takes.
fn size(value: &Value) -> usize {
    const OF_ONE: usize = size_of::<Value>();
    match value {
        Value::String(text) => OF_ONE + text.len(),
        Value::Array(values) => OF_ONE + values.iter().map(size).sum::<usize>(),
        Value::Object(fields) => {
            OF_ONE + fields.iter().map(|(name, value)| name.len() + size(value)).sum::<usize>()
        }
        _ => OF_ONE,
    }
}

/// A text without the sequences that colour it in a terminal.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c == '\u{1b}' && characters.peek() == Some(&'[') {
            characters.next();
            for c in characters.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, content: Value) -> Message {
        Message { kind: kind.into(), parent: String::new(), content }
    }

    #[test]
    fn outputs_are_shown_and_kept() {
        let mut cell = Cell::default();
        let shown = cell.take(message("stream", json!({"name": "stdout", "text": "a"})));
        assert_eq!(shown, Some((OutputStream::Stdout, "a".into())));
        cell.take(message("stream", json!({"name": "stdout", "text": "b"})));
        let figure = json!({"data": {"image/png": "aGk=\n", "text/html": "<b>", "text/plain": "<Figure>"}, "metadata": {}});
        assert_eq!(cell.take(message("display_data", figure)).unwrap().1, "<Figure>\n");
        let table =
            json!({"data": {"text/html": "<table>", "text/plain": "t"}, "execution_count": 3});
        cell.take(message("execute_result", table));
        let error =
            json!({"ename": "E", "evalue": "no", "traceback": ["\u{1b}[0;31mE\u{1b}[0m: no"]});
        let shown = cell.take(message("error", error)).unwrap();
        assert_eq!(shown, (OutputStream::Stderr, "E: no\n".into()));
        assert_eq!(cell.error.unwrap().message, "E: no");
        let kinds: Vec<&str> = cell.attachments.iter().map(|a| a.media_type.as_str()).collect();
        assert_eq!(kinds, ["image/png", "text/html"]);
        assert_eq!(cell.attachments[0].content.as_ref(), b"hi");
        assert_eq!(cell.outputs.len(), 4);
        assert_eq!(cell.outputs[0]["text"], "ab");
    }

    #[test]
    fn what_is_not_attached_is_counted() {
        let mut cell = Cell::default();
        let mut show = |html: &str| {
            let content = json!({"data": {"text/html": html, "text/plain": "t"}});
            cell.take(message("display_data", content));
        };
        show(&"x".repeat(MAX_ATTACHMENT as usize + 1));
        (0..MAX_ATTACHMENTS + 2).for_each(|_| show("<b>"));
        assert_eq!(cell.attachments.len(), MAX_ATTACHMENTS);
        let said = cell.left_out().unwrap();
        let many = "2 rich outputs were left out: a call gives at most 16";
        assert_eq!(said, format!("{many}; 1 rich output was left out: one may have at most 8 MiB"));
        assert_eq!(Cell::default().left_out(), None);
    }

    #[test]
    fn an_exit_ends_the_kernel_unless_it_is_to_stay() {
        for (payload, exits) in [
            (json!([{"source": "ask_exit", "keepkernel": false}]), true),
            (json!([{"source": "ask_exit", "keepkernel": null}]), true),
            (json!([{"source": "ask_exit", "keepkernel": true}]), false),
            (json!([{"source": "page"}]), false),
            (json!(null), false),
        ] {
            let mut cell = Cell::default();
            cell.end(&json!({"execution_count": 1, "payload": payload}));
            assert_eq!(cell.exits, exits, "{payload}");
        }
    }

    #[test]
    fn endless_printing_is_kept_in_part() {
        let mut cell = Cell::default();
        for _ in 0..3 {
            let text = "é".repeat(MOST_PRINTED / 3);
            cell.take(message("stream", json!({"name": "stdout", "text": text})));
        }
        let kept = cell.outputs[0]["text"].as_str().unwrap();
        assert!(kept.len() < MOST_PRINTED + 100 && kept.ends_with("left out]\n"));
    }

    #[test]
    fn printing_here_and_there_in_turn_is_kept_in_part() {
        let mut cell = Cell::default();
        for n in 0..MOST_PRINTED / 16 {
            let name = if n % 2 == 0 { "stdout" } else { "stderr" };
            cell.take(message("stream", json!({"name": name, "text": "x"})));
        }
        assert!(cell.outputs.len() <= MOST_PRINTED / OF_AN_OUTPUT, "{}", cell.outputs.len());
        let last = cell.outputs.last().unwrap()["text"].as_str().unwrap();
        assert!(last.ends_with("left out]\n"), "{last}");
    }

    #[test]
    fn endless_errors_are_kept_in_part() {
        let mut cell = Cell::default();
        let trace = "x".repeat(MOST_SHOWN / 4);
        for _ in 0..8 {
            let error = json!({"ename": "E", "evalue": "no", "traceback": [trace]});
            let shown = cell.take(message("error", error)).unwrap().1;
            assert_eq!(shown.len(), trace.len() + 1);
        }
        let kept: usize = cell.outputs.iter().map(size).sum();
        assert!(kept < MOST_SHOWN + 1000, "{kept}");
        assert!(cell.outputs.last().unwrap().to_string().contains("left out"));
    }
}
