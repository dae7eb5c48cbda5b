//! `/jobs/{id}/files/{path}`: the workspace, in the sandbox while it runs and in the ZIP after.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::{ToolError, check_workspace_path, workspace_relative};
use bellglass_protocol::wire::{Entry, EntryKind};
use bellglass_store::artifacts::ArtifactKey;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::archive::{self, ArchiveError};
use crate::caller::Caller;
use crate::extract::{
    FilePath, JobPath, Parameters, limited_stream, refuse_declared_length, switch,
};
use crate::live::{LiveContent, LiveError};
use crate::problem::{ApiError, Problem};
use crate::{Server, SharedServer, content};

/// What is in a folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct Folder {
    /// Relative to the workspace; empty for the workspace itself.
    path: String,
    entries: Vec<FolderEntry>,
}

/// Something in a folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct FolderEntry {
    name: String,
    #[serde(rename = "type")]
    kind: FolderEntryType,
    bytes: u64,
    /// Unix permission bits.
    mode: u32,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    modified: Option<Timestamp>,
    /// Where a symlink leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    target: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FolderEntryType {
    File,
    Folder,
    Symlink,
    Other,
}

/// List the workspace
#[utoipa::path(
    get, path = "/jobs/{id}/files", operation_id = "list_workspace", tag = "files",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "What is in the workspace.", body = Folder),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job, or it left no files.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The sandbox does not run yet, or it refused.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The sandbox cannot be reached, or too many files are being read.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
) -> Result<Response, ApiError> {
    answer(&server, job, "").await
}

/// Read a file or list a folder
///
/// A file's bytes were written by a sandbox: they come with headers that keep a browser from
/// running them.
#[utoipa::path(
    get, path = "/jobs/{id}/files/{*path}", operation_id = "read_file", tag = "files",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path inside the workspace; may contain `/`"),
    ),
    responses(
        (status = 200, description = "The bytes of a file, or what is in a folder.", content(
            (Folder = "application/json"),
            (String = "application/octet-stream"),
            (String = "text/plain; charset=utf-8"),
            (String = "image/png"),
            (String = "image/jpeg"),
            (String = "image/gif"),
            (String = "image/webp"),
        )),
        (status = 400, description = "An id or a path is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or file.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The sandbox does not run yet, or it refused.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The sandbox cannot be reached, or too many files are being read.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn read(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    FilePath(path): FilePath,
) -> Result<Response, ApiError> {
    let path = path.trim_end_matches('/');
    answer(&server, job, if path.is_empty() { "" } else { checked(path)? }).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteParameters {
    /// Whether the file may be executed.
    #[serde(default, deserialize_with = "switch")]
    #[param(nullable = false)]
    executable: Option<bool>,
}

/// Write a file of a running job
///
/// The body is the file's content. Missing folders are made. The log says who wrote which file.
#[utoipa::path(
    put, path = "/jobs/{id}/files/{*path}", operation_id = "write_file", tag = "files",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path inside the workspace; may contain `/`"),
        WriteParameters,
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "The file is written."),
        (status = 400, description = "An id, a path or a parameter is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job does not run, or its sandbox refused.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The file is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The sandbox cannot be reached.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn write(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    FilePath(path): FilePath,
    Parameters(parameters): Parameters<WriteParameters>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let limit = server.app.settings.upload_limit;
    let path = checked(&path)?;
    refuse_declared_length(&headers, limit)?;
    let executable = parameters.executable.unwrap_or(false);
    let (data, too_large) = limited_stream(body, limit);
    let by = caller.actor("user");
    let written = server.app.live.write(job, &by, path, executable, data).await;
    if too_large.load(Ordering::Relaxed) {
        return Err(ApiError::BodyTooLarge(limit));
    }
    match written {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(refusal(&server, job, path, error).await?),
    }
}

/// Delete a file or a folder of a running job
#[utoipa::path(
    delete, path = "/jobs/{id}/files/{*path}", operation_id = "delete_file", tag = "files",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("path" = String, Path, description = "Path inside the workspace; may contain `/`"),
    ),
    responses(
        (status = 204, description = "It is gone."),
        (status = 400, description = "An id or a path is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job or file.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job does not run, or its sandbox refused.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The sandbox cannot be reached.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn delete(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    FilePath(path): FilePath,
) -> Result<StatusCode, ApiError> {
    let path = checked(&path)?;
    match server.app.live.delete(job, &caller.actor("user"), path).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(refusal(&server, job, path, error).await?),
    }
}

