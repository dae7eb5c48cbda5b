//! `/jobs/{id}/steps/{n}/diff`, `/jobs/{id}/steps/{n}/files.tar` and `/jobs/{id}/restore`: workspaces
//! as they were after a step.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::checkpoint::{CheckpointNumber, Tree};
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobView;
use bellglass_store::Steering;
use bellglass_store::checkpoints::{CheckpointError, read_tree};
use serde::Deserialize;
use utoipa::ToSchema;

use super::steering::{Steered, steer};
use crate::caller::Caller;
use crate::extract::{JobPath, StepPath, read_object};
use crate::problem::{ApiError, Problem};
use crate::{App, SharedServer, content, tree_archive, tree_diff};

/// What a step did to the workspace
///
/// A unified diff against the workspace as it was before the step, as `git diff` writes it. Binary and
/// very large files are only named, and what is too long is cut; the last line then says so.
#[utoipa::path(
    get, path = "/jobs/{id}/steps/{n}/diff", operation_id = "get_step_diff", tag = "results",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("n" = u32, Path, minimum = 1, description = "Number of the step, counted from 1"),
    ),
    responses(
        (status = 200, description = "The diff; empty if the step changed nothing.", body = String, content_type = "text/plain; charset=utf-8"),
        (status = 400, description = "An id or a number is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or step, or its files were not kept.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn diff(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    StepPath(n): StepPath,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let view = app.store.job(job).await?;
    must_have_step(&view, n)?;
    let (before, after) = (checkpoint_after(&view, n - 1)?, checkpoint_after(&view, n)?);
    let text = if before == after {
        String::new()
    } else {
        let (before, after) = (tree(app, job, before).await?, tree(app, job, after).await?);
        let diff = tree_diff::diff(&app.artifacts, job, &before, &after).await;
        diff.map_err(|error| unreadable(job, &error))?
    };
    let mut response = Body::from(text).into_response();
    let headers = response.headers_mut();
    content::put_harmless(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// The workspace as it was after a step
///
/// A tar archive, which keeps names, permissions and symlinks as they were.
#[utoipa::path(
    get, path = "/jobs/{id}/steps/{n}/files.tar", operation_id = "get_step_files", tag = "results",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("n" = u32, Path, minimum = 1, description = "Number of the step, counted from 1"),
    ),
    responses(
        (status = 200, description = "The files.", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 400, description = "An id or a number is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or step, or its files were not kept.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn files(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    StepPath(n): StepPath,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let view = app.store.job(job).await?;
    must_have_step(&view, n)?;
    let tree = tree(app, job, checkpoint_after(&view, n)?).await?;
    let archive = tree_archive::stream(app.artifacts.clone(), job, tree);
    let mut response = Body::from_stream(archive).into_response();
    let headers = response.headers_mut();
    content::put_harmless(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    let name = format!("{job}-step-{n}.tar");
    headers.insert(header::CONTENT_DISPOSITION, content::disposition("attachment", &name));
    Ok(response)
}

/// To which step to go back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreRequest {
    /// The workspace becomes what it was after this step; 0 is before the first.
    step: u32,
}

/// Make the workspace of a running job again what it was after a step
///
/// It is done once what is under way is over, also while the job is paused, and before anything else;
/// the event `workspace.restored` tells when. Programs in the sandbox go on, and so does the job: its
/// steps are not done again.
#[utoipa::path(
    post, path = "/jobs/{id}/restore", operation_id = "restore_workspace", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = RestoreRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "The wish is recorded.", body = Steered),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or step, or its files were not kept.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended, or nobody works on it yet.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field is wrong.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn restore(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Steered>, ApiError> {
    let RestoreRequest { step } = read_object(&server, &headers, body, "step").await?;
    let view = server.app.store.job(job).await?;
    if view.status.is_terminal() {
        return Err(ApiError::JobOver);
    }
    if step > 0 {
        must_have_step(&view, step)?;
    }
    checkpoint_after(&view, step)?;
    steer(&server, &caller, job, Steering::Restore { step }).await
}

/// A step that is over, or the state that a fork began with.
pub(super) fn must_have_step(view: &JobView, n: u32) -> Result<(), ApiError> {
    use bellglass_protocol::step::StepStatus::Running;
    let is_over = view.steps.iter().any(|step| step.n == n && step.status != Running);
    let is_base = view.spec.fork.is_some_and(|fork| fork.heard.is_some() && fork.step == n);
    if is_over || is_base { Ok(()) } else { Err(ApiError::StepNotFound(n)) }
}

pub(super) fn checkpoint_after(
    view: &JobView,
    step: u32,
) -> Result<Option<CheckpointNumber>, ApiError> {
    view.kept.after(step).map_err(|_| ApiError::NotKept(step))
}

async fn tree(
    app: &App,
    job: JobId,
    checkpoint: Option<CheckpointNumber>,
) -> Result<Tree, ApiError> {
    match checkpoint {
        None => Ok(Tree::default()),
        Some(number) => {
            let tree = read_tree(&app.artifacts, job, number).await;
            tree.map_err(|error| unreadable(job, &error))
        }
    }
}

fn unreadable(job: JobId, error: &CheckpointError) -> ApiError {
    tracing::error!(%job, error = error as &dyn std::error::Error, "a checkpoint cannot be read");
    ApiError::Internal
}
