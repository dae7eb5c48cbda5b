//! `GET /jobs/{id}/steps/{n}/output`: all that a step wrote, as text.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::StepView;
use bellglass_store::artifacts::ArtifactKey;

use crate::SharedServer;
use crate::content;
use crate::extract::{JobPath, StepPath};
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
    let mut view = app.store.job(job).await?;
    let position = view.steps.iter().position(|step| step.n == n);
    let step = view.steps.swap_remove(position.ok_or(ApiError::StepNotFound(n))?);
    let mut response = Body::empty().into_response();
    if step.full_output.is_some() {
        let output = app.artifacts.get(&ArtifactKey::step_output(job, n), None).await;
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

/// A tool without output of its own, such as `read_file`, has an answer instead.
fn recorded(step: StepView) -> String {
    if step.stdout.is_empty() && step.stderr.is_empty() {
        return step.output;
    }
    step.stdout + &step.stderr
}
