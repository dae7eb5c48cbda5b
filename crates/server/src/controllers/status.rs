//! `GET /status/{id}` and `GET /status?task_id=`: where a job stands, in one small document.

use axum::Json;
use axum::extract::State;
use bellglass_protocol::event::JobError;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::JobOutline;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::caller::Caller;
use crate::extract::{JobPath, Parameters, parse_job_id};
use crate::links::{self, Links};
use crate::problem::{ApiError, Problem};
use crate::rights::JobRight;
use crate::{Server, SharedServer};

/// Where a job stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    #[schema(required)]
    name: Option<String>,
    status: JobStatus,
    /// The address of the ZIP, once it is stored.
    #[schema(required)]
    result: Option<String>,
    /// The same as `result`.
    #[schema(required)]
    download_url: Option<String>,
    /// Why the job failed, if it did.
    #[schema(required)]
    error: Option<JobError>,
    /// Numbers of the steps that failed, timed out or were cancelled.
    failed_steps: Vec<u32>,
    /// Steps that are over, however they ended.
    steps_done: u32,
    /// How many steps a fixed list has; unknown for a task.
    #[schema(required)]
    steps_total: Option<u32>,
    /// Whether somebody asked for the job to end.
    cancel_requested: bool,
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    finished_at: Option<Timestamp>,
    /// What whoever asks may do with the job.
    access: JobAccess,
    /// What `vnc_port` asks for, for those who may change the job.
    #[schema(required)]
    vnc_password: Option<String>,
    #[serde(flatten)]
    links: Links,
}

/// What somebody may do with a job beside seeing what happens to it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobAccess {
    /// Steer it, and write into it.
    change: bool,
    /// Read its files.
    files: bool,
    /// Download the ZIP.
    output: bool,
    /// See what its model is told.
    mind: bool,
}

impl JobAccess {
    fn of(caller: &Caller) -> Self {
        Self {
            change: caller.has_for_jobs(JobRight::Change),
            files: caller.has_for_jobs(JobRight::Files),
            output: caller.has_for_jobs(JobRight::Result),
            mind: caller.has_for_jobs(JobRight::Mind),
        }
    }
}

impl Status {
    async fn of(server: &Server, job: JobOutline, caller: &Caller) -> Result<Self, ApiError> {
        let result = links::result_url(job.id, job.result.as_ref());
        let vnc = server.vnc.as_ref().filter(|_| caller.has_for_jobs(JobRight::Change));
        let vnc_password = match vnc {
            Some(vnc) => vnc.password(server.app.store.as_ref(), job.id).await?,
            None => None,
        };
        Ok(Self {
            job_id: job.id,
            task_id: job.id,
            name: job.name,
            status: job.status,
            download_url: result.clone(),
            result,
            error: job.error,
            failed_steps: job.failed_steps,
            steps_done: job.steps_done,
            steps_total: job.steps_total,
            cancel_requested: job.cancel_requested,
            scheduled_at: job.scheduled_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            vnc_password: vnc_password.map(|password| password.text().to_owned()),
            access: JobAccess::of(caller),
            links: Links::of(server, job.id),
        })
    }
}

/// Where a job stands
#[utoipa::path(
    get, path = "/status/{id}", operation_id = "get_status", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "Where the job stands.", body = Status),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn by_path(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<Json<Status>, ApiError> {
    Ok(Json(Status::of(&server, server.app.store.outline(job).await?, &caller).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// The job.
    #[param(value_type = Option<JobId>, nullable = false)]
    task_id: Option<String>,
    /// Another word for `task_id`.
    #[param(value_type = Option<JobId>, nullable = false)]
    job_id: Option<String>,
}

/// Where a job stands (by query)
///
/// Give one of `task_id` and `job_id`.
#[utoipa::path(
    get, path = "/status", operation_id = "find_status", tag = "jobs",
    params(Which),
    responses(
        (status = 200, description = "Where the job stands.", body = Status),
        (status = 400, description = "No id, or not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn by_query(
    State(server): State<SharedServer>,
    caller: Caller,
    Parameters(which): Parameters<Which>,
) -> Result<Json<Status>, ApiError> {
    let text = match (which.task_id, which.job_id) {
        (Some(task), Some(job)) if task != job => {
            return Err(ApiError::InvalidQuery("`task_id` and `job_id` name two jobs".into()));
        }
        (Some(id), _) | (None, Some(id)) => id,
        (None, None) => {
            return Err(ApiError::InvalidQuery("say which job: /status?task_id=…".into()));
        }
    };
    let job = parse_job_id(&text)?;
    caller.must_see(&server, job).await?;
    Ok(Json(Status::of(&server, server.app.store.outline(job).await?, &caller).await?))
}
