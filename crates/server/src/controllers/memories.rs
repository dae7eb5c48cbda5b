//! `/memories`: what tasks left for later ones, listed, found, written, changed and forgotten.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use bellglass_protocol::id::JobId;
use bellglass_protocol::request::RequestError;
use bellglass_protocol::task_request::is_project_name;
use bellglass_store::{Memory, MemoryQuery, NewMemory};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::read_object;
use crate::problem::{ApiError, Problem};

/// Something worth knowing in later tasks of a project.
#[derive(Serialize, ToSchema)]
pub(crate) struct MemoryView {
    id: i64,
    /// Whose it is; nobody's where the server has no users.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    project: String,
    text: String,
    /// The job that left it; none if somebody wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct MemoryList {
    memories: Vec<MemoryView>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only memories of this project.
    project: Option<String>,
    /// The best for these words, best first; the newest first without them.
    search: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 500, default = 50, nullable = false)]
    limit: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenMemory {
    project: String,
    text: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedMemory {
    text: String,
}

impl From<Memory> for MemoryView {
    fn from(memory: Memory) -> Self {
        let Memory { id, owner, project, text, job, at } = memory;
        Self { id, owner, project, text, job_id: job, at }
    }
}

/// List memories, or look for some
#[utoipa::path(
    get, path = "/memories", operation_id = "list_memories", tag = "memories",
    params(Filter),
    responses(
        (status = 200, description = "The memories.", body = MemoryList),
        (status = 400, description = "An unknown or wrong parameter.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    filter: Result<Query<Filter>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<MemoryList>, ApiError> {
    let Query(filter) = filter.map_err(|error| ApiError::InvalidQuery(error.body_text()))?;
    let limit = filter.limit.unwrap_or(50);
    if !(1..=500).contains(&limit) {
        return Err(ApiError::InvalidQuery("`limit` must be from 1 to 500".into()));
    }
    let vector = match &filter.search {
        Some(words) => server.app.live.meaning(words).await,
        None => None,
    };
    let query = MemoryQuery {
        whose: caller.whose(),
        project: filter.project,
        words: filter.search,
        vector,
        limit,
    };
    let memories = server.app.store.memories(&query).await?;
    Ok(Json(MemoryList { memories: memories.into_iter().map(MemoryView::from).collect() }))
}

/// Write a memory by hand
///
/// Kept on one line and without what looks like a secret. The same text is kept once.
#[utoipa::path(
    post, path = "/memories", operation_id = "add_memory", tag = "memories",
    request_body(content = WrittenMemory, content_type = "application/json"),
    responses(
        (status = 201, description = "The memory is kept.", body = MemoryView),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The project has this memory already.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The text is empty, or the project has no proper name.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn add(
    State(server): State<SharedServer>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<MemoryView>), ApiError> {
    let WrittenMemory { project, text } = read_object(&server, &headers, body, "text").await?;
    if !is_project_name(&project) {
        return Err(invalid("project", "must be 1 to 64 letters, digits, `-`, `_` and `.`").into());
    }
    let text = checked(&server, &text)?;
    let vector = server.app.live.meaning(&text).await;
    let new = NewMemory { owner: caller.owner(), project, text, job: None, vector };
    let kept = server.app.store.add_memory(new).await?;
    let kept = kept.ok_or(ApiError::MemoryKnown)?;
    Ok((StatusCode::CREATED, Json(kept.into())))
}

/// Give a memory another text
#[utoipa::path(
    put, path = "/memories/{memory}", operation_id = "change_memory", tag = "memories",
    params(("memory" = i64, Path, description = "The memory's number")),
    request_body(content = ChangedMemory, content_type = "application/json"),
    responses(
        (status = 200, description = "The memory as it is now.", body = MemoryView),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such memory.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The text is empty.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(memory): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<MemoryView>, ApiError> {
    let id = theirs(&server, &caller, &memory).await?;
    let ChangedMemory { text } = read_object(&server, &headers, body, "text").await?;
    let text = checked(&server, &text)?;
    let vector = server.app.live.meaning(&text).await;
    let changed = server.app.store.edit_memory(id, text, vector, &caller.actor("user")).await?;
    changed.map(|memory| Json(memory.into())).ok_or(ApiError::MemoryNotFound)
}

/// Forget a memory
#[utoipa::path(
    delete, path = "/memories/{memory}", operation_id = "forget_memory", tag = "memories",
    params(("memory" = i64, Path, description = "The memory's number")),
    responses(
        (status = 204, description = "It is forgotten."),
        (status = 404, description = "There is no such memory.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn forget(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(memory): Path<String>,
) -> Result<StatusCode, ApiError> {
    let id = theirs(&server, &caller, &memory).await?;
    let gone = server.app.store.delete_memory(id, &caller.actor("user")).await?;
    gone.map(|_| StatusCode::NO_CONTENT).ok_or(ApiError::MemoryNotFound)
}

/// The number of a memory that is the caller's own.
async fn theirs(server: &SharedServer, caller: &Caller, text: &str) -> Result<i64, ApiError> {
    let id = text.parse().map_err(|_| ApiError::MemoryNotFound)?;
    let Some(only) = caller.only_of() else { return Ok(id) };
    let memory = server.app.store.memory(id).await?;
    match memory.is_some_and(|memory| memory.owner == Some(only)) {
        true => Ok(id),
        false => Err(ApiError::MemoryNotFound),
    }
}

fn checked(server: &SharedServer, text: &str) -> Result<String, ApiError> {
    let text = server.app.live.fit_to_remember(text);
    match text.is_empty() {
        true => Err(invalid("text", "`text` is empty").into()),
        false => Ok(text),
    }
}

fn invalid(pointer: &str, message: &str) -> RequestError {
    RequestError::InvalidField { pointer: pointer.into(), message: message.into() }
}
