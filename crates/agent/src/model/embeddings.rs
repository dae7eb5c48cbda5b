//! Where texts lie by their meaning: an OpenAI-compatible `/embeddings` endpoint.

use serde_json::json;

use super::ModelError;
use super::http::Endpoint;

/// Turns a text into a vector.
#[derive(Debug)]
pub struct Embedder {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
}

/// More numbers than any model gives.
const MOST_NUMBERS: usize = 16_384;

/// Much more than a memory has.
const LONGEST_TEXT: usize = 8000;

impl Embedder {
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
        let body = json!({ "model": self.model, "input": text, "encoding_format": "float" });
        let answer = self.endpoint.post("/embeddings", &body).await?;
        let numbers = answer["data"][0]["embedding"].as_array();
        let numbers = numbers.filter(|numbers| (1..=MOST_NUMBERS).contains(&numbers.len()));
        let nonsense = || ModelError::Nonsense("there is no embedding in it".into());
        let numbers = numbers.ok_or_else(nonsense)?;
        numbers.iter().map(|x| x.as_f64().map(|x| x as f32).ok_or_else(nonsense)).collect()
    }
}
