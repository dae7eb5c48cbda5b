//! Content of sandboxes, each under a host name of its own: who may see it, and what passes.
//!
//! Whatever a sandbox serves is hostile to the user's session. So it never has the API's origin, is
//! told nothing of ours, and only pages of its own origin may use it.

mod headers;
mod key;
mod name;
mod pass;
mod policy;
mod proxy;
mod refusal;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use serde::Deserialize;

pub(crate) use key::AppKey;
pub(crate) use name::{AppDomain, AppName, Service};
pub(crate) use pass::{Passes, Visitor};
use refusal::Refusal;

use crate::attempts::Peer;
use crate::caller::{Caller, Shown};
use crate::relay::reach;
use crate::{SharedServer, guard};

/// Where an app's host turns a ticket into a cookie. No app is asked for it.
pub(crate) const ENTRANCE: &str = "/.bellglass/enter";

/// What the server knows about apps.
pub(crate) struct Apps {
    pub domain: AppDomain,
    pub passes: Passes,
}

/// What stands in the address of the entrance.
#[derive(Deserialize)]
struct Entering {
    ticket: String,
    to: String,
}

/// Answers a request to an app's host. None of these ever reaches the API.
pub(crate) async fn answer(
    server: &SharedServer,
    app: AppName,
    host: &Authority,
    request: Request,
) -> Response {
    match serve(server, app, host, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.page(&app),
    }
}

async fn serve(
    server: &SharedServer,
    app: AppName,
    host: &Authority,
    mut request: Request,
) -> Result<Response, Refusal> {
    let now = Timestamp::now();
    if request.uri().path() == ENTRANCE {
        return enter(server, &app, request.uri().query(), now);
    }
    if headers::are_too_large(request.headers()) {
        return Err(Refusal::HeadersTooLarge);
    }
    if policy::asks_for_service_worker(request.headers()) {
        return Err(Refusal::ServiceWorker);
    }
    // A program that has our token needs no ticket, and the app must not see the token.
    let pass = server.apps.passes.admitted(&app, request.headers(), now);
    let from = Peer::of(request.extensions(), request.headers());
    let shown =
        guard::take_token(server, from, request.headers_mut(), app.job, pass.is_some()).await;
    let (caller, opener) = match shown.map_err(|_| Refusal::NotAdmitted)? {
        Some(caller) => (caller, None),
        None => {
            if !is_of_this_origin(&request, host) {
                return Err(Refusal::OtherOrigin);
            }
            let visitor = pass.ok_or(Refusal::NotAdmitted)?.visitor;
            (still_let_in(server, visitor.shown, now).await?, Some(visitor.opener))
        }
    };
    let stream = reach::connect(server, app.job, app.service.inside()).await?;
    let forwarded = proxy::forward(server, caller, stream, request).await;
    let mut response = forwarded.map_err(|_| Refusal::BadAnswer)?;
    policy::keep_to_itself(response.headers_mut(), host, opener.as_deref());
    Ok(response)
}

/// Who has a pass, unless what the browser was let in by was revoked since or has run out.
async fn still_let_in(
    server: &SharedServer,
    shown: Shown,
    now: Timestamp,
) -> Result<Caller, Refusal> {
    match shown {
        Shown::Nothing => Ok(Caller::Operator { session: None }),
        Shown::Session(session) => match server.ended_sessions.holds(&session, now) {
            true => Ok(Caller::Operator { session: Some(session) }),
            false => Err(Refusal::NotAdmitted),
        },
        Shown::Token(hash) => {
            let found = server.app.store.find_token(&hash, now).await;
            let token = found.ok().flatten().ok_or(Refusal::NotAdmitted)?;
            Ok(Caller::Holder { token: Arc::new(token), hash })
        }
    }
}

/// Turns a ticket into cookies and goes on to the page that was asked for.
fn enter(
    server: &SharedServer,
    app: &AppName,
    query: Option<&str>,
    now: Timestamp,
) -> Result<Response, Refusal> {
    let entering: Entering =
        serde_urlencoded::from_str(query.unwrap_or_default()).map_err(|_| Refusal::BadTicket)?;
    let passes = &server.apps.passes;
    let pass = passes.redeem(app, &entering.ticket, now).ok_or(Refusal::BadTicket)?;
    let to = on_this_host(&entering.to).ok_or(Refusal::BadTicket)?;
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response();
    for cookie in passes.cookies(app, &pass, now) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

/// An address that cannot lead to another host.
fn on_this_host(to: &str) -> Option<HeaderValue> {
    let is_local = to.starts_with('/') && !to.starts_with("//") && !to.contains('\\');
    is_local.then(|| HeaderValue::try_from(to).ok()).flatten()
}

/// A browser sends an app's cookie whoever asked it to. Other sites, and other sandboxes, may lead
/// somebody to an app but neither call it nor send anything to it.
fn is_of_this_origin(request: &Request, host: &Authority) -> bool {
    let headers = request.headers();
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let arrives = is_safe
        && !headers::asks_for_websocket(headers)
        && headers.get("sec-fetch-mode").is_none_or(|mode| mode == "navigate");
    let is_foreign_origin = headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        !named.is_some_and(|named| named.eq_ignore_ascii_case(host.as_str()))
    });
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_foreign_site = matches!(site, Some(b"cross-site" | b"same-site"));
    !is_foreign_origin && (!is_foreign_site || arrives)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn comes(lines: &[(&str, &str)], method: Method) -> bool {
        let mut request = Request::builder().method(method);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let host = "a-1.localhost:8000".parse().unwrap();
        is_of_this_origin(&request.body(Body::empty()).unwrap(), &host)
    }

    #[test]
    fn only_an_apps_own_pages_may_use_it() {
        let own = [("origin", "http://a-1.localhost:8000"), ("sec-fetch-site", "same-origin")];
        assert!(comes(&own, Method::POST));
        assert!(comes(&[], Method::POST));
        let arriving = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(comes(&arriving, Method::GET));
        assert!(!comes(&arriving, Method::POST));
        for origin in
            ["http://a-2.localhost:8000", "http://localhost:8000", "null", "https://evil.example"]
        {
            assert!(!comes(&[("origin", origin)], Method::GET), "{origin}");
            let websocket =
                [("origin", origin), ("connection", "upgrade"), ("upgrade", "websocket")];
            assert!(!comes(&websocket, Method::GET), "{origin}");
        }
        for mode in ["no-cors", "cors", "websocket"] {
            let fetch = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode)];
            assert!(!comes(&fetch, Method::GET), "{mode}");
        }
    }

    #[test]
    fn the_entrance_leads_nowhere_else() {
        assert!(on_this_host("/a?b=c").is_some());
        for to in ["", "//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb"] {
            assert!(on_this_host(to).is_none(), "{to}");
        }
    }
}
