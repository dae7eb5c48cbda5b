//! `POST /session` and `DELETE /session`: a browser logs in with the server's token, and out again.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::request::RequestError;
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::ToSchema;

use super::schedule::must_be_json;
use crate::extract::read_body;
use crate::guard::Guard;
use crate::problem::{ApiError, Problem};
use crate::{SharedServer, session};

/// What a browser shows to be let in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    token: String,
}

/// A token and the braces around it are no longer than this.
const LONGEST: ByteSize = ByteSize::mib(1);

/// Log in
///
/// Turns the server's token into a cookie that a browser sends by itself and no script can read. Where
/// the server needs no token, there is nothing to do.
#[utoipa::path(
    post, path = "/session", operation_id = "begin_session", tag = "operations",
    request_body(content = Login, content_type = "application/json"),
    responses(
        (status = 204, description = "The cookie is set."),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "There is no token in it.", body = Problem, content_type = "application/problem+json"),
    ),
    security(()),
)]
pub(crate) async fn begin(
    State(server): State<SharedServer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    must_be_json(&headers)?;
    let body = read_body(&headers, body, LONGEST).await?;
    let login = read(&body)?;
    match &server.guard {
        Guard::Token(token) if token.matches(login.token.trim().as_bytes()) => {
            let cookie = session::begin(token, &headers, Timestamp::now());
            Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
        }
        Guard::Token(_) => Err(ApiError::Unauthorized),
        Guard::LocalUser { .. } => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// The message must not quote the body: a mistyped field may hold the token.
fn read(body: &[u8]) -> Result<Login, ApiError> {
    let value: serde_json::Value = serde_json::from_slice(body)
        .map_err(|_| RequestError::InvalidJson("it cannot be read".into()))?;
    serde_json::from_value(value).map_err(|_| {
        let message = "the body must be like {\"token\": \"…\"}".into();
        RequestError::InvalidField { pointer: "token".into(), message }.into()
    })
}

/// Log out
///
/// Takes the cookie away from the browser.
#[utoipa::path(
    delete, path = "/session", operation_id = "end_session", tag = "operations",
    responses((status = 204, description = "The cookie is gone.")),
    security(()),
)]
pub(crate) async fn end(headers: HeaderMap) -> Response {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, session::end(&headers))]).into_response()
}
