//! `/session`: a browser logs in with a token, asks who it is, and logs out again.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::request::RequestError;
use bellglass_store::access::Token;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule::must_be_json;
use super::tokens::RoleName;
use crate::attempts::Peer;
use crate::caller::Caller;
use crate::extract::read_body;
use crate::guard::{self, Guard};
use crate::problem::{ApiError, Problem};
use crate::token::{SESSION, TOKEN, generate, new_id};
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
/// Turns a token into a cookie that a browser sends by itself and no script can read. Where
/// the server needs no token, there is nothing to do.
#[utoipa::path(
    post, path = "/session", operation_id = "begin_session", tag = "access",
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
    from: Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    must_be_json(&headers)?;
    let body = read_body(&headers, body, LONGEST).await?;
    let login = read(&body)?;
    let shown = login.token.trim().as_bytes();
    let now = Timestamp::now();
    let is_local = matches!(server.guard, Guard::LocalUser { .. });
    if is_local && !shown.starts_with(TOKEN.as_bytes()) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let token = match (guard::by_token(&server, from, shown).await?, &server.guard) {
        (Some(Caller::Operator { .. }), Guard::Token(_)) => {
            return Ok(with_cookie(session::begin(&server.session_key, &headers, now)));
        }
        (Some(Caller::Holder { token, .. }), _) => token,
        _ => return Err(ApiError::Unauthorized),
    };
    // A session begins with a token that was given to somebody, not with another session.
    if token.parent.is_some() {
        return Err(ApiError::Unauthorized);
    }
    let end = now + session::LIFETIME;
    let end = token.expires_at.map_or(end, |expiry| expiry.min(end));
    let begun = Token {
        id: new_id(),
        parent: Some(token.id.clone()),
        created_at: now,
        expires_at: Some(end),
        ..Token::clone(&token)
    };
    let (secret, hash) = generate(SESSION);
    server.app.store.add_token(begun, hash, &token.user).await?;
    Ok(with_cookie(session::begin_kept(&secret, end.duration_since(now), &headers)))
}

fn with_cookie(cookie: HeaderValue) -> Response {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

/// The message must not quote the body: a mistyped field may hold the token.
fn read(body: &[u8]) -> Result<Login, ApiError> {
    let value: serde_json::Value = serde_json::from_slice(body)
        .map_err(|_| RequestError::InvalidJson("it cannot be read".into()))?;
    let login = if value.is_object() { serde_json::from_value(value).ok() } else { None };
    login.ok_or_else(|| {
        let message = "the body must be like {\"token\": \"…\"}".into();
        RequestError::InvalidField { pointer: "token".into(), message }.into()
    })
}

/// Log out
///
/// Takes the cookie away from the browser.
#[utoipa::path(
    delete, path = "/session", operation_id = "end_session", tag = "access",
    responses((status = 204, description = "The cookie is gone.")),
    security(()),
)]
pub(crate) async fn end(
    State(server): State<SharedServer>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(Caller::Holder { token, .. }) = guard::in_session(&server, &headers).await? {
        server.app.store.revoke_token(&token.id, &token.user).await?;
        server.revoked.send_replace(());
    }
    if let Guard::Token(_) = &server.guard {
        let now = Timestamp::now();
        for session in session::shown(&server.session_key, &headers, now) {
            server.ended_sessions.add(session, now);
            server.revoked.send_replace(());
        }
    }
    Ok(with_cookie(session::end(&headers)))
}

/// Who somebody is to this server.
#[derive(Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// The user whose token was shown; none for the local user and for the token of the configuration.
    #[schema(required)]
    user: Option<String>,
    role: RoleName,
}

/// Who you are to this server
#[utoipa::path(
    get, path = "/session", operation_id = "get_session", tag = "access",
    responses((status = 200, description = "Who you are.", body = WhoAmI)),
)]
pub(crate) async fn show(caller: Caller) -> Json<WhoAmI> {
    let role = match &caller {
        Caller::Holder { token, .. } => token.role.into(),
        Caller::Operator { .. }
        | Caller::Vouched { .. }
        | Caller::Guest { .. }
        | Caller::Nobody => RoleName::Admin,
    };
    Json(WhoAmI { user: caller.owner(), role })
}
