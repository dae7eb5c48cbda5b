//! `GET /jobs/{id}/output.zip`: the workspace as it was left, whole or in ranges.

use std::ops::Range;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::event::ResultSummary;
use bellglass_protocol::id::JobId;
use bellglass_store::JobOutline;
use bellglass_store::artifacts::ArtifactKey;
use headers::{ETag, HeaderMapExt as _, IfNoneMatch, IfRange};

use crate::content;
use crate::extract::JobPath;
use crate::problem::{ApiError, Problem};
use crate::{App, SharedServer};

/// The workspace as a ZIP
///
/// Supports ranges, so an interrupted download can go on where it stopped.
#[utoipa::path(
    get, path = "/jobs/{id}/output.zip", operation_id = "download_result", tag = "results",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("Range" = Option<String>, Header, nullable = false, description = "Bytes to send, such as `bytes=0-99`"),
        ("If-None-Match" = Option<String>, Header, nullable = false, description = "ETag of the copy that the client has"),
    ),
    responses(
        (status = 200, description = "The ZIP.", body = String, content_type = "application/zip"),
        (status = 206, description = "A part of the ZIP.", body = String, content_type = "application/zip"),
        (status = 307, description = "The ZIP is to be had at the address in `Location`, for a while."),
        (status = 304, description = "The client's copy is the right one."),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job, or it has no ZIP yet, or it ended without one.", body = Problem, content_type = "application/problem+json"),
        (status = 416, description = "There are no such bytes.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn download(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let app = &server.app;
    let outline = app.store.outline(job).await?;
    let Some(result) = &outline.result else {
        let over = outline.status.is_terminal();
        return Err(if over { ApiError::ResultMissing } else { ApiError::ResultNotReady });
    };
    let etag: ETag = format!("\"{}\"", result.sha256).parse().map_err(|_| ApiError::Internal)?;
    let mut response = Body::empty().into_response();
    put_headers(response.headers_mut(), &outline, etag.clone());

    let unchanged = headers.typed_get::<IfNoneMatch>();
    if unchanged.is_some_and(|condition| !condition.precondition_passes(&etag)) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    if method == Method::GET
        && let Some(link) = link(app, &outline, result).await?
    {
        *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
        response.headers_mut().insert(header::LOCATION, link);
        // The link is good for a while only.
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return Ok(response);
    }
    let range = wanted_range(&headers, &etag, result.bytes)?;
    let length = range.as_ref().map_or(result.bytes, |range| range.end - range.start);
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    if let Some(Range { start, end }) = range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let text = format!("bytes {start}-{}/{}", end - 1, result.bytes);
        let value = HeaderValue::try_from(text).map_err(|_| ApiError::Internal)?;
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    if method != Method::HEAD {
        let key = ArtifactKey::of_result(job, result);
        let body = app.artifacts.get(&key, range).await.map_err(|error| {
            tracing::error!(%job, error = &error as &dyn std::error::Error, "a result cannot be read");
            ApiError::Internal
        })?;
        *response.body_mut() = Body::from_stream(body.stream);
    }
    Ok(response)
}

/// Where the client gets the ZIP without us, if it is kept where that can be done.
async fn link(
    app: &App,
    outline: &JobOutline,
    result: &ResultSummary,
) -> Result<Option<HeaderValue>, ApiError> {
    let key = ArtifactKey::of_result(outline.id, result);
    let link = app.artifacts.link(&key, &file_name(outline)).await;
    let link = link.map_err(|error| {
        tracing::error!(job = %outline.id, error = &error as &dyn std::error::Error, "no link to a result can be made");
        ApiError::Internal
    })?;
    Ok(link.and_then(|link| HeaderValue::try_from(link).ok()))
}

fn put_headers(headers: &mut HeaderMap, outline: &JobOutline, etag: ETag) {
    content::put_harmless(headers);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(
        header::CONTENT_DISPOSITION,
        content::disposition("attachment", &file_name(outline)),
    );
    headers.typed_insert(etag);
}

/// The job's name as far as it is safe in a file name, and its id.
fn file_name(outline: &JobOutline) -> String {
    let name = outline.name.as_deref().unwrap_or("bellglass");
    let words: Vec<&str> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let mut slug = words.join("-").to_ascii_lowercase();
    slug.truncate(60);
    let slug = if slug.is_empty() { "bellglass" } else { slug.trim_end_matches('-') };
    format!("{slug}-{}.zip", outline.id)
}

/// The one range that the client wants; `None` for everything. Several ranges at once are answered
/// with everything, which the standard allows.
fn wanted_range(
    headers: &HeaderMap,
    etag: &ETag,
    bytes: u64,
) -> Result<Option<Range<u64>>, ApiError> {
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let condition = headers.typed_get::<IfRange>();
    if condition.is_some_and(|condition| condition.is_modified(Some(etag), None)) {
        return Ok(None);
    }
    match parse_range(text, bytes) {
        Some(range) if range.is_empty() => Err(ApiError::RangeNotSatisfiable(bytes)),
        range => Ok(range),
    }
}

/// A single range cut to what there is; empty if nothing of it is there, `None` if it is no single
/// range. By hand, because the `headers` crate refuses a suffix that is longer than the whole.
fn parse_range(text: &str, bytes: u64) -> Option<Range<u64>> {
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (first.trim(), last.trim()) {
        ("", "") => None,
        ("", suffix) => Some(bytes.saturating_sub(number(suffix)?)..bytes),
        (first, "") => Some(number(first)?.min(bytes)..bytes),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(bytes)..last.saturating_add(1).min(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_clients_write_them() {
        let etag: ETag = "\"x\"".parse().unwrap();
        for (text, expected) in [
            ("bytes=0-9", Ok(Some(0..10))),
            ("bytes=90-", Ok(Some(90..100))),
            ("bytes=90-1000", Ok(Some(90..100))),
            ("bytes=-10", Ok(Some(90..100))),
            ("bytes=-1000", Ok(Some(0..100))),
            ("bytes=100-", Err(())),
            ("bytes=-0", Err(())),
            ("bytes=5-99999999999999999999999", Ok(Some(5..100))),
            ("bytes=99999999999999999999999-", Err(())),
            ("bytes=9-3", Ok(None)),
            ("bytes=-", Ok(None)),
            ("bytes=+1-2", Ok(None)),
            ("bytes=0-1,5-6", Ok(None)),
            ("pages=1-2", Ok(None)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_static(text));
            assert_eq!(wanted_range(&headers, &etag, 100).map_err(drop), expected, "{text}");
        }
    }
}
