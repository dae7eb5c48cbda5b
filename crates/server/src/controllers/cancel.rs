//! `POST /jobs/{id}/cancel`: asks for a job to end. Asking twice, or after the end, is fine.

use axum::Json;
use axum::extract::State;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::StoreError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::JobPath;
use crate::links;
use crate::problem::{ApiError, Problem};

/// Where the job stands after the wish was recorded. A running job ends soon after.
#[derive(Serialize, ToSchema)]
pub(crate) struct Cancelled {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    status: JobStatus,
    status_url: String,
}

/// Ask for a job to end
#[utoipa::path(
    post, path = "/jobs/{id}/cancel", operation_id = "cancel_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The wish is recorded, or the job had ended before.", body = Cancelled),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<Json<Cancelled>, ApiError> {
    let store = &server.app.store;
    let status = match store.request_cancel(job, &caller.actor("api")).await {
        Err(StoreError::JobEnded) => store.outline(job).await?.status,
        other => other?,
    };
    Ok(Json(Cancelled { job_id: job, task_id: job, status, status_url: links::status_url(job) }))
}
