//! The tokenizer of a static model, read from its `tokenizer.json`. Marks for the ends of a text, which
//! other models want, are left out.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::StaticModelError;
use super::pieces::{Bpe, Pieces, Unigram, UnknownBytes, WordPiece};
use super::text::{Normalizer, Splitter, normalizers, splitters};

pub(super) const FILE: &str = "tokenizer.json";

/// More than the largest vocabularies take.
const MOST_BYTES: u64 = 128 << 20;

#[derive(Debug)]
pub(super) struct Tokenizer {
    normalizers: Vec<Normalizer>,
    splitters: Vec<Splitter>,
    pieces: Pieces,
    /// The token that stands for what is not known.
    unknown: Option<u32>,
}

impl Tokenizer {
    pub(super) fn open(path: &Path) -> Result<Self, StaticModelError> {
        let not_read = |source| StaticModelError::NotRead { file: FILE, source };
        let mut text = Vec::new();
        let file = File::open(path).map_err(not_read)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(not_read)?;
        let unusable = |why| StaticModelError::Unusable { file: FILE, why };
        if text.len() as u64 > MOST_BYTES {
            return Err(unusable("it is larger than 128 MiB".into()));
        }
        let document: Value = serde_json::from_slice(&text)
            .map_err(|error| unusable(format!("it makes no sense: {error}")))?;
        Self::read(&document).map_err(unusable)
    }

    fn read(document: &Value) -> Result<Self, String> {
        let model = &document["model"];
        let (pieces, unknown) = match model["type"].as_str() {
            Some("WordPiece") => word_piece(model)?,
            Some("Unigram") => unigram(model)?,
            Some("BPE") => bpe(model)?,
            other => {
                let kind = other.unwrap_or("without a type");
                return Err(format!("its model is {kind}; known are WordPiece, Unigram and BPE"));
            }
        };
        let normalizers = normalizers(&document["normalizer"])?;
        let splitters = splitters(&document["pre_tokenizer"])?;
        Ok(Self { normalizers, splitters, pieces, unknown })
    }

    /// The tokens of a text that are known.
    pub(super) fn tokens(&self, text: &str) -> Vec<u32> {
        let text = self.normalizers.iter().fold(text.to_owned(), |text, step| step.apply(&text));
        let words = self.splitters.iter().fold(vec![text], |words, step| {
            words.iter().flat_map(|word| step.split(word)).collect()
        });
        let tokens = words.iter().flat_map(|word| self.pieces.cut(word));
        tokens.filter(|token| Some(*token) != self.unknown).collect()
    }
}

fn vocabulary(model: &Value) -> Result<HashMap<String, u32>, String> {
    let words = model["vocab"].as_object().ok_or("it has no vocabulary")?;
    let token = |(word, token): (&String, &Value)| {
        let token = token.as_u64().and_then(|token| u32::try_from(token).ok())?;
        Some((word.clone(), token))
    };
    let words: Option<HashMap<_, _>> = words.iter().map(token).collect();
    words.ok_or_else(|| "a token of its vocabulary is no number".into())
}

fn word_piece(model: &Value) -> Result<(Pieces, Option<u32>), String> {
    let vocabulary = vocabulary(model)?;
    let unknown = model["unk_token"].as_str().and_then(|word| vocabulary.get(word)).copied();
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##").to_owned();
    let longest_word = model["max_input_chars_per_word"].as_u64().unwrap_or(100).min(1000) as usize;
    Ok((Pieces::WordPiece(WordPiece { vocabulary, prefix, longest_word }), unknown))
}

