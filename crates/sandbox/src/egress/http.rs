//! The HTTP side of the proxy: CONNECT for tunnels, whole addresses for plain HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use super::dial::{Dialed, dial};
use super::message::{
    Body, NO_ECHO, asks_for_an_echo, empty, readdress, refuse, remove_hop_by_hop, say,
};
use super::secret::Scheme;
use super::target::target;
use super::upstream::Purpose;
use super::{Client, Egress};

/// How long a client may take to send its request's head.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The most that the head of a request may have.
pub(super) const LARGEST_HEAD: usize = 64 << 10;

pub(super) async fn serve(egress: Arc<Egress>, client: Client, gone: &CancellationToken) {
    let service = service_fn(|request| {
        let egress = egress.clone();
        async move { Ok::<_, Infallible>(answer(egress, request, gone).await) }
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

async fn answer(
    egress: Arc<Egress>,
    request: Request<Incoming>,
    gone: &CancellationToken,
) -> Response<Body> {
    if request.method() == Method::CONNECT {
        return tunnel(egress, request, gone).await;
    }
    if request.uri().scheme_str() != Some("http") {
        return say(
            StatusCode::BAD_REQUEST,
            "this is a proxy: send CONNECT, or a whole address that begins with http://",
        );
    }
    forward(egress, request, gone).await
}

async fn tunnel(
    egress: Arc<Egress>,
    request: Request<Incoming>,
    gone: &CancellationToken,
) -> Response<Body> {
    let Some((host, port)) = target(request.uri(), None) else {
        return say(StatusCode::BAD_REQUEST, "CONNECT needs a host and a port");
    };
    let dialed = match dial(&egress, &host, port, Purpose::Tunnel, gone).await {
        Ok(dialed) => dialed,
        Err(verdict) => return refuse(verdict, &host, port),
    };
    tokio::spawn(async move {
        let upgrading = hyper::upgrade::on(request);
        if let Some(Ok(client)) = dialed.record.until_cut(upgrading).await {
            egress.join(TokioIo::new(client), dialed).await;
        }
    });
    Response::new(empty())
}

/// Passes on one plain request. Each is judged by itself, also on a connection that is kept.
async fn forward(
    egress: Arc<Egress>,
    mut request: Request<Incoming>,
    gone: &CancellationToken,
) -> Response<Body> {
    let Some((host, port)) = target(request.uri(), Some(Scheme::Http.default_port())) else {
        return say(StatusCode::BAD_REQUEST, "the address has no host");
    };
    let secrets = egress.secrets_for(Scheme::Http, &host, port);
    if !secrets.is_empty() && asks_for_an_echo(request.method()) {
        return say(StatusCode::BAD_REQUEST, NO_ECHO);
    }
    let Dialed { stream, record, proxy } =
        match dial(&egress, &host, port, Purpose::PlainRequest, gone).await {
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
        record.until_cut(connection).await
    });
    readdress(&mut request, &host, port, proxy.as_ref());
    let path = request.uri().path().to_owned();
    for secret in secrets {
        secret.put_into(request.headers_mut(), &path);
    }
    match sender.send_request(request).await {
        Ok(mut response) => {
            remove_hop_by_hop(response.headers_mut());
            response.map(|body| body.boxed())
        }
        Err(_) => failed(),
    }
}
