//! Who may call, asked before every handler, and the protective headers of every answer.
//!
//! Without a token the server trusts the local user, and a browser is a way for any web page to
//! speak as that user. So the Host must be a name of this machine (a rebound DNS name is not), and
//! a request that a page of another origin made is refused.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;

use crate::problem::ApiError;
use crate::session;
use crate::settings::{Secret, ServerSettings};

/// How callers are told apart. Roles will be further variants.
#[derive(Clone)]
pub(crate) enum Guard {
    Token(Secret),
    LocalUser { hosts: Arc<[String]> },
}

impl Guard {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        // An empty token would let everybody in, so it counts as none.
        match &settings.token {
            Some(token) if !token.is_empty() => Self::Token(token.clone()),
            _ => {
                let own = ["localhost", "127.0.0.1", "[::1]"].map(String::from);
                let more = settings.allowed_hosts.iter().map(|host| host.to_ascii_lowercase());
                Self::LocalUser { hosts: own.into_iter().chain(more).collect() }
            }
        }
    }

    pub(crate) fn admit(&self, request: &Request) -> Result<(), ApiError> {
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/readyz") {
            return Ok(());
        }
        match self {
            // A browser sends no token by itself, and these pages are the same for everybody.
            Self::Token(_) if is_public_page(path) => Ok(()),
            Self::Token(token) => match bearer(request.headers()) {
                Some(shown) if token.matches(shown) => Ok(()),
                Some(_) => Err(ApiError::Unauthorized),
                None if path == "/session" => of_this_origin(request),
                // A browser sends the cookie whoever asked it to, so it must be one of our pages.
                None if session::holds(token, request.headers(), Timestamp::now()) => {
                    of_this_origin(request)
                }
                None => Err(ApiError::Unauthorized),
            },
            Self::LocalUser { hosts } => {
                let host = named_host(request)?;
                let name = host.host();
                if !hosts.iter().any(|known| {
                    known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host.as_str())
                }) {
                    return Err(ApiError::ForbiddenHost(shortened(host.as_str())));
                }
                same_origin(request.method(), request.headers(), &host)
            }
        }
    }
}

impl Guard {
    /// Whether the request shows a token of ours, right where a token is shown.
    pub(crate) fn shows_token(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Token(token) => bearer(headers).is_some_and(|shown| token.matches(shown)),
            Self::LocalUser { .. } => false,
        }
    }
}

/// Pages that hold nothing of anybody's, whatever follows in their addresses.
fn is_public_page(path: &str) -> bool {
    matches!(
        path,
        "/" | "/docs" | "/docs/docs.js" | "/docs/pages.css" | "/openapi.json" | "/notices.txt"
    ) || path.starts_with("/assets/")
        || path.starts_with("/watch/")
}

pub(crate) fn put_protective_headers(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    // A handler that serves a page or a stranger's file has a stricter policy of its own.
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("frame-ancestors 'self'"));
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// The host that a request names.
pub(crate) fn named_host(request: &Request) -> Result<Authority, ApiError> {
    let authority = match request.headers().get(header::HOST) {
        Some(host) => Authority::try_from(host.as_bytes()).ok(),
        None => request.uri().authority().cloned(),
    };
    match authority {
        Some(authority) if !authority.as_str().contains('@') => Ok(authority),
        _ => Err(ApiError::ForbiddenHost(String::new())),
    }
}

fn of_this_origin(request: &Request) -> Result<(), ApiError> {
    same_origin(request.method(), request.headers(), &named_host(request)?)
}

fn same_origin(method: &Method, headers: &HeaderMap, host: &Authority) -> Result<(), ApiError> {
    if let Some(origin) = headers.get(header::ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| {
            origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
        });
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str())) {
            return Err(ApiError::ForbiddenOrigin);
        }
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let foreign = matches!(site, Some(b"cross-site" | b"same-site"));
    if foreign && !matches!(*method, Method::GET | Method::HEAD) {
        return Err(ApiError::ForbiddenOrigin);
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