fn unigram(model: &Value) -> Result<(Pieces, Option<u32>), String> {
    let list = model["vocab"].as_array().ok_or("it has no vocabulary")?;
    let piece = |(pair, token): (&Value, u32)| {
        let (piece, score) = (pair[0].as_str()?, pair[1].as_f64()?);
        Some((piece.to_owned(), (token, score)))
    };
    let vocabulary: Option<HashMap<_, _>> = list.iter().zip(0..).map(piece).collect();
    let vocabulary = vocabulary.ok_or("a piece of its vocabulary makes no sense")?;
    let longest = vocabulary.keys().map(|piece| piece.chars().count()).max().unwrap_or(1).min(64);
    let least = vocabulary.values().map(|(_, score)| *score).fold(0.0, f64::min);
    let unknown = model["unk_id"].as_u64().and_then(|token| u32::try_from(token).ok());
    Ok((Pieces::Unigram(Unigram { vocabulary, longest, unknown: least - 10.0 }), unknown))
}

fn bpe(model: &Value) -> Result<(Pieces, Option<u32>), String> {
    for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[field].as_str().is_some_and(|mark| !mark.is_empty()) {
            return Err(format!("its {field} is not known here"));
        }
    }
    let vocabulary = vocabulary(model)?;
    let mut merges = HashMap::new();
    for (merge, rank) in model["merges"].as_array().into_iter().flatten().zip(0_u32..) {
        // Older files have both in one text.
        let pair = match merge.as_str() {
            Some(text) => text.split_once(' '),
            None => merge[0].as_str().zip(merge[1].as_str()),
        };
        let (left, right) = pair.ok_or("one of its merges makes no sense")?;
        let token = |word: &str| vocabulary.get(word).copied();
        let found = (token(left), token(right), token(&format!("{left}{right}")));
        let (Some(left), Some(right), Some(both)) = found else {
            return Err("one of its merges makes no token".into());
        };
        merges.entry((left, right)).or_insert((rank, both));
    }
    let unknown_bytes = match model["byte_fallback"].as_bool() {
        Some(true) => UnknownBytes::AreTokens,
        _ => UnknownBytes::LeftOut,
    };
    let unknown = model["unk_token"].as_str().and_then(|word| vocabulary.get(word)).copied();
    Ok((Pieces::Bpe(Bpe { vocabulary, merges, unknown_bytes }), unknown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_tokenizer_is_read() {
        let word_piece = json!({
            "normalizer": { "type": "Lowercase" },
            "pre_tokenizer": { "type": "WhitespaceSplit" },
            "model": { "type": "WordPiece", "unk_token": "?", "vocab": { "?": 0, "to": 1, "##day": 2 } },
        });
        let unigram = json!({
            "pre_tokenizer": { "type": "Metaspace", "replacement": "▁" },
            "model": { "type": "Unigram", "unk_id": 0,
                "vocab": [["?", 0.0], ["▁to", -1.0], ["day", -1.0], ["▁Today", -9.0]] },
        });
        let bpe = json!({
            "normalizer": { "type": "Lowercase" },
            "model": { "type": "BPE", "vocab": { "t": 7, "to": 1, "o": 8, "d": 3, "ay": 4, "day": 2, "a": 5, "y": 6 },
                "merges": ["t o", ["a", "y"], "d ay"] },
        });
        for (document, text) in [(word_piece, "Today ?"), (unigram, "today"), (bpe, "Today")] {
            let tokenizer = Tokenizer::read(&document).unwrap();
            assert_eq!(tokenizer.tokens(text), [1, 2], "{}", document["model"]["type"]);
            assert_eq!(tokenizer.tokens(""), [] as [u32; 0]);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (model, part) in [
            (json!({}), "without a type"),
            (json!({ "type": "WordLevel" }), "WordLevel"),
            (json!({ "type": "WordPiece" }), "no vocabulary"),
            (json!({ "type": "WordPiece", "vocab": { "a": -1 } }), "no number"),
            (json!({ "type": "Unigram", "vocab": [["a"]] }), "makes no sense"),
            (json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": ["a b"] }), "no token"),
            (json!({ "type": "BPE", "vocab": {}, "merges": [7] }), "makes no sense"),
            (
                json!({ "type": "BPE", "vocab": {}, "end_of_word_suffix": "</w>" }),
                "end_of_word_suffix",
            ),
        ] {
            let error = Tokenizer::read(&json!({ "model": model })).unwrap_err();
            assert!(error.contains(part), "{model}: {error}");
        }
    }
}
