//! `POST /jobs/{id}/pause`, `/resume` and `/messages`: what a user may want of a job that runs.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use bellglass_protocol::approval::Decision;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::Work;
use bellglass_protocol::request::RequestError;
use bellglass_protocol::view::JobStatus;
use bellglass_store::{Steering, StoreError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, parse_job_id, read_object};
use crate::links;
use crate::problem::{ApiError, Problem};

/// Where the job stands after the wish was recorded.
#[derive(Serialize, ToSchema)]
pub(crate) struct Steered {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    status: JobStatus,
    status_url: String,
}

/// What to say to the model.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMessage {
    /// A correction, a wish, or the answer to a question of the model's.
    #[schema(min_length = 1)]
    text: String,
}

/// Let a job do nothing more after what is under way
///
/// Its sandbox and its place among the running jobs stay its own. Its time limit stands still.
#[utoipa::path(
    post, path = "/jobs/{id}/pause", operation_id = "pause_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job is paused, or was before.", body = Steered),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended, or nobody works on it yet.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn pause(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<Json<Steered>, ApiError> {
    steer(&server, &caller, job, Steering::Pause).await
}

/// Let a paused job go on
///
/// If it waits for an answer, it goes on without one.
#[utoipa::path(
    post, path = "/jobs/{id}/resume", operation_id = "resume_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job goes on, or was not paused.", body = Steered),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resume(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<Json<Steered>, ApiError> {
    steer(&server, &caller, job, Steering::Resume).await
}

/// Say something to the model that works on a task
///
/// The model hears it before its next answer. If it has asked a question, this is the answer.
#[utoipa::path(
    post, path = "/jobs/{id}/messages", operation_id = "send_message", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = NewMessage, content_type = "application/json"),
    responses(
        (status = 200, description = "The message is recorded.", body = Steered),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The message is empty or too long, or the job has no model.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn message(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Steered>, ApiError> {
    let invalid = |message: String| RequestError::InvalidField { pointer: "text".into(), message };
    let NewMessage { text } = read_object(&server, &headers, body, "text").await?;
    if text.trim().is_empty() || text.len() > LONGEST {
        return Err(invalid("`text` must not be empty, nor longer than 256 KiB".into()).into());
    }
    if !matches!(server.app.store.job(job).await?.spec.work, Work::Task(_)) {
        return Err(invalid("only a `task` has a model that could hear it".into()).into());
    }
    steer(&server, &caller, job, Steering::Message(text)).await
}

/// What the user decides.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDecision {
    decision: Decision,
    /// What the model is told about a refusal.
    words: Option<String>,
}

/// Allow or refuse what a job waits for
///
/// The ids of what waits stand in `approvals` of the job and in the events `approval.requested`.
#[utoipa::path(
    post, path = "/jobs/{id}/approvals/{approval}", operation_id = "decide_approval", tag = "jobs",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("approval" = String, Path, description = "What waits"),
    ),
    request_body(content = NewDecision, content_type = "application/json"),
    responses(
        (status = 200, description = "The decision is recorded.", body = Steered),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job, or nothing of this name waits.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "There is no such decision.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn decide(
    State(server): State<SharedServer>,
    caller: Caller,
    Path((job, approval)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Steered>, ApiError> {
    let job = parse_job_id(&job)?;
    let invalid =
        |message: String| RequestError::InvalidField { pointer: "decision".into(), message };
    let NewDecision { decision, words } = read_object(&server, &headers, body, "decision").await?;
    if words.as_ref().is_some_and(|words| words.len() > LONGEST) {
        return Err(invalid("`words` must not be longer than 256 KiB".into()).into());
    }
    let view = server.app.store.job(job).await?;
    if view.status.is_terminal() {
        return Err(ApiError::JobOver);
    }
    if !view.approvals.iter().any(|waiting| waiting.id == approval) {
        return Err(ApiError::ApprovalNotFound);
    }
    steer(&server, &caller, job, Steering::Decide { id: approval, decision, words }).await
}

const LONGEST: usize = 256 << 10;

pub(super) async fn steer(
    server: &SharedServer,
    caller: &Caller,
    job: JobId,
    wish: Steering,
) -> Result<Json<Steered>, ApiError> {
    let status = match server.app.store.steer(job, wish, &caller.actor("user")).await {
        Err(StoreError::JobEnded) => return Err(ApiError::JobOver),
        Err(StoreError::NotStarted) => return Err(ApiError::NotWorkedOn),
        other => other?,
    };
    Ok(Json(Steered { job_id: job, task_id: job, status, status_url: links::status_url(job) }))
}
