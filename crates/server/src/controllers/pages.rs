//! `/` and `/docs`: two plain pages for people, until there is a page for all of it.
//!
//! They ask nothing of any other host, and their policy forbids it.

use axum::http::header;
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

fn asset(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

pub(crate) async fn landing() -> Response {
    asset("text/html; charset=utf-8", include_str!("../pages/landing.html"))
}

/// The API, explained
#[utoipa::path(
    get, path = "/docs", operation_id = "get_docs", tag = "operations",
    responses((status = 200, description = "A page that shows this document.", body = String, content_type = "text/html; charset=utf-8")),
)]
pub(crate) async fn docs() -> Response {
    asset("text/html; charset=utf-8", include_str!("../pages/docs.html"))
}

pub(crate) async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("../pages/docs.js"))
}

pub(crate) async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../pages/pages.css"))
}
