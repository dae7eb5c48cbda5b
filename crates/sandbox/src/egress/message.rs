//! What the proxy does to HTTP messages on their way, wherever they come from.

use bellglass_protocol::network::Verdict;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode, header};

pub(super) type Body = BoxBody<Bytes, hyper::Error>;

/// Headers that concern one connection and not the request.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out what concerns the connection that a message came over, and only that.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // The other side may name more headers that concern only this connection.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("proxy-connection");
    headers.remove("keep-alive");
}

/// What a client is told about a connection that was not made.
pub(super) fn refuse(verdict: Verdict, host: &str, port: u16) -> Response<Body> {
    let place = format!("{host}:{port}");
    match verdict {
        Verdict::RefusedByPolicy | Verdict::CutByPolicy => say(
            StatusCode::FORBIDDEN,
            &format!("{place} is not in this job's network policy; name it under `network`"),
        ),
        Verdict::RefusedPrivateAddress => say(
            StatusCode::FORBIDDEN,
            &format!("{place} has no public address, and others cannot be reached from a sandbox"),
        ),
        Verdict::NotResolved => {
            say(StatusCode::BAD_GATEWAY, &format!("{place} cannot be resolved"))
        }
        Verdict::NotConnected | Verdict::Allowed => {
            say(StatusCode::BAD_GATEWAY, &format!("{place} does not answer"))
        }
    }
}

pub(super) fn say(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("bellglass: {text}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Whether a server would answer with the request itself, and so tell a secret that was put into it.
pub(super) fn asks_for_an_echo(method: &Method) -> bool {
    matches!(method.as_str(), "TRACE" | "TRACK")
}

pub(super) const NO_ECHO: &str =
    "a request that is sent back as it came is not passed on to this host";
