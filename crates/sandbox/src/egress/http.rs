//! The HTTP side of the proxy: CONNECT for tunnels, whole addresses for plain HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::network::Verdict;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::dial::{Dialed, dial};
use super::target::target;
use super::{Client, Egress};

type Body = BoxBody<Bytes, hyper::Error>;

/// How long a client may take to send its request's head.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most that the head of a request may have.
const LARGEST_HEAD: usize = 64 << 10;

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

pub(super) async fn serve(egress: Arc<Egress>, client: Client) {
    let service = service_fn(|request| {
        let egress = egress.clone();
        async move { Ok::<_, Infallible>(answer(egress, request).await) }
    });
    // An error means that the client broke off or spoke no HTTP; nobody is left to tell.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades()
        .await;
}

async fn answer(egress: Arc<Egress>, request: Request<Incoming>) -> Response<Body> {
    if request.method() == Method::CONNECT {
        return tunnel(egress, request).await;
    }
    if request.uri().scheme_str() != Some("http") {
        return say(
            StatusCode::BAD_REQUEST,
            "this is a proxy: send CONNECT, or a whole address that begins with http://",
        );
    }
    forward(egress, request).await
}

async fn tunnel(egress: Arc<Egress>, request: Request<Incoming>) -> Response<Body> {
    let Some((host, port)) = target(request.uri(), None) else {
        return say(StatusCode::BAD_REQUEST, "CONNECT needs a host and a port");
    };
    let Dialed { mut stream, record } = match dial(&egress, &host, port).await {
        Ok(dialed) => dialed,
        Err(verdict) => return refuse(verdict, &host, port),
    };
    tokio::spawn(async move {
        let _record = record;
        if let Ok(client) = hyper::upgrade::on(request).await {
            let mut client = TokioIo::new(client);
            let _ = tokio::io::copy_bidirectional(&mut client, &mut stream).await;
        }
    });
    Response::new(Empty::new().map_err(|never| match never {}).boxed())
}

/// Passes on one plain request. Each is judged by itself, also on a connection that is kept.
async fn forward(egress: Arc<Egress>, mut request: Request<Incoming>) -> Response<Body> {
    let Some((host, port)) = target(request.uri(), Some(80)) else {
        return say(StatusCode::BAD_REQUEST, "the address has no host");
    };
    let Dialed { stream, record } = match dial(&egress, &host, port).await {
        Ok(dialed) => dialed,
        Err(verdict) => return refuse(verdict, &host, port),
    };
    let failed = || say(StatusCode::BAD_GATEWAY, "the server broke off the connection");
    let Ok((mut sender, connection)) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await
    else {
        return failed();
    };
    tokio::spawn(async move {
        // The connection ends with its one response, and then the log hears of it.
        let _record = record;
        let _ = connection.await;
    });
    make_plain(&mut request, &host, port);
    match sender.send_request(request).await {
        Ok(mut response) => {
            HOP_BY_HOP.iter().for_each(|name| drop(response.headers_mut().remove(name)));
            response.map(|body| body.boxed())
        }
        Err(_) => failed(),
    }
}

/// Makes a request for a proxy into one for the server itself.
fn make_plain(request: &mut Request<Incoming>, host: &str, port: u16) {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(path) = path.parse::<Uri>() {
        *request.uri_mut() = path;
    }
    let headers = request.headers_mut();
    // A client may name more headers that concern only this connection.
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
    // The host that was judged is the host that is asked for, whatever the client wrote.
    let name = if port == 80 { host.to_owned() } else { format!("{host}:{port}") };
    if let Ok(value) = HeaderValue::from_str(&name) {
        headers.insert(header::HOST, value);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}

fn refuse(verdict: Verdict, host: &str, port: u16) -> Response<Body> {
    let place = format!("{host}:{port}");
    match verdict {
        Verdict::RefusedByPolicy => say(
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

fn say(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("bellglass: {text}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
