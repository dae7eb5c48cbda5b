//! `POST /schedule` and its alias `POST /submit`: accepts a job.
//!
//! The answer is given only after the store has made the job durable; a refused request leaves
//! nothing behind.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{DESKTOP_IMAGE, JobSpec};
use bellglass_protocol::request::{JobRequest, RequestError};
use bellglass_protocol::view::JobStatus;
use serde::Serialize;
use utoipa::ToSchema;

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::read_body;
use crate::links::{self, Links};
use crate::problem::{ApiError, Problem};
use crate::vnc;

/// A job that was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Scheduled {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    status: JobStatus,
    /// Where the ZIP of the workspace will be when the job has ended.
    download_url: String,
    #[serde(flatten)]
    links: Links,
}

/// Schedule a job
///
/// The body has exactly one of `task`, `prompt` (the same thing) and `steps`.
#[utoipa::path(
    post, path = "/schedule", operation_id = "schedule_job", tag = "jobs",
    request_body(content = JobRequest, content_type = "application/json"),
    responses(
        (status = 202, description = "The job is accepted and durable.", body = Scheduled,
            headers(("Location" = String, description = "Where the job is found"))),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The job cannot be accepted as it is.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn schedule(
    State(server): State<SharedServer>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    must_be_json(&headers)?;
    let app = &server.app;
    let body = read_body(&headers, body, app.settings.body_limit).await?;
    let request = if body.len() > LARGE {
        let parsed = tokio::task::spawn_blocking(move || JobRequest::from_json(&body)).await;
        parsed.map_err(|_| ApiError::Internal)?
    } else {
        JobRequest::from_json(&body)
    };
    let spec = request.and_then(|request| request.into_spec(&app.offer)).map_err(shortened)?;
    accept(&server, &caller, spec).await
}

/// Schedules a job that was checked, if this host can run it.
pub(super) async fn accept(
    server: &SharedServer,
    caller: &Caller,
    mut spec: JobSpec,
) -> Result<Response, ApiError> {
    let app = &server.app;
    if let Some(why) = app.isolation.lacks(spec.isolation).await {
        return Err(RequestError::NotAvailable { field: "isolation", why }.into());
    }
    if !app.images.exists(&spec.image).await {
        return Err(ApiError::ImageNotFound(spec.image));
    }
    spec.owner = caller.owner();
    let place = server.meter.job(app.store.as_ref(), caller).await?;
    place.bound(&mut spec.limits);
    let port = match &server.vnc {
        Some(vnc) if spec.desktop.is_some() || spec.image == DESKTOP_IMAGE => vnc.reserve().await,
        _ => None,
    };
    let job = app.store.schedule(spec).await?;
    drop(place);
    if let Some(port) = port {
        vnc::serve(server, job, port);
    }
    server.metrics.jobs_scheduled.increment(1);
    let answer = Scheduled {
        job_id: job,
        task_id: job,
        status: JobStatus::Scheduled,
        download_url: links::download_url(job),
        links: Links::of(server, job),
    };
    let location = [(header::LOCATION, links::job_url(job))];
    Ok((StatusCode::ACCEPTED, location, axum::Json(answer)).into_response())
}

/// Schedule a job (alias)
///
/// Another name for `POST /schedule`.
#[utoipa::path(
    post, path = "/submit", operation_id = "submit_job", tag = "jobs",
    request_body(content = JobRequest, content_type = "application/json"),
    responses(
        (status = 202, description = "The job is accepted and durable.", body = Scheduled,
            headers(("Location" = String, description = "Where the job is found"))),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The job cannot be accepted as it is.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn submit(
    server: State<SharedServer>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    schedule(server, caller, headers, body).await
}

/// A body of this many bytes takes long enough to parse that others would have to wait for it.
const LARGE: usize = 256 << 10;

/// A page of another site can send forms and plain text without asking, but not JSON: insisting on
/// the type is part of the protection against it.
pub(crate) fn must_be_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Err(ApiError::UnsupportedMediaType(None));
    };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(value.as_bytes()).chars().take(100).collect();
    Err(ApiError::UnsupportedMediaType(Some(shown)))
}

/// Keeps an error readable that quotes a long piece of the request.
pub(crate) fn shortened(error: RequestError) -> RequestError {
    match error {
        RequestError::InvalidField { pointer, message } => RequestError::InvalidField {
            pointer: head_and_tail(pointer, 200),
            message: head_and_tail(message, 1000),
        },
        other => other,
    }
}

fn head_and_tail(text: String, longest: usize) -> String {
    if text.len() <= longest {
        return text;
    }
    let head = &text[..text.floor_char_boundary(longest / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - longest / 4)..];
    format!("{head} … {tail}")
}
