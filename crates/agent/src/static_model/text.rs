//! What is done to a text before it is cut into tokens: letters made alike, words told apart. Pure.
//!
//! Steps have the names and the fields that `tokenizer.json` gives them. One that is unknown here makes
//! the file unusable, because a text would be cut otherwise than the model was made for.

use regex::Regex;
use serde_json::Value;
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// Makes letters alike.
#[derive(Debug)]
pub(super) enum Normalizer {
    Lowercase,
    Decomposed,
    Composed,
    CompatiblyDecomposed,
    CompatiblyComposed,
    WithoutAccents,
    WithoutControls,
    SpacedIdeographs,
    Prepend(String),
    Replace(Regex, String),
    Strip,
}

/// Tells words apart.
#[derive(Debug)]
pub(super) enum Splitter {
    AtSpaces,
    /// Each is a word of its own.
    AtPunctuation,
    /// Letters and digits on one side, all else that is no space on the other.
    Words(Regex),
    /// A mark stands for each space and belongs to the word behind it.
    Metaspace {
        mark: String,
        first: FirstMark,
    },
}

/// Whether the first word gets a mark too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstMark {
    Added,
    NotAdded,
}

/// Reads one step of some type.
type Read<T> = fn(&str, &Value) -> Result<Vec<T>, String>;

/// Reads a list of steps, of which one may be a list again.
fn each<T>(step: &Value, inner: &str, read: Read<T>) -> Result<Vec<T>, String> {
    match step["type"].as_str() {
        None if step.is_null() => Ok(Vec::new()),
        None => Err("one of its steps has no type".into()),
        Some("Sequence") => {
            let mut steps = Vec::new();
            for step in step[inner].as_array().into_iter().flatten() {
                steps.extend(each(step, inner, read)?);
            }
            Ok(steps)
        }
        Some(kind) => read(kind, step),
    }
}

pub(super) fn normalizers(step: &Value) -> Result<Vec<Normalizer>, String> {
    each(step, "normalizers", |kind, step| {
        Ok(match kind {
            "Lowercase" => vec![Normalizer::Lowercase],
            "NFD" => vec![Normalizer::Decomposed],
            "NFC" => vec![Normalizer::Composed],
            "NFKD" => vec![Normalizer::CompatiblyDecomposed],
            // The table that this names does the same but for a few characters.
            "NFKC" | "Precompiled" => vec![Normalizer::CompatiblyComposed],
            "StripAccents" => vec![Normalizer::WithoutAccents],
            "Strip" => vec![Normalizer::Strip],
            "Prepend" => vec![Normalizer::Prepend(text(&step["prepend"]))],
            "Replace" => {
                vec![Normalizer::Replace(pattern(&step["pattern"])?, text(&step["content"]))]
            }
            "BertNormalizer" => bert(step),
            other => return Err(format!("its normalizer {other} is not known here")),
        })
    })
}

/// The steps of BERT's tokenizers, which belong together.
fn bert(step: &Value) -> Vec<Normalizer> {
    let wants = |field: &str| step[field].as_bool();
    let lowercase = wants("lowercase").unwrap_or(true);
    let mut steps = Vec::new();
    if wants("clean_text").unwrap_or(true) {
        steps.push(Normalizer::WithoutControls);
    }
    if wants("handle_chinese_chars").unwrap_or(true) {
        steps.push(Normalizer::SpacedIdeographs);
    }
    if wants("strip_accents").unwrap_or(lowercase) {
        steps.extend([Normalizer::Decomposed, Normalizer::WithoutAccents]);
    }
    if lowercase {
        steps.push(Normalizer::Lowercase);
    }
    steps
}

