//! Where texts lie by their meaning: asked of an OpenAI-compatible `/embeddings` endpoint, or found out
//! here with a static model.

use std::sync::Arc;

use serde_json::json;

use super::ModelError;
use super::http::Endpoint;
use crate::static_model::StaticModel;

/// Turns a text into a vector. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Embedder(pub(super) Source);

#[derive(Clone, Debug)]
pub(super) enum Source {
    Endpoint { endpoint: Endpoint, model: String },
    Static(Arc<StaticModel>),
}

/// More numbers than any model gives.
const MOST_NUMBERS: usize = 16_384;

/// Much more than a memory has.
const LONGEST_TEXT: usize = 8000;

impl Embedder {
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
        match &self.0 {
            Source::Endpoint { endpoint, model } => asked(endpoint, model, text).await,
            Source::Static(model) => {
                let (model, text) = (model.clone(), text.to_owned());
                let embedding = tokio::task::spawn_blocking(move || model.embed(&text)).await;
                let failed = |error: String| ModelError::ServerFailed { status: 0, message: error };
                embedding
                    .map_err(|error| failed(error.to_string()))?
                    .map_err(|error| failed(error.to_string()))
            }
        }
    }
}

async fn asked(endpoint: &Endpoint, model: &str, text: &str) -> Result<Vec<f32>, ModelError> {
    let body = json!({ "model": model, "input": text, "encoding_format": "float" });
    let answer = endpoint.post("/embeddings", &body).await?;
    let numbers = answer["data"][0]["embedding"].as_array();
    let numbers = numbers.filter(|numbers| (1..=MOST_NUMBERS).contains(&numbers.len()));
    let nonsense = || ModelError::Nonsense("there is no embedding in it".into());
    let numbers = numbers.ok_or_else(nonsense)?;
    numbers.iter().map(|x| x.as_f64().map(|x| x as f32).ok_or_else(nonsense)).collect()
}
