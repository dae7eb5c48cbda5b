//! `GET /jobs/{id}/context`: a task's conversation as its model sees it, now or at an earlier event.

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use bellglass_protocol::id::JobId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::SharedServer;
use crate::extract::JobPath;
use crate::problem::{ApiError, Problem};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Moment {
    /// The number of an event: the conversation as it was after it. As it is now without one. In a
    /// fork that goes on with another job's conversation, numbers count on from that job's log, as in
    /// `context/NUMBER.json` of the result.
    at: Option<u64>,
}

/// What a task's model is shown
///
/// Read from the job's log, so that what was left out later can be seen as it once was.
#[utoipa::path(
    get, path = "/jobs/{id}/context", operation_id = "get_context", tag = "results",
    params(("id" = JobId, Path, description = "The job"), Moment),
    responses(
        (status = 200, description = "The conversation. Empty for a job without a model.", body = Object),
        (status = 400, description = "Not a job id, or a wrong parameter.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    moment: Result<Query<Moment>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(moment) = moment.map_err(|error| ApiError::InvalidQuery(error.body_text()))?;
    server.app.store.outline(job).await?;
    Ok(Json(server.app.live.context(job, moment.at).await?).into_response())
}
