//! `/jobs/{id}/share` makes links to one job for those who have no token; `/share/{link}` opens them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::quantity::Seconds;
use bellglass_store::access::ShareKey;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule::must_be_json;
use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, object_of, read_body};
use crate::links;
use crate::problem::{ApiError, Problem};
use crate::share::{self, ShareLink, ShownLink};
use crate::token::random;

/// What a link is to show.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewShare {
    /// After so long it opens nothing any more: a week, unless said otherwise.
    expires_in: Seconds,
    /// Whether the files may be read.
    files: bool,
    /// Whether the ZIP may be downloaded.
    output: bool,
}

impl Default for NewShare {
    fn default() -> Self {
        Self { expires_in: Seconds::whole(7 * 86_400), files: true, output: true }
    }
}

/// A link for whoever it is given to.
#[derive(Serialize, ToSchema)]
pub(crate) struct Shared {
    job_id: JobId,
    /// The link. A path, so that it holds under any host name.
    url: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    files: bool,
    output: bool,
}

/// Make a link to a job
///
/// Whoever opens it sees the job's page and its history, and can change nothing. It holds for its time, or
/// until the links of the job are taken back.
#[utoipa::path(
    post, path = "/jobs/{id}/share", operation_id = "share_job", tag = "access",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = NewShare, content_type = "application/json"),
    responses(
        (status = 201, description = "The link.", body = Shared),
        (status = 400, description = "Not a job id, or the body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field is wrong.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn share(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Shared>), ApiError> {
    let body = read_body(&headers, body, server.app.settings.body_limit).await?;
    let NewShare { expires_in, files, output } = match body.is_empty() {
        true => NewShare::default(),
        false => {
            must_be_json(&headers)?;
            object_of(&body, "expires_in")?
        }
    };
    server.app.store.owner(job).await?;
    // Whole seconds, at least one.
    let seconds = expires_in.get().ceil() as i64;
    let until = Timestamp::now().as_second().saturating_add(seconds);
    let expires_at = Timestamp::from_second(until).map_err(|_| ApiError::Internal)?;
    let key =
        server.app.store.keep_share_key(job, ShareKey(random()), &caller.actor("user")).await?;
    let text = ShareLink { job, until, files, output }.sealed(&key);
    let url = format!("/share/{text}");
    Ok((StatusCode::CREATED, Json(Shared { job_id: job, url, expires_at, files, output })))
}

/// Take back all links to a job
///
/// None that was ever made opens anything any more. New ones can be made.
#[utoipa::path(
    delete, path = "/jobs/{id}/share", operation_id = "unshare_job", tag = "access",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 204, description = "No link opens the job any more."),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn unshare(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
) -> Result<StatusCode, ApiError> {
    server.app.store.owner(job).await?;
    server.app.store.drop_share_key(job, &caller.actor("user")).await?;
    server.revoked.send_replace(());
    Ok(StatusCode::NO_CONTENT)
}

/// Opens a link: the browser goes on to the job's page and shows the link with what that asks for. The
/// page says so if the link holds no more.
pub(crate) async fn open(
    State(server): State<SharedServer>,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let shown = ShownLink::read(&text).ok_or(ApiError::NotFound)?;
    let (job, now) = (shown.job(), Timestamp::now());
    let key = server.app.store.share_key(job).await?;
    let link = key.and_then(|key| shown.checked(&key, now));
    let to = [(header::LOCATION, format!("{}?shared", links::page_url(job)))];
    let Some(link) = link else { return Ok((StatusCode::SEE_OTHER, to).into_response()) };
    let cookies = share::cookies(&link, &text, &headers, now);
    let cookies = AppendHeaders(cookies.map(|cookie| (header::SET_COOKIE, cookie)));
    Ok((StatusCode::SEE_OTHER, to, cookies).into_response())
}
