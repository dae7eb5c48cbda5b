//! The web page as it was built into this program, and how its files are sent to a browser.
//!
//! The files are made by `make page` out of `web/`. A release carries them; another build reads them
//! from there, so that whoever works on the page need not compile Rust. Names under `assets/` have a
//! hash of their content in them, so a browser may keep those for ever.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use headers::{ETag, HeaderMapExt as _, IfNoneMatch};
use rust_embed::{Embed, EmbeddedFile};

/// Nothing but our own files may be loaded or called, no text may become markup (the policies named are
/// Svelte's for its own templates and ours for the one worker), no other site may frame us. Frames show
/// what sandboxes serve, under host names of its own.
fn policy(apps: Option<&str>) -> String {
    let frames = match apps {
        // Frames begin at our own address, which leads on to the app's.
        Some(domain) => format!("'self' http://*.{domain} https://*.{domain}"),
        None => "'none'".into(),
    };
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
         connect-src 'self'; worker-src 'self'; frame-src {frames}; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'; \
         trusted-types svelte-trusted-html bellglass-worker"
    )
}

#[derive(Embed)]
#[folder = "../../web/dist/page"]
#[allow_missing = true]
struct Built;

/// The page itself, the same for every address that it draws; nothing if it was not built. `apps` is
/// the domain under which sandboxes are shown.
pub(crate) fn index(request: &HeaderMap, apps: Option<&str>) -> Option<Response> {
    document("index.html", request, apps)
}

/// The page that shows one desktop.
pub(crate) fn desktop(request: &HeaderMap) -> Option<Response> {
    document("desktop.html", request, None)
}

/// The licences of what the page is made of beside our own code.
pub(crate) fn notices(request: &HeaderMap) -> Option<Response> {
    document("notices.txt", request, None)
}

fn document(path: &str, request: &HeaderMap, apps: Option<&str>) -> Option<Response> {
    let mut response = send(path, request)?;
    let policy = HeaderValue::try_from(policy(apps)).ok()?;
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(response)
}

/// A file that the page needs.
pub(crate) fn asset(path: &str, request: &HeaderMap) -> Option<Response> {
    // They all lie in one folder, so nothing but a plain name is one of them.
    if path.contains('/') || path.starts_with('.') {
        return None;
    }
    let mut response = send(&format!("assets/{path}"), request)?;
    let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, kept);
    Some(response)
}

fn send(path: &str, request: &HeaderMap) -> Option<Response> {
    let content_type = content_type(path)?;
    let packed = if takes_gzip(request) { Built::get(&format!("{path}.gz")) } else { None };
    let is_packed = packed.is_some();
    let EmbeddedFile { data, metadata } = packed.or_else(|| Built::get(path))?;
    let etag: ETag = format!("\"{}\"", hex::encode(&metadata.sha256_hash()[..16])).parse().ok()?;

    let mut response = Body::empty().into_response();
    let headers = response.headers_mut();
    headers.typed_insert(etag.clone());
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(policy) = HeaderValue::try_from(policy(None)) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    let known = request.typed_get::<IfNoneMatch>();
    if known.is_some_and(|condition| !condition.precondition_passes(&etag)) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Some(response);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    *response.body_mut() = Body::from(match data {
        std::borrow::Cow::Borrowed(data) => Bytes::from_static(data),
        std::borrow::Cow::Owned(data) => Bytes::from(data),
    });
    Some(response)
}

/// The build makes no other kinds of files than these.
fn content_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

fn takes_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| {
        accepted.split(',').any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
            is_gzip && !parts.any(|weight| weight.replace(' ', "") == "q=0")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        for (accepted, takes) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.8, br", true),
            ("gzip;q=0", false),
            ("br, x-gzip", false),
            ("", false),
        ] {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(takes_gzip(&headers), takes, "{accepted}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn nothing_but_files_of_the_page_is_found() {
        for path in ["", "..", "../index.html", "../../src/main.ts", "x", "/etc/passwd", "a.rs"] {
            assert!(asset(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }
}
