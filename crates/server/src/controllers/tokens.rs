//! `/tokens`: who may use the server. For administrators.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use bellglass_protocol::quantity::Seconds;
use bellglass_protocol::request::RequestError;
use bellglass_protocol::task_request::is_project_name;
use bellglass_store::access::{Role, Token};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::read_object;
use crate::problem::{ApiError, Problem};
use crate::token::{TOKEN, generate, new_id};

/// What a token lets its holder do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RoleName {
    /// Everything, with everybody's jobs.
    Admin,
    /// Work with one's own jobs.
    User,
    /// Look at one's own jobs.
    Viewer,
}

impl From<Role> for RoleName {
    fn from(role: Role) -> Self {
        match role {
            Role::Admin => Self::Admin,
            Role::User => Self::User,
            Role::Viewer => Self::Viewer,
        }
    }
}

impl From<RoleName> for Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Admin => Self::Admin,
            RoleName::User => Self::User,
            RoleName::Viewer => Self::Viewer,
        }
    }
}

/// What is known about a token. The token itself is not.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenView {
    /// By which it is revoked.
    id: String,
    /// Whose it is, and whose the jobs are that are scheduled with it.
    user: String,
    role: RoleName,
    /// What its owner calls it.
    name: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    expires_at: Option<Timestamp>,
    /// Whether its time is over.
    expired: bool,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> Self {
        Self {
            expired: token.expires_at.is_some_and(|end| end <= Timestamp::now()),
            id: token.id,
            user: token.user,
            role: token.role.into(),
            name: token.name,
            created_at: token.created_at,
            expires_at: token.expires_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TokenList {
    tokens: Vec<TokenView>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// 1 to 64 letters, digits, `-`, `_` and `.`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._-]+$")]
    user: String,
    /// `user` unless said otherwise.
    role: Option<RoleName>,
    /// What to call it, such as where it is used.
    #[schema(max_length = 100)]
    name: Option<String>,
    /// After so long it holds no more; until it is revoked, if this is not given.
    expires_in: Option<Seconds>,
}

/// A token as it is shown once, when it is made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    /// What its holder shows. It cannot be seen again.
    token: String,
    #[serde(flatten)]
    known: TokenView,
}

/// Events say by these names that something was done by the program itself, or by somebody unknown.
const OURS: [&str; 7] = ["user", "api", "mcp", "plan", "approval", "question", "retention"];

/// List the tokens that were made
#[utoipa::path(
    get, path = "/tokens", operation_id = "list_tokens", tag = "access",
    responses((status = 200, description = "The tokens, oldest first.", body = TokenList)),
)]
pub(crate) async fn list(State(server): State<SharedServer>) -> Result<Json<TokenList>, ApiError> {
    let tokens = server.app.store.tokens().await?;
    Ok(Json(TokenList { tokens: tokens.into_iter().map(TokenView::from).collect() }))
}

/// Make a token for a user
///
/// The answer is the only place where it can ever be read.
#[utoipa::path(
    post, path = "/tokens", operation_id = "create_token", tag = "access",
    request_body(content = NewToken, content_type = "application/json"),
    responses(
        (status = 201, description = "The token.", body = CreatedToken),
        (status = 400, description = "The body is not JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field is wrong.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    let NewToken { user, role, name, expires_in } =
        read_object(&server, &headers, body, "user").await?;
    let invalid = |pointer: &str, message: &str| {
        ApiError::from(RequestError::InvalidField {
            pointer: pointer.into(),
            message: message.into(),
        })
    };
    if !is_project_name(&user) {
        return Err(invalid("user", "must be 1 to 64 letters, digits, `-`, `_` and `.`"));
    }
    if OURS.contains(&user.as_str()) {
        return Err(invalid("user", "is a name by which events mean the program itself"));
    }
    let name = name.unwrap_or_default();
    if name.chars().count() > 100 || name.chars().any(char::is_control) {
        return Err(invalid("name", "must be at most 100 characters on one line"));
    }
    let now = Timestamp::now();
    let lifetime = expires_in.map(|time| SignedDuration::try_from(time.duration()));
    let lifetime = lifetime.transpose().map_err(|_| invalid("expires_in", "is too long"))?;
    let token = Token {
        id: new_id(),
        parent: None,
        user,
        role: role.unwrap_or(RoleName::User).into(),
        name,
        created_at: now,
        expires_at: lifetime.map(|time| now + time),
    };
    let (text, hash) = generate(TOKEN);
    server.app.store.add_token(token.clone(), hash, &caller.actor("user")).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { token: text, known: token.into() })))
}

/// Revoke a token
///
/// Sessions of browsers that were begun with it end too, and so do event streams.
#[utoipa::path(
    delete, path = "/tokens/{token}", operation_id = "revoke_token", tag = "access",
    params(("token" = String, Path, description = "The token's id")),
    responses(
        (status = 204, description = "It lets nobody in any more."),
        (status = 404, description = "There is no such token.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn revoke(
    State(server): State<SharedServer>,
    caller: Caller,
    Path(token): Path<String>,
) -> Result<StatusCode, ApiError> {
    match server.app.store.revoke_token(&token, &caller.actor("user")).await? {
        true => {
            server.revoked.send_replace(());
            Ok(StatusCode::NO_CONTENT)
        }
        false => Err(ApiError::TokenNotFound),
    }
}
