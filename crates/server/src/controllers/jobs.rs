//! `GET /jobs` and `GET /jobs/{id}`: the list of jobs, and one job whole.

use axum::Json;
use axum::extract::State;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::{JobStatus, JobView};
use bellglass_store::{JobFilter, JobSummary};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, Parameters};
use crate::links::{self, Links};
use crate::problem::{ApiError, Problem};
use crate::withheld::Withheld;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParameters {
    /// How many jobs to list at the most.
    #[param(minimum = 1, maximum = 200, default = 50, nullable = false)]
    limit: Option<u32>,
    /// Only jobs that are older than this one.
    #[param(value_type = Option<JobId>, nullable = false)]
    before: Option<String>,
    /// Only jobs that stand there.
    #[param(nullable = false)]
    status: Option<JobStatus>,
    /// Only jobs whose name or task contains this text.
    #[param(max_length = 200, nullable = false)]
    search: Option<String>,
}

const USUAL_LIMIT: u32 = 50;
const HIGHEST_LIMIT: u32 = 200;
const LONGEST_SEARCH: usize = 200;

impl ListParameters {
    fn into_filter(self, owner: Option<String>) -> Result<JobFilter, ApiError> {
        let refuse = |why: &str| Err(ApiError::InvalidQuery(why.into()));
        let limit = self.limit.unwrap_or(USUAL_LIMIT);
        if !(1..=HIGHEST_LIMIT).contains(&limit) {
            return refuse("`limit` must be from 1 to 200");
        }
        let before = match self.before.as_deref().map(str::parse::<JobId>) {
            Some(Err(error)) => return refuse(&format!("`before`: {error}")),
            Some(Ok(job)) => Some(job),
            None => None,
        };
        let search = self.search.filter(|text| !text.is_empty());
        if let Some(text) = &search
            && (text.chars().count() > LONGEST_SEARCH || text.contains('\0'))
        {
            return refuse("`search` must be at most 200 characters without NUL");
        }
        Ok(JobFilter { status: self.status, owner, search, before, limit })
    }
}

/// Some jobs, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    jobs: Vec<ListedJob>,
    /// The address of the next page, if there is one.
    #[schema(required)]
    next: Option<String>,
}

/// A job as one row of the list.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListedJob {
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    #[schema(required)]
    name: Option<String>,
    /// The task, or the first step, shortened.
    title: String,
    status: JobStatus,
    priority: i32,
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    finished_at: Option<Timestamp>,
    /// Steps that are over, however they ended.
    steps_done: u32,
    /// How many steps a fixed list has; unknown for a task.
    #[schema(required)]
    steps_total: Option<u32>,
    /// Whose job it is; nobody's where the server has no users.
    #[schema(required)]
    owner: Option<String>,
    /// The job whole.
    job_url: String,
    status_url: String,
    /// Where people watch it.
    page_url: String,
}

impl From<JobSummary> for ListedJob {
    fn from(job: JobSummary) -> Self {
        Self {
            job_id: job.id,
            task_id: job.id,
            name: job.name,
            title: job.title,
            status: job.status,
            priority: job.priority,
            scheduled_at: job.scheduled_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            steps_done: job.steps_done,
            steps_total: job.steps_total,
            owner: job.owner,
            job_url: links::job_url(job.id),
            status_url: links::status_url(job.id),
            page_url: links::page_url(job.id),
        }
    }
}

/// List jobs, newest first
#[utoipa::path(
    get, path = "/jobs", operation_id = "list_jobs", tag = "jobs",
    params(ListParameters),
    responses(
        (status = 200, description = "A page of jobs.", body = JobList),
        (status = 400, description = "A parameter is wrong.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    Parameters(parameters): Parameters<ListParameters>,
) -> Result<Json<JobList>, ApiError> {
    let filter = parameters.into_filter(caller.only_of())?;
    let page = server.app.store.jobs(&filter).await?;
    let last = page.jobs.last().filter(|_| page.more).map(|job| job.id);
    let next = last.map(|last| next_page(&filter, last));
    Ok(Json(JobList { jobs: page.jobs.into_iter().map(ListedJob::from).collect(), next }))
}

fn next_page(filter: &JobFilter, last: JobId) -> String {
    #[derive(Serialize)]
    struct Next<'a> {
        limit: u32,
        before: JobId,
        status: Option<JobStatus>,
        search: Option<&'a str>,
    }
    let next = Next {
        limit: filter.limit,
        before: last,
        status: filter.status,
        search: filter.search.as_deref(),
    };
    format!("/jobs?{}", serde_urlencoded::to_string(next).unwrap_or_default())
}

/// A job whole.
#[derive(Serialize, ToSchema)]
pub(crate) struct Job {
    #[serde(flatten)]
    view: JobView,
    /// The same as `job_id`.
    task_id: JobId,
    /// The address of the ZIP, once it is stored.
    #[schema(required)]
    download_url: Option<String>,
    #[serde(flatten)]
    links: Links,
}

/// One job whole, with its steps
///
/// Whoever comes by a link sees it without what the link leaves out.
#[utoipa::path(
    get, path = "/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job.", body = Job),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<Json<Job>, ApiError> {
    let mut view = server.app.store.job(job).await?;
    if let Some(withheld) = Withheld::from(&caller) {
        withheld.blank(&mut view.spec);
    }
    let download_url = links::result_url(job, view.result.as_ref());
    Ok(Json(Job { view, task_id: job, download_url, links: Links::of(&server, job) }))
}