fn checked(path: &str) -> Result<&str, ApiError> {
    match check_workspace_path(path) {
        Ok(()) => Ok(workspace_relative(path).trim_end_matches('/')),
        Err(why) => Err(ApiError::InvalidPath(why.into())),
    }
}

async fn answer(server: &Server, job: JobId, path: &str) -> Result<Response, ApiError> {
    let app = &server.app;
    let found = match app.live.read(job, path).await {
        Ok(found) => found,
        Err(LiveError::NotRunning) => {
            let outline = app.store.outline(job).await?;
            let Some(result) = &outline.result else {
                let over = outline.status.is_terminal();
                return Err(if over { ApiError::ResultMissing } else { ApiError::NotStarted });
            };
            let key = ArtifactKey::of_result(job, result);
            let place = server.archive_readers.clone().try_acquire_owned();
            let place = place.map_err(|_| ApiError::FilesBusy)?;
            let read = archive::read(&app.artifacts, &key, path.to_owned(), place).await;
            read.map_err(|error| match error {
                ArchiveError::NotFound => ApiError::FileNotFound(path.to_owned()),
                other => {
                    tracing::error!(%job, error = &other as &dyn std::error::Error, "a result cannot be read");
                    ApiError::Internal
                }
            })?
        }
        // Below a file there is nothing, which the sandbox says in its own words.
        Err(LiveError::Tool(error)) if error.code == "not_a_folder" => {
            return Err(ApiError::FileNotFound(path.to_owned()));
        }
        Err(error) => return Err(refusal(server, job, path, error).await?),
    };
    Ok(match found {
        LiveContent::Folder(entries) => folder(path, entries),
        LiveContent::File { bytes, data } => {
            let mut response = Body::from_stream(data).into_response();
            content::put_headers_for(response.headers_mut(), path);
            response.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
            response
        }
    })
}

fn folder(path: &str, entries: Vec<Entry>) -> Response {
    let mut entries: Vec<FolderEntry> = entries.into_iter().map(FolderEntry::from).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    axum::Json(Folder { path: path.to_owned(), entries }).into_response()
}

impl From<Entry> for FolderEntry {
    fn from(entry: Entry) -> Self {
        let (kind, target) = match entry.kind {
            EntryKind::File => (FolderEntryType::File, None),
            EntryKind::Folder => (FolderEntryType::Folder, None),
            EntryKind::Symlink { target } => (FolderEntryType::Symlink, Some(target)),
            EntryKind::Other => (FolderEntryType::Other, None),
        };
        let modified = Timestamp::from_second(entry.modified).ok();
        Self { name: entry.path, kind, bytes: entry.bytes, mode: entry.mode, modified, target }
    }
}

/// What to answer when a running workspace could not be read or changed.
pub(super) async fn refusal(
    server: &Server,
    job: JobId,
    path: &str,
    error: LiveError,
) -> Result<ApiError, ApiError> {
    Ok(match error {
        LiveError::NotRunning => {
            let outline = server.app.store.outline(job).await?;
            if outline.status.is_terminal() { ApiError::JobEnded } else { ApiError::NotStarted }
        }
        LiveError::Tool(ToolError { code, .. }) if code == "not_found" => {
            ApiError::FileNotFound(path.to_owned())
        }
        LiveError::Tool(error) => {
            let printable = error.message.chars().filter(|c| !c.is_control());
            ApiError::RefusedBySandbox(printable.take(500).collect())
        }
        LiveError::Busy => ApiError::SandboxBusy,
        LiveError::Taken(by) => ApiError::DesktopTaken(by),
        LiveError::Broken(reason) => {
            tracing::warn!(%job, reason, "a sandbox cannot be reached");
            ApiError::SandboxUnreachable
        }
    })
}
