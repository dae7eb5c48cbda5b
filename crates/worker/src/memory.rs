//! Memories of a job's project: found before it begins, kept when it is over, with their meanings where
//! an embedding source is configured.

use bellglass_agent::memory::one_line;
use bellglass_protocol::id::JobId;
use bellglass_store::{MemoryQuery, NewMemory, Store, StoreError, Whose};

pub use bellglass_agent::model::embeddings::Embedder;

/// Memories that a task is told of.
const MOST_RECALLED: u32 = 12;

/// What the project knows about something. Without an embedding, or if none can be had, by words.
pub(crate) async fn find(
    store: &dyn Store,
    embedder: Option<&Embedder>,
    job: JobId,
    project: &str,
    about: &str,
) -> Result<Vec<String>, StoreError> {
    let query = MemoryQuery {
        // Projects of one name are told apart by whose they are.
        whose: Whose::Of(store.owner(job).await?),
        project: Some(project.to_owned()),
        words: Some(about.to_owned()),
        vector: vector(embedder, about).await,
        limit: MOST_RECALLED,
    };
    Ok(store.memories(&query).await?.into_iter().map(|memory| memory.text).collect())
}

/// Keeps what is new. Returns it as it was kept.
pub(crate) async fn keep(
    store: &dyn Store,
    embedder: Option<&Embedder>,
    project: &str,
    job: JobId,
    texts: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    let owner = store.owner(job).await?;
    let mut kept = Vec::new();
    for text in texts {
        let text = one_line(&text);
        let vector = vector(embedder, &text).await;
        let (owner, project) = (owner.clone(), project.to_owned());
        let new = NewMemory { owner, project, text, job: Some(job), vector };
        kept.extend(store.add_memory(new).await?.map(|memory| memory.text));
    }
    Ok(kept)
}

async fn vector(embedder: Option<&Embedder>, text: &str) -> Option<Vec<f32>> {
    match embedder?.embed(text).await {
        Ok(vector) => Some(vector),
        Err(error) => {
            tracing::warn!(%error, "no embedding could be had; words alone are looked for");
            None
        }
    }
}
