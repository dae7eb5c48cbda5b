//! The one error of the HTTP boundary, and how it becomes a problem document (RFC 9457).
//!
//! A client may rely on `code` and on the status. The words may change.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::image_build_command;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::request::RequestError;
use bellglass_store::StoreError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::quota::Quota;

/// Why a request was not answered as the client wished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("there is no image named `{0}` on this server")]
    ImageNotFound(String),
    #[error("the body is larger than the {0} that this server accepts here")]
    BodyTooLarge(ByteSize),
    #[error("the body could not be read to its end")]
    BodyUnreadable,
    #[error("the body must be JSON, but its Content-Type is {}", .0.as_deref().unwrap_or("missing"))]
    UnsupportedMediaType(Option<String>),
    #[error("{0}")]
    InvalidJobId(String),
    #[error("there is no job {0}")]
    JobNotFound(JobId),
    #[error("{0}")]
    InvalidQuery(String),
    #[error("the path {0}")]
    InvalidPath(Cow<'static, str>),
    #[error("`{0}` is not the number of a step; steps count from 1")]
    InvalidStep(String),
    #[error("the job has no step {0} so far")]
    StepNotFound(u32),
    #[error("the workspace as it was after step {0} was not kept")]
    NotKept(u32),
    #[error("the job is still at work; its ZIP is stored when it ends")]
    ResultNotReady,
    #[error("the job ended without a ZIP")]
    ResultMissing,
    #[error("the requested range lies outside of the {0} bytes there are")]
    RangeNotSatisfiable(u64),
    #[error("there is nothing at `{0}` in the workspace")]
    FileNotFound(String),
    #[error("the job's sandbox does not run yet, so it has no files")]
    NotStarted,
    #[error("the job has ended; it can be looked at but no longer changed")]
    JobEnded,
    #[error("nobody works on the job yet, so it cannot be paused; it can be cancelled")]
    NotWorkedOn,
    #[error("the job has ended, so it cannot be steered any more")]
    JobOver,
    #[error("nothing of this name waits for a decision in this job")]
    ApprovalNotFound,
    #[error("there is no such memory")]
    MemoryNotFound,
    #[error("the project has this memory already")]
    MemoryKnown,
    /// The sandbox refused; the text is its own and was shortened.
    #[error("the sandbox answered: {0}")]
    RefusedBySandbox(String),
    #[error("as many files of this job are on their way as its sandbox can serve at once")]
    SandboxBusy,
    #[error(
        "as many files of jobs that have ended are being read as this server can serve at once"
    )]
    FilesBusy,
    #[error("{0} works with the desktop of this job")]
    DesktopTaken(String),
    #[error(
        "`{0}` is not a port of an app; a port is a number up to 65535 that a program listens on"
    )]
    InvalidPort(String),
    #[error("content of sandboxes is shown under host names of its own, and this server has none")]
    NoSandboxDomain,
    #[error("the job's sandbox cannot be reached")]
    SandboxUnreachable,
    #[error("this server does not answer under the host name `{0}`")]
    ForbiddenHost(String),
    #[error("pages of other sites may not call this server")]
    ForbiddenOrigin,
    #[error("this server needs a token, and the request has none or a wrong one")]
    Unauthorized,
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("there is no such token")]
    TokenNotFound,
    #[error("these are more requests than one user may send in a second")]
    TooManyRequests,
    #[error("too many wrong tokens came from this address")]
    TooManyAttempts,
    #[error("{quota}")]
    QuotaExceeded { quota: Quota, retry_after: u64 },
    #[error("there is nothing at this address")]
    NotFound,
    #[error("this address does not take this method")]
    MethodNotAllowed,
    #[error("the database does not answer now; nothing was changed, as far as can be told")]
    StoreUnavailable,
    #[error(
        "the disk that the server keeps its jobs on is full; as far as can be told, nothing was written"
    )]
    StoreFull,
    #[error("something went wrong inside the server; its log says what")]
    Internal,
}

/// What is the same for every error of one kind.
pub(crate) struct Kind {
    pub code: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
}

const fn kind(code: &'static str, status: u16, title: &'static str) -> Kind {
    let Ok(status) = StatusCode::from_u16(status) else { panic!("a valid status") };
    Kind { code, status, title }
}

