//! `POST /jobs/{id}/fork`: a new job that goes on from a step of another one.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{Fork, JobSpec, Work};
use bellglass_protocol::request::{JobRequest, RequestError};
use bellglass_protocol::view::JobView;
use bellglass_store::{Store, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::checkpoints::{checkpoint_after, must_have_step};
use super::schedule::{Scheduled, accept, shortened};
use crate::caller::Caller;
use crate::extract::{JobPath, read_object};
use crate::problem::{ApiError, Problem};
use crate::{App, SharedServer};

/// Where to leave the other job, and what to do then. At most one of `message`, `task` and `steps`;
/// with none of them a list of steps goes on with those that are left.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkRequest {
    /// The workspace begins as it was after this step; 0 is before the first.
    step: u32,
    /// What to say to the model of a task, which knows all that was said and done until then.
    message: Option<String>,
    /// A new task for a model that knows the files alone.
    task: Option<String>,
    /// Steps to run on the files.
    #[schema(value_type = Option<Vec<Object>>)]
    steps: Option<Value>,
    /// What people call the new job.
    name: Option<String>,
}

/// Go on from a step of a job in a new job
///
/// The new job has the files as they were after the step, and all else as the other job had it. The
/// other job is not touched, and may have ended.
#[utoipa::path(
    post, path = "/jobs/{id}/fork", operation_id = "fork_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job to go on from")),
    request_body(content = ForkRequest, content_type = "application/json"),
    responses(
        (status = 202, description = "The new job is accepted and durable.", body = Scheduled,
            headers(("Location" = String, description = "Where the job is found"))),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or step, or its files were not kept.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has no files yet.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The new job cannot be accepted as it is.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn fork(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let request: ForkRequest = read_object(&server, &headers, body, "step").await?;
    let parent = app.store.job(job).await?;
    if parent.kept.pending.is_some() {
        return Err(ApiError::NotStarted);
    }
    if request.step > 0 {
        must_have_step(&parent, request.step)?;
    }
    let checkpoint = checkpoint_after(&parent, request.step)?;
    let fork = Fork { job, step: request.step, checkpoint, heard: None };
    let spec = forked(app, &parent, request, fork).await?;
    accept(&server, &caller, spec).await
}

async fn forked(
    app: &App,
    parent: &JobView,
    request: ForkRequest,
    mut fork: Fork,
) -> Result<JobSpec, ApiError> {
    let ForkRequest { step, message, task, steps, name } = request;
    let is_task = matches!(parent.spec.work, Work::Task(_));
    let asked = match (message, task, steps) {
        (Some(message), None, None) if is_task => {
            fork.heard = Some(heard_until(&*app.store, fork.job, step).await?);
            json!({ "task": message, "model": parent.spec.model })
        }
        (Some(_), None, None) => {
            let words = "only a `task` has a model that could hear it; give `task` or `steps`";
            return Err(invalid("message", words.into()).into());
        }
        (None, Some(task), None) => json!({ "task": task, "model": parent.spec.model }),
        (None, None, Some(steps)) => json!({ "steps": steps }),
        (None, None, None) => match &parent.spec.work {
            Work::Steps(steps) => json!({ "steps": steps.get(step as usize..).unwrap_or(&[]) }),
            Work::Task(_) | Work::Session(_) => {
                let words = "say what to do: give one of `message`, `task` and `steps`";
                return Err(invalid("message", words.into()).into());
            }
        },
        _ => return Err(invalid("", "give one of `message`, `task` and `steps`".into()).into()),
    };
    let mut asked = asked;
    if let Some(name) = name.or_else(|| parent.spec.name.clone()) {
        asked["name"] = name.into();
    }
    // Checked as any other job, so that a fork is no way around the rules.
    let body = serde_json::to_vec(&asked).map_err(|_| ApiError::Internal)?;
    let own = JobRequest::from_json(&body).and_then(|request| request.into_spec(&app.offer));
    let own = own.map_err(shortened)?;
    let goes_on_as_task = is_task && matches!(own.work, Work::Task(_));
    let old = parent.spec.clone();
    let for_a_model = if goes_on_as_task { old.clone() } else { own.clone() };
    Ok(JobSpec {
        name: own.name,
        work: own.work,
        model: own.model,
        files: Vec::new(),
        fork: Some(fork),
        network: parent.network.clone(),
        budget: for_a_model.budget,
        plan: for_a_model.plan,
        mcp: for_a_model.mcp,
        approve: for_a_model.approve,
        project: for_a_model.project,
        ..old
    })
}

/// The event up to which the model of a fork has heard everything: the end of the step.
async fn heard_until(store: &dyn Store, job: JobId, step: u32) -> Result<u64, StoreError> {
    // The first event is the task itself.
    let (mut after, mut found) = (0, 1);
    loop {
        let page = store.events_after(job, after, 200).await?;
        let Some(last) = page.last() else { return Ok(found) };
        after = last.event.seq;
        for sealed in &page {
            if let EventBody::StepFinished { n, .. } = sealed.event.body
                && n == step
            {
                found = sealed.event.seq;
            }
        }
    }
}

fn invalid(pointer: &str, message: String) -> RequestError {
    RequestError::InvalidField { pointer: pointer.into(), message }
}
