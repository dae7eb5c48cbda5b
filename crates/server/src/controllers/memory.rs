//! `GET /jobs/{id}/memory.json`: the history of a job's actions and their results.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::memory::memory_document;

use crate::SharedServer;
use crate::extract::JobPath;
use crate::problem::{ApiError, Problem};

/// The actions of a job and what came of them
#[utoipa::path(
    get, path = "/jobs/{id}/memory.json", operation_id = "get_memory", tag = "results",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The history as far as it has come.", body = Object),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
) -> Result<Response, ApiError> {
    let view = server.app.store.job(job).await?;
    Ok(Json(memory_document(&view)).into_response())
}
