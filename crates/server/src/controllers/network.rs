//! `PUT /jobs/{id}/network`: changes what a job may reach, while it waits or runs.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use bellglass_protocol::id::JobId;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::request::RequestError;
use bellglass_protocol::view::JobStatus;
use bellglass_store::StoreError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule::{must_be_json, shortened};
use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, read_body};
use crate::problem::{ApiError, Problem};

/// What the job may reach from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkChange {
    network: NetworkPolicy,
}

/// The policy that is recorded now.
#[derive(Serialize, ToSchema)]
pub(crate) struct NetworkChanged {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    status: JobStatus,
    network: NetworkPolicy,
}

/// Change what a job may reach
///
/// Applies to new connections at once; connections that the new policy forbids are cut. The event
/// `network.changed` records it.
#[utoipa::path(
    put, path = "/jobs/{id}/network", operation_id = "change_network", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = NetworkChange, content_type = "application/json"),
    responses(
        (status = 200, description = "The new policy is recorded.", body = NetworkChanged),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "There is no such policy.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<NetworkChanged>, ApiError> {
    must_be_json(&headers)?;
    let body = read_body(&headers, body, server.app.settings.body_limit).await?;
    let NetworkChange { network } = read(&body).map_err(shortened)?;
    let by = caller.actor("api");
    let status = match server.app.store.change_network(job, network.clone(), &by).await {
        Err(StoreError::JobEnded) => return Err(ApiError::JobEnded),
        other => other?,
    };
    Ok(Json(NetworkChanged { job_id: job, task_id: job, status, network }))
}

fn read(body: &[u8]) -> Result<NetworkChange, RequestError> {
    let value: serde_json::Value = serde_json::from_slice(body)
        .map_err(|error| RequestError::InvalidJson(error.to_string()))?;
    let wrong = |message: String| RequestError::InvalidField { pointer: "network".into(), message };
    if !value.is_object() {
        return Err(wrong("the body must be a JSON object like {\"network\": \"none\"}".into()));
    }
    serde_json::from_value(value).map_err(|error| wrong(error.to_string()))
}