/// Every kind of error, in the order in which the documentation lists them.
pub(crate) const KINDS: &[Kind] = &[
    kind("invalid_json", 400, "The body is not JSON"),
    kind("unreadable_body", 400, "The body broke off"),
    kind("body_too_large", 413, "The body is too large"),
    kind("unsupported_media_type", 415, "The body is not declared as JSON"),
    kind("invalid_request", 422, "A field is wrong"),
    kind("unknown_tool", 422, "There is no such tool"),
    kind("no_work", 422, "The job has nothing to do"),
    kind("ambiguous_work", 422, "The job has more than one thing to do"),
    kind("no_model_configured", 422, "No model is configured"),
    kind("not_available", 422, "Not available on this server"),
    kind("image_not_found", 422, "There is no such image"),
    kind("invalid_job_id", 400, "Not a job id"),
    kind("job_not_found", 404, "There is no such job"),
    kind("invalid_query", 400, "A query parameter is wrong"),
    kind("invalid_path", 400, "Not a path inside the workspace"),
    kind("invalid_step", 400, "Not the number of a step"),
    kind("step_not_found", 404, "There is no such step"),
    kind("not_kept", 404, "The files were not kept"),
    kind("result_not_ready", 404, "The result is not ready yet"),
    kind("result_missing", 404, "The job left no result"),
    kind("range_not_satisfiable", 416, "There are no such bytes"),
    kind("file_not_found", 404, "There is no such file"),
    kind("not_started", 409, "The sandbox does not run yet"),
    kind("job_ended", 409, "The job has ended"),
    kind("approval_not_found", 404, "Nothing of this name waits"),
    kind("memory_not_found", 404, "There is no such memory"),
    kind("memory_known", 409, "The memory is kept already"),
    kind("refused_by_sandbox", 409, "The sandbox refused"),
    kind("sandbox_busy", 503, "The sandbox is busy with other files"),
    kind("desktop_taken", 409, "Somebody else has the desktop"),
    kind("invalid_port", 400, "Not a port of an app"),
    kind("no_sandbox_domain", 409, "Apps have no host name here"),
    kind("files_busy", 503, "Too many files are being read"),
    kind("sandbox_unreachable", 503, "The sandbox cannot be reached"),
    kind("forbidden_host", 403, "Unknown host name"),
    kind("forbidden_origin", 403, "Called from another site"),
    kind("unauthorized", 401, "A token is needed"),
    kind("forbidden", 403, "Not allowed"),
    kind("token_not_found", 404, "There is no such token"),
    kind("too_many_requests", 429, "Too many requests"),
    kind("quota_exceeded", 429, "As much as one user may use"),
    kind("not_found", 404, "Nothing is here"),
    kind("method_not_allowed", 405, "The method is not allowed"),
    kind("store_unavailable", 503, "The database does not answer"),
    kind("store_full", 507, "The server's disk is full"),
    kind("internal", 500, "The server failed"),
];

