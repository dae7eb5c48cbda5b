//! A TLS connection that is opened on its way, so that a secret can be put into its requests.
//!
//! Happens only for hosts that a secret of the job is bound to. Inwards the job's own authority
//! vouches for the host, outwards the host's certificate is checked as this machine checks any.
//! Requests are read and written anew, so what the server sees is what was judged here.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::Acceptor;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Mutex;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::ByteStream;
use super::authority::{Authority, provider};
use super::dial::{Dialed, Record};
use super::http::{LARGEST_HEAD, PATIENCE};
use super::message::{Body, check, remove_hop_by_hop, say};
use super::secret::{BoundSecret, canonical};

/// How long a handshake may take, on either side.
const HANDSHAKE_TIME: Duration = Duration::from_secs(20);

/// What is needed to stand between a sandbox and a host.
pub(super) struct Interceptor {
    authority: Arc<Authority>,
    outwards: Arc<ClientConfig>,
}

impl Interceptor {
    /// Trusts what `certificates`, a text of PEM blocks, names.
    pub(super) fn new(authority: Arc<Authority>, certificates: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_slice_iter(certificates.as_bytes()).flatten();
        roots.add_parsable_certificates(found);
        let mut outwards = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider knows today's versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        outwards.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { authority, outwards: Arc::new(outwards) }
    }

    /// Serves a client that believes to speak to the host. The secrets are those of this host.
    pub(super) async fn serve(
        &self,
        client: impl ByteStream + 'static,
        dialed: Dialed,
        secrets: Vec<BoundSecret>,
    ) {
        let Dialed { stream, record, .. } = dialed;
        let host = canonical(&record.host);
        let accepting = tokio::time::timeout(HANDSHAKE_TIME, self.accept(&host, client));
        let Some(Ok(Ok(client))) = record.until_cut(accepting).await else { return };
        let connecting = tokio::time::timeout(HANDSHAKE_TIME, self.connect(&host, stream));
        let Some(connected) = record.until_cut(connecting).await else { return };
        let server = match connected.map_err(io::Error::from).flatten() {
            Ok(server) => Ok(server),
            // The client is told in an answer, since it takes us for the host.
            Err(error) => Err(format!("there is no trusted connection to {host}: {error}")),
        };
        let over = CancellationToken::new();
        let server = match server {
            Ok(server) => match hyper::client::conn::http1::handshake(TokioIo::new(server)).await {
                Ok((sender, connection)) => {
                    let over = over.clone();
                    tokio::spawn(async move {
                        let _ = connection.with_upgrades().await;
                        over.cancel();
                    });
                    Ok(Mutex::new(sender))
                }
                Err(_) => Err(format!("{host} broke off the connection")),
            },
            Err(error) => Err(error),
        };
        let exchange = Arc::new(Exchange { host, record, secrets, server });
        exchange.serve(client, over).await;
    }

    async fn accept<S: ByteStream>(
        &self,
        host: &str,
        client: S,
    ) -> io::Result<impl ByteStream + use<S>> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), client).await?;
        // A client that asks for another host than the one it asked the proxy for is up to no good.
        let asked = hello.client_hello().server_name().map(canonical);
        if asked.is_some_and(|asked| asked != host) {
            return Err(io::Error::other("the client asks for another host"));
        }
        hello.into_stream(self.authority.server_config(host)?).await
    }

    async fn connect<S: ByteStream>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<impl ByteStream + use<S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.outwards.clone()).connect(name, stream).await
    }
}

/// All requests of one client over one connection to the host.
struct Exchange {
    host: String,
    record: Record,
    secrets: Vec<BoundSecret>,
    /// The way to the host, or why there is none.
    server: Result<Mutex<SendRequest<Incoming>>, String>,
}

impl Exchange {
    /// Returns when the client is done, the host has closed, or the connection is cut.
    async fn serve(self: Arc<Self>, client: impl ByteStream + 'static, over: CancellationToken) {
        let service = service_fn(|request| {
            let exchange = self.clone();
            async move { Ok::<_, Infallible>(exchange.answer(request).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(LARGEST_HEAD)
            .serve_connection(TokioIo::new(client), service)
            .with_upgrades();
        let mut serving = pin!(serving);
        let serve = async {
            tokio::select! {
                _ = &mut serving => return,
                // The client must not be left with a connection that leads nowhere.
                () = over.cancelled() => serving.as_mut().graceful_shutdown(),
            }
            let _ = serving.await;
        };
        self.record.until_cut(serve).await;
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        if let Err(why) = check(&request, &self.host, self.record.port) {
            return say(StatusCode::BAD_REQUEST, why);
        }
        let server = match &self.server {
            Ok(server) => server,
            Err(why) => return say(StatusCode::BAD_GATEWAY, why),
        };
        let upgrade = request.headers().get(header::UPGRADE).cloned();
        let host = request.headers().get(header::HOST).cloned();
        remove_hop_by_hop(request.headers_mut());
        // The host that was judged is the host that is asked for, also if the client calls it a hop.
        if let Some(host) = host {
            request.headers_mut().insert(header::HOST, host);
        }
        // It was answered here already.
        request.headers_mut().remove(header::EXPECT);
        let path = request.uri().path().to_owned();
        for secret in &self.secrets {
            secret.put_into(request.headers_mut(), &path);
        }
        let inner = upgrade.map(|protocol| {
            mark_upgrade(request.headers_mut(), protocol);
            hyper::upgrade::on(&mut request)
        });
        let mut sender = server.lock().await;
        let answered = match sender.ready().await {
            Ok(()) => sender.send_request(request).await,
            Err(error) => Err(error),
        };
        drop(sender);
        match (answered, inner) {
            (Ok(response), Some(inner)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.switch_protocols(response, inner)
            }
            (Ok(mut response), _) => {
                remove_hop_by_hop(response.headers_mut());
                response.map(|body| body.boxed())
            }
            (Err(_), _) => {
                let why = format!("{} broke off the connection", self.host);
                say(StatusCode::BAD_GATEWAY, &why)
            }
        }
    }

    /// From here on both sides speak something else, such as WebSocket, which passes as it is.
    fn switch_protocols(
        self: Arc<Self>,
        mut response: Response<Incoming>,
        inner: hyper::upgrade::OnUpgrade,
    ) -> Response<Body> {
        let outer = hyper::upgrade::on(&mut response);
        let protocol = response.headers().get(header::UPGRADE).cloned();
        remove_hop_by_hop(response.headers_mut());
        if let Some(protocol) = protocol {
            mark_upgrade(response.headers_mut(), protocol);
        }
        tokio::spawn(async move {
            let switching = async { tokio::join!(inner, outer) };
            if let Some((Ok(inner), Ok(outer))) = self.record.until_cut(switching).await {
                self.record.join(TokioIo::new(inner), TokioIo::new(outer)).await;
            }
        });
        response.map(|body| body.boxed())
    }
}

fn mark_upgrade(headers: &mut hyper::HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}