pub(super) fn splitters(step: &Value) -> Result<Vec<Splitter>, String> {
    each(step, "pretokenizers", |kind, step| {
        Ok(match kind {
            "BertPreTokenizer" => vec![Splitter::AtSpaces, Splitter::AtPunctuation],
            "WhitespaceSplit" => vec![Splitter::AtSpaces],
            "Punctuation" => vec![Splitter::AtPunctuation],
            "Whitespace" => {
                let words = Regex::new(r"\w+|[^\w\s]+").map_err(|error| error.to_string())?;
                vec![Splitter::Words(words)]
            }
            "Metaspace" => {
                let mark = step["replacement"].as_str().unwrap_or("▁").to_owned();
                let is_added = match step["prepend_scheme"].as_str() {
                    Some(scheme) => scheme != "never",
                    None => step["add_prefix_space"].as_bool().unwrap_or(true),
                };
                let first = if is_added { FirstMark::Added } else { FirstMark::NotAdded };
                vec![Splitter::Metaspace { mark, first }]
            }
            other => return Err(format!("its pre-tokenizer {other} is not known here")),
        })
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pattern(value: &Value) -> Result<Regex, String> {
    let pattern = match (value["String"].as_str(), value["Regex"].as_str()) {
        (Some(text), _) => regex::escape(text),
        (None, Some(pattern)) => pattern.to_owned(),
        (None, None) => return Err("one of its patterns makes no sense".into()),
    };
    Regex::new(&pattern).map_err(|error| format!("one of its patterns is not known here: {error}"))
}

impl Normalizer {
    pub(super) fn apply(&self, text: &str) -> String {
        match self {
            Self::Lowercase => text.to_lowercase(),
            Self::Decomposed => text.nfd().collect(),
            Self::Composed => text.nfc().collect(),
            Self::CompatiblyDecomposed => text.nfkd().collect(),
            Self::CompatiblyComposed => text.nfkc().collect(),
            Self::WithoutAccents => text.chars().filter(|c| !is_combining_mark(*c)).collect(),
            Self::WithoutControls => {
                let kept = text.chars().filter(|c| c.is_whitespace() || !c.is_control());
                kept.map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
            }
            Self::SpacedIdeographs => {
                let mut spaced = String::with_capacity(text.len());
                for c in text.chars() {
                    match is_ideograph(c) {
                        true => spaced.extend([' ', c, ' ']),
                        false => spaced.push(c),
                    }
                }
                spaced
            }
            Self::Prepend(_) if text.is_empty() => String::new(),
            Self::Prepend(mark) => format!("{mark}{text}"),
            Self::Replace(pattern, content) => {
                pattern.replace_all(text, regex::NoExpand(content)).into_owned()
            }
            Self::Strip => text.trim().to_owned(),
        }
    }
}

impl Splitter {
    pub(super) fn split(&self, text: &str) -> Vec<String> {
        match self {
            Self::AtSpaces => text.split_whitespace().map(str::to_owned).collect(),
            Self::Words(words) => words.find_iter(text).map(|word| word.as_str().into()).collect(),
            Self::AtPunctuation => {
                let mut words = vec![String::new()];
                for c in text.chars() {
                    if is_punctuation(c) {
                        words.extend([c.to_string(), String::new()]);
                    } else if let Some(last) = words.last_mut() {
                        last.push(c);
                    }
                }
                words.retain(|word| !word.is_empty());
                words
            }
            Self::Metaspace { mark, first } => {
                let mut marked = text.replace(' ', mark);
                if *first == FirstMark::Added && !marked.starts_with(mark.as_str()) {
                    marked.insert_str(0, mark);
                }
                let mut starts: Vec<usize> = marked.match_indices(mark).map(|(at, _)| at).collect();
                starts.insert(0, 0);
                starts.push(marked.len());
                let words = starts.windows(2).map(|ends| marked[ends[0]..ends[1]].to_owned());
                words.filter(|word| !word.is_empty()).collect()
            }
        }
    }
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(u32::from(c), 0xa1 | 0xa7 | 0xab | 0xb6 | 0xb7 | 0xbb | 0xbf)
        || matches!(u32::from(c), 0x2010..=0x2027 | 0x2030..=0x205e | 0x3001..=0x3003)
        || matches!(u32::from(c), 0x3008..=0x3011 | 0xff01..=0xff0f | 0xff1a..=0xff20)
}

fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c), 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x2fa1f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalized(steps: Value, text: &str) -> String {
        let steps = normalizers(&steps).unwrap();
        steps.iter().fold(text.to_owned(), |text, step| step.apply(&text))
    }

    fn split(steps: Value, text: &str) -> Vec<String> {
        let steps = splitters(&steps).unwrap();
        steps.iter().fold(vec![text.to_owned()], |words, step| {
            words.iter().flat_map(|word| step.split(word)).collect()
        })
    }

    #[test]
    fn letters_are_made_alike() {
        let bert = json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true });
        assert_eq!(normalized(bert, "Crème\tBRÛLÉE\u{7}中文"), "creme brulee 中  文 ");
        let llama = json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] });
        assert_eq!(normalized(llama, "two words"), "▁two▁words");
        let folded = json!({ "type": "Sequence", "normalizers": [
            { "type": "Precompiled" }, { "type": "Strip" },
            { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " },
        ] });
        assert_eq!(normalized(folded, " ﬁne   ｗｉｄｅ "), "fine wide");
        assert_eq!(normalized(Value::Null, "As It Is"), "As It Is");
        assert!(normalizers(&json!({ "type": "Surprise" })).unwrap_err().contains("Surprise"));
    }

    #[test]
    fn words_are_told_apart() {
        let bert = json!({ "type": "BertPreTokenizer" });
        assert_eq!(
            split(bert, "it's 1.5, “no”"),
            ["it", "'", "s", "1", ".", "5", ",", "“", "no", "”"]
        );
        assert_eq!(split(json!({ "type": "Whitespace" }), "a--b c"), ["a", "--", "b", "c"]);
        let meta = json!({ "type": "Metaspace", "replacement": "▁", "add_prefix_space": true });
        assert_eq!(split(meta, "two words"), ["▁two", "▁words"]);
        let bare = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never" });
        assert_eq!(split(bare, "two words"), ["two", "▁words"]);
        assert!(splitters(&json!({ "type": "ByteLevel" })).is_err());
        assert!(splitters(&json!(7)).is_err());
    }
}
