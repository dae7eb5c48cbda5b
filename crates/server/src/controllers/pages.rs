//! `/`, `/watch/{id}` and `/docs`: what people see.
//!
//! They ask nothing of any other host, and their policy forbids it.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use crate::SharedServer;
use crate::guard::named_host;
use crate::page;
use crate::problem::ApiError;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

fn text(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// The page; where it was not built, one that says how to build it.
pub(crate) async fn page(State(server): State<SharedServer>, request: Request) -> Response {
    let host = named_host(request.uri(), request.headers()).ok();
    let apps = host.and_then(|host| server.apps.domain.beside(&host));
    page::index(request.headers(), apps.as_deref()).unwrap_or_else(|| {
        text("text/html; charset=utf-8", include_str!("../pages/without_page.html"))
    })
}

/// The page that shows one desktop.
pub(crate) fn desktop(headers: &HeaderMap) -> Response {
    page::desktop(headers).unwrap_or_else(|| {
        text("text/html; charset=utf-8", include_str!("../pages/without_page.html"))
    })
}

pub(crate) async fn notices(headers: HeaderMap) -> Result<Response, ApiError> {
    page::notices(&headers).ok_or(ApiError::NotFound)
}

pub(crate) async fn asset(
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    page::asset(&path, &headers).ok_or(ApiError::NotFound)
}

/// The API, explained
#[utoipa::path(
    get, path = "/docs", operation_id = "get_docs", tag = "operations",
    responses((status = 200, description = "A page that shows this document.", body = String, content_type = "text/html; charset=utf-8")),
)]
pub(crate) async fn docs() -> Response {
    text("text/html; charset=utf-8", include_str!("../pages/docs.html"))
}

pub(crate) async fn script() -> Response {
    text("text/javascript; charset=utf-8", include_str!("../pages/docs.js"))
}

pub(crate) async fn style() -> Response {
    text("text/css; charset=utf-8", include_str!("../pages/pages.css"))
}
