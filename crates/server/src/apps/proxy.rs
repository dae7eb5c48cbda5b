//! One request to an app in a sandbox and its answer, both passed on as they come.
//!
//! Each request has a connection of its own into the sandbox. Bodies go piece by piece, so a slow
//! reader slows the app and nothing is held in between.

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version, header};
use axum::response::Response;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::headers;
use crate::caller::Caller;
use crate::live::LiveStream;
use crate::{SharedServer, standing};

/// The most that the head of an app's answer may have.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 200;

/// Sends a request to the app at the other end of `stream`, for as long as its caller is let in. The error
/// is what the app did wrong.
pub(super) async fn forward(
    server: &SharedServer,
    caller: Caller,
    stream: LiveStream,
    mut request: Request,
) -> Result<Response, hyper::Error> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends with the exchange, or breaks it off; what goes wrong is heard where the answer is waited for.
    let ended = standing::ended(server.clone(), caller.clone());
    tokio::spawn(async move {
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = ended => {}
        }
    });
    let websocket = headers::asks_for_websocket(request.headers());
    let client = websocket.then(|| hyper::upgrade::on(&mut request));
    let mut response = sender.send_request(for_the_app(request, websocket)).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let app = hyper::upgrade::on(&mut response);
        tokio::spawn(join(server.clone(), caller, client, app));
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        headers::remove_hop_by_hop(answer.headers_mut());
        headers::remove_cookies_like_ours(answer.headers_mut());
        say_websocket(answer.headers_mut());
        return Ok(answer);
    }
    let (mut parts, body) = response.into_parts();
    headers::remove_hop_by_hop(&mut parts.headers);
    headers::remove_cookies_like_ours(&mut parts.headers);
    // An answer without end must not keep the server from stopping.
    let stopping = server.stopping.clone().cancelled_owned();
    let pieces = body.into_data_stream().take_until(Box::pin(stopping));
    let mut answer = Response::new(Body::from_stream(pieces));
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    Ok(answer)
}

/// The request as the app sees it.
fn for_the_app(request: Request, websocket: bool) -> Request {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().cloned();
    let host = parts.uri.authority().map(|host| host.as_str().to_owned());
    parts.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    parts.version = Version::HTTP_11;
    headers::remove_hop_by_hop(&mut parts.headers);
    headers::remove_our_cookies(&mut parts.headers);
    if let Some(host) = host.and_then(|host| HeaderValue::try_from(host).ok()) {
        parts.headers.entry(header::HOST).or_insert(host);
    }
    if websocket {
        say_websocket(&mut parts.headers);
    }
    Request::from_parts(parts, body)
}

fn say_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// Passes bytes between a browser and an app that now speak a protocol of their own.
async fn join(server: SharedServer, caller: Caller, client: OnUpgrade, app: OnUpgrade) {
    let Ok((client, app)) = tokio::try_join!(client, app) else { return };
    let (mut client, mut app) = (TokioIo::new(client), TokioIo::new(app));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut app) => {}
        () = standing::ended(server.clone(), caller) => {}
        () = server.stopping.cancelled() => {}
    }
}
