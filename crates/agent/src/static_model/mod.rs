//! Where texts lie by their meaning, found out on this machine: a static embedding model from a folder,
//! in the form that model2vec and others write (`model.safetensors`, `tokenizer.json`).
//!
//! The vector of a text is the mean of the vectors of its tokens, so there is nothing to compute but a
//! sum. Of the matrix only the rows of a text's own tokens are read, so its size does not matter.

mod pieces;
mod tensors;
mod text;
mod tokenizer;

use std::path::Path;

use tensors::{Matrix, Tensors};
use tokenizer::Tokenizer;

/// A model whose files are open.
#[derive(Debug)]
pub struct StaticModel {
    matrix: Matrix,
    /// The row of each token, where not every token has one of its own.
    rows: Option<Vec<u32>>,
    /// How much each token counts, where they do not count the same.
    weights: Option<Vec<f32>>,
    tokenizer: Tokenizer,
}

/// Why a folder holds no model that can be used.
#[derive(Debug, thiserror::Error)]
pub enum StaticModelError {
    #[error("{file} cannot be read: {source}")]
    NotRead { file: &'static str, source: std::io::Error },
    #[error("{file} cannot be used: {why}")]
    Unusable { file: &'static str, why: String },
}

/// The names under which models keep their vectors.
const MATRIX: [&str; 2] = ["embeddings", "embedding.weight"];

/// Tokens of a text that count. Memories have far fewer.
const MOST_TOKENS: usize = 4096;

impl StaticModel {
    pub fn open(folder: &Path) -> Result<Self, StaticModelError> {
        let tensors = Tensors::open(&folder.join(tensors::FILE))?;
        let found = MATRIX.iter().find(|name| tensors.has(name)).copied();
        let found = found.ok_or_else(|| {
            tensors::unusable(format!("it has no tensor named {}", MATRIX.join(" or ")))
        })?;
        let tokenizer = Tokenizer::open(&folder.join(tokenizer::FILE))?;
        let weights = tensors.numbers("weights")?;
        let rows = tensors.numbers("mapping")?;
        let rows = rows.map(|rows| rows.into_iter().map(|row| row as u32).collect());
        let matrix = tensors.matrix(found)?;
        Ok(Self { matrix, rows, weights, tokenizer })
    }

    /// The vector of a text; all zeros if no token of it is known. Reads files, so it blocks.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, StaticModelError> {
        let mut sum = vec![0.0_f32; self.matrix.columns()];
        let mut count = 0.0_f32;
        for token in self.tokenizer.tokens(text).into_iter().take(MOST_TOKENS) {
            let at = token as usize;
            let row = match &self.rows {
                Some(rows) => rows.get(at).copied(),
                None => Some(token),
            };
            let Some(row) = row.and_then(|row| self.matrix.row(row).transpose()).transpose()?
            else {
                continue;
            };
            let weight = match &self.weights {
                Some(weights) => weights.get(at).copied().unwrap_or(1.0),
                None => 1.0,
            };
            sum.iter_mut().zip(&row).for_each(|(sum, x)| *sum += weight * x);
            count += 1.0;
        }
        if count > 0.0 {
            sum.iter_mut().for_each(|x| *x /= count);
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Writes a model of a few words: each row of the matrix is one token's.
    fn folder(rows: &[[f32; 2]], more: &[(&str, &str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let vocabulary = json!({ "[UNK]": 0, "bread": 1, "bake": 2, "##s": 3, "euro": 4, ".": 5 });
        let tokenizer = json!({
            "normalizer": { "type": "BertNormalizer", "lowercase": true },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary },
        });
        std::fs::write(folder.path().join(tokenizer::FILE), tokenizer.to_string()).unwrap();
        let matrix: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        let mut all = vec![("embeddings", "F32", matrix, json!([rows.len(), 2]))];
        for (name, kind, bytes) in more {
            let width = if *kind == "I64" { 8 } else { 4 };
            all.push((name, kind, bytes.clone(), json!([bytes.len() / width])));
        }
        let (mut head, mut data) = (json!({ "__metadata__": { "by": "a test" } }), Vec::new());
        for (name, kind, bytes, shape) in all {
            let start = data.len();
            data.extend(bytes);
            head[name] =
                json!({ "dtype": kind, "shape": shape, "data_offsets": [start, data.len()] });
        }
        let head = head.to_string();
        let mut file = (head.len() as u64).to_le_bytes().to_vec();
        file.extend(head.as_bytes());
        file.extend(data);
        std::fs::write(folder.path().join(tensors::FILE), file).unwrap();
        folder
    }

    const ROWS: [[f32; 2]; 6] =
        [[9.0, 9.0], [1.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.0, 1.0], [0.0, 0.0]];

    #[test]
    fn a_text_is_the_mean_of_its_tokens() {
        let folder = folder(&ROWS, &[]);
        let model = StaticModel::open(folder.path()).unwrap();
        assert_eq!(model.embed("Bread").unwrap(), [1.0, 0.0]);
        assert_eq!(model.embed("bread EURO").unwrap(), [0.5, 0.5]);
        // In two pieces, and a word that is not known counts nothing.
        assert_eq!(model.embed("bakes zebra").unwrap(), [0.25, 0.25]);
        assert_eq!(model.embed("").unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn tokens_may_share_rows_and_count_differently() {
        let rows: Vec<u8> = [0_i64, 1, 1, 1, 0, 7].iter().flat_map(|x| x.to_le_bytes()).collect();
        let weights: Vec<u8> =
            [1.0_f32, 2.0, 1.0, 1.0, 4.0, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let folder = folder(
            &[[0.0, 1.0], [1.0, 0.0]],
            &[("mapping", "I64", rows), ("weights", "F32", weights)],
        );
        let model = StaticModel::open(folder.path()).unwrap();
        assert_eq!(model.embed("bread euro").unwrap(), [1.0, 2.0]);
        // A row that is not there counts nothing.
        assert_eq!(model.embed("bread.").unwrap(), [2.0, 0.0]);
    }

    #[test]
    fn a_folder_without_a_model_says_what_is_missing() {
        let empty = tempfile::tempdir().unwrap();
        let error = StaticModel::open(empty.path()).unwrap_err().to_string();
        assert!(error.starts_with("model.safetensors cannot be read"), "{error}");
        let folder = folder(&ROWS, &[]);
        std::fs::write(folder.path().join(tokenizer::FILE), "{}").unwrap();
        let error = StaticModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json cannot be used"), "{error}");
    }
}