impl ApiError {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Request(error) => error.code(),
            Self::ImageNotFound(_) => "image_not_found",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::BodyUnreadable => "unreadable_body",
            Self::UnsupportedMediaType(_) => "unsupported_media_type",
            Self::InvalidJobId(_) => "invalid_job_id",
            Self::JobNotFound(_) => "job_not_found",
            Self::InvalidQuery(_) => "invalid_query",
            Self::InvalidPath(_) => "invalid_path",
            Self::InvalidStep(_) => "invalid_step",
            Self::StepNotFound(_) => "step_not_found",
            Self::NotKept(_) => "not_kept",
            Self::ResultNotReady => "result_not_ready",
            Self::ResultMissing => "result_missing",
            Self::RangeNotSatisfiable(_) => "range_not_satisfiable",
            Self::FileNotFound(_) => "file_not_found",
            Self::NotStarted | Self::NotWorkedOn => "not_started",
            Self::JobEnded | Self::JobOver => "job_ended",
            Self::ApprovalNotFound => "approval_not_found",
            Self::MemoryNotFound => "memory_not_found",
            Self::MemoryKnown => "memory_known",
            Self::RefusedBySandbox(_) => "refused_by_sandbox",
            Self::SandboxBusy => "sandbox_busy",
            Self::DesktopTaken(_) => "desktop_taken",
            Self::InvalidPort(_) => "invalid_port",
            Self::NoSandboxDomain => "no_sandbox_domain",
            Self::FilesBusy => "files_busy",
            Self::SandboxUnreachable => "sandbox_unreachable",
            Self::ForbiddenHost(_) => "forbidden_host",
            Self::ForbiddenOrigin => "forbidden_origin",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::TokenNotFound => "token_not_found",
            Self::TooManyRequests | Self::TooManyAttempts => "too_many_requests",
            Self::QuotaExceeded { .. } => "quota_exceeded",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreFull => "store_full",
            Self::Internal => "internal",
        }
    }

    fn kind(&self) -> &'static Kind {
        let code = self.code();
        let last = &KINDS[KINDS.len() - 1];
        KINDS.iter().find(|kind| kind.code == code).unwrap_or(last)
    }

    /// What the client can do about it, where the error itself does not say so.
    fn hint(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::ImageNotFound(name) => {
                let how = image_build_command(name);
                format!("Build it on the server with `{how}`; `bellglass image list` shows what is there.").into()
            }
            Self::UnsupportedMediaType(_) => "Send the header Content-Type: application/json; with curl: -H \"Content-Type: application/json\".".into(),
            Self::ResultNotReady => "Follow `events_url` until the event `finished`, or ask `status_url` again.".into(),
            Self::NotKept(_) => "The events `checkpoint.skipped` say why; a larger limit `checkpoints` may help.".into(),
            Self::ResultMissing => "`error` in the job's status says why; its log is complete.".into(),
            Self::NotStarted => "Follow `events_url` until the event `sandbox.ready`.".into(),
            Self::ForbiddenHost(_) => "Call it as http://localhost, or add the name to `allowed_hosts` in bellglass.toml.".into(),
            Self::DesktopTaken(_) => "Wait until it is handed back, or ask for it.".into(),
            Self::NoSandboxDomain => "Set `sandbox_domain` in bellglass.toml to a domain of which all subdomains lead to this server, or come as http://localhost, for example through `ssh -L 8000:localhost:8000`.".into(),
            Self::Unauthorized => "Send the header Authorization: Bearer TOKEN.".into(),
            Self::Forbidden(_) => "Ask whoever looks after the server for a token with another role.".into(),
            Self::TokenNotFound => "`bellglass token list` shows those there are.".into(),
            Self::TooManyAttempts => "Wait for a second before the next one; Retry-After says so too.".into(),
            Self::TooManyRequests => "Wait for a second; Retry-After says so too. Events come by themselves at `events_url`, without asking again.".into(),
            Self::QuotaExceeded { quota: Quota::JobsAtOnce(_), .. } => "Wait until one of your jobs has ended, or cancel one. Nothing was scheduled.".into(),
            Self::QuotaExceeded { .. } => "Try again tomorrow (UTC), or ask whoever looks after the server for more. Nothing was scheduled.".into(),
            Self::StoreFull => "Try again once whoever looks after the server has made room, or set `keep_days` in bellglass.toml to have old jobs removed.".into(),
            Self::NotFound => "See /docs for all addresses.".into(),
            Self::MethodNotAllowed => "The Allow header lists the methods that it takes.".into(),
            _ => return None,
        })
    }

    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        Some(match self {
            Self::ResultNotReady
            | Self::NotStarted
            | Self::SandboxBusy
            | Self::FilesBusy
            | Self::StoreUnavailable
            | Self::SandboxUnreachable => (header::RETRY_AFTER, HeaderValue::from_static("1")),
            Self::TooManyRequests | Self::TooManyAttempts => {
                (header::RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Self::QuotaExceeded { retry_after, .. } => (header::RETRY_AFTER, (*retry_after).into()),
            Self::Unauthorized => {
                (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"bellglass\""))
            }
            Self::RangeNotSatisfiable(bytes) => {
                (header::CONTENT_RANGE, HeaderValue::try_from(format!("bytes */{bytes}")).ok()?)
            }
            _ => return None,
        })
    }

    pub(crate) fn problem(&self) -> Problem {
        let kind = self.kind();
        let pointer = match self {
            Self::Request(error) => error.pointer().map(str::to_owned),
            Self::ImageNotFound(_) => Some("image".into()),
            _ => None,
        };
        Problem {
            type_uri: format!("/docs#error-{}", kind.code),
            title: kind.title.into(),
            status: kind.status.as_u16(),
            detail: self.to_string(),
            code: kind.code.into(),
            pointer,
            hint: self.hint().map(Cow::into_owned),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(job) => Self::JobNotFound(job),
            StoreError::Unavailable => Self::StoreUnavailable,
            other => {
                tracing::error!(error = &other as &dyn std::error::Error, "the store failed");
                if other.is_full() { Self::StoreFull } else { Self::Internal }
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let status = StatusCode::from_u16(problem.status).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some((name, value)) = self.header() {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// An error as clients see it: a problem document after RFC 9457.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Where this kind of error is explained.
    #[serde(rename = "type")]
    pub type_uri: String,
    pub title: String,
    pub status: u16,
    /// What is wrong in this case.
    pub detail: String,
    /// The stable word for this kind of error.
    pub code: String,
    /// Where in the request's body the error is, such as `steps[2].command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pointer: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}
