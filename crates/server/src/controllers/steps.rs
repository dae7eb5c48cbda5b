//! `GET /jobs/{id}/steps/{n}/output`: all that a step wrote, as text.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::{JobView, StepView};
use bellglass_store::artifacts::ArtifactKey;
use bellglass_store::{Store, StoreError};

use crate::SharedServer;
use crate::content;
use crate::extract::{AttachmentPath, JobPath, StepPath};
use crate::problem::{ApiError, Problem};

/// All that a step wrote
///
/// Output that fits into the record comes from there: first standard output, then standard error.
/// Longer output comes in full, in the order in which it was written.
#[utoipa::path(
    get, path = "/jobs/{id}/steps/{n}/output", operation_id = "get_step_output", tag = "results",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("n" = u32, Path, minimum = 1, description = "Number of the step, counted from 1"),
    ),
    responses(
        (status = 200, description = "The output.", body = String, content_type = "text/plain; charset=utf-8"),
        (status = 400, description = "An id or a number is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job, or it has no such step so far.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn output(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    StepPath(n): StepPath,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let step = find_step(&*app.store, job, n).await?.ok_or(ApiError::StepNotFound(n))?;
    let mut response = Body::empty().into_response();
    if let Some(name) = &step.full_output {
        let key = ArtifactKey::named(job, name).ok_or(ApiError::Internal)?;
        let output = app.artifacts.get(&key, None).await;
        let output = output.map_err(|error| {
            tracing::error!(%job, n, error = &error as &dyn std::error::Error, "a step's output cannot be read");
            ApiError::Internal
        })?;
        response.headers_mut().insert(header::CONTENT_LENGTH, output.bytes_total.into());
        *response.body_mut() = Body::from_stream(output.stream);
    } else {
        *response.body_mut() = Body::from(recorded(step));
    }
    let headers = response.headers_mut();
    content::put_harmless(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// Something beside text that a step gave
///
/// A screenshot, a figure or another rich result. Pictures are shown; all else is a download.
#[utoipa::path(
    get, path = "/jobs/{id}/steps/{n}/attachments/{k}", operation_id = "get_step_attachment", tag = "results",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("n" = u32, Path, minimum = 1, description = "Number of the step, counted from 1"),
        ("k" = u32, Path, minimum = 1, description = "Number of the attachment, counted from 1"),
    ),
    responses(
        (status = 200, description = "Its content.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, description = "An id or a number is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job, or its step gave no such thing.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn attachment(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    StepPath(n): StepPath,
    AttachmentPath(k): AttachmentPath,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let step = find_step(&*app.store, job, n).await?.ok_or(ApiError::StepNotFound(n))?;
    let found = step.attachments.into_iter().nth(k as usize - 1).ok_or(ApiError::NotFound)?;
    let key = ArtifactKey::named(job, &found.artifact).ok_or(ApiError::Internal)?;
    let content = app.artifacts.get(&key, None).await;
    let content = content.map_err(|error| {
        tracing::error!(%job, n, k, error = &error as &dyn std::error::Error, "an attachment cannot be read");
        ApiError::Internal
    })?;
    let mut response = Body::from_stream(content.stream).into_response();
    let headers = response.headers_mut();
    // By the name, which is ours, and not by what the sandbox says it is.
    let name = format!("step-{n}-{k}.{}", extension(&found.media_type));
    content::put_headers_for(headers, &name);
    headers.insert(header::CONTENT_LENGTH, content.bytes_total.into());
    Ok(response)
}

fn extension(media_type: &str) -> &'static str {
    match media_type {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "text/html" => "html",
        "text/markdown" => "md",
        "text/latex" => "tex",
        "application/json" => "json",
        _ => "bin",
    }
}

/// Folds one step out of the log, so that all others cost no memory.
async fn find_step(store: &dyn Store, job: JobId, n: u32) -> Result<Option<StepView>, StoreError> {
    let mut view: Option<JobView> = None;
    let mut after = 0;
    loop {
        let page = store.events_after(job, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.event.seq;
        for SealedEvent { event, .. } in &page {
            match &mut view {
                None => view = JobView::begin(event),
                Some(view) if concerns(n, &event.body) => view.apply(event),
                Some(_) => {}
            }
        }
    }
    Ok(view.and_then(|mut view| view.steps.pop()))
}

/// Events in one page.
const PAGE: u32 = 200;

fn concerns(n: u32, body: &EventBody) -> bool {
    match body {
        EventBody::StepStarted { n: step, .. }
        | EventBody::StepOutput { n: step, .. }
        | EventBody::StepFinished { n: step, .. } => *step == n,
        // What was done in a lost sandbox is void.
        EventBody::SandboxLost { .. } => true,
        _ => false,
    }
}

/// A tool without output of its own, such as `read_file`, has an answer instead.
fn recorded(step: StepView) -> String {
    if step.stdout.is_empty() && step.stderr.is_empty() {
        return step.output;
    }
    step.stdout + &step.stderr
}
