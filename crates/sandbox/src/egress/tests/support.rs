//! A proxy with a resolver that says what a test wants, and servers on loopback behind it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::{Connection, NetworkPolicy, Verdict};
use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::super::authority::provider;
use super::super::dial::Resolve;
use super::super::{ByteStream, ConnectionLog, Egress, EgressSettings};

/// Remembers what became of connections.
#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Connection>>);

impl ConnectionLog for Log {
    fn connection(&self, connection: Connection) {
        self.0.lock().unwrap().push(connection);
    }
}

impl Log {
    pub(super) fn verdicts(&self) -> Vec<(String, Verdict)> {
        let connections = self.0.lock().unwrap();
        connections.iter().map(|each| (each.host.clone(), each.verdict)).collect()
    }

    pub(super) fn bytes_out_to(&self, host: &str) -> u64 {
        let connections = self.0.lock().unwrap();
        connections.iter().filter(|each| each.host == host).map(|each| each.bytes_out).sum()
    }
}

/// Answers each question about a name with the next of its addresses; the last one stays.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<String, Vec<SocketAddr>>>);

impl Names {
    pub(super) fn with(self, name: &str, addresses: &[SocketAddr]) -> Self {
        let mut reversed = addresses.to_vec();
        reversed.reverse();
        self.0.lock().unwrap().insert(name.into(), reversed);
        self
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, host: &str, _: u16, _: Duration) -> io::Result<Vec<SocketAddr>> {
        let mut names = self.0.lock().unwrap();
        let addresses = names.get_mut(host).ok_or(io::ErrorKind::NotFound)?;
        let last = *addresses.last().ok_or(io::ErrorKind::NotFound)?;
        if addresses.len() > 1 {
            addresses.pop();
        }
        Ok(vec![last])
    }
}

/// A proxy that may reach everything, and this machine's loopback under its second address only.
pub(super) fn open_proxy(names: Names) -> (Egress, Arc<Log>) {
    let settings = EgressSettings {
        private_exceptions: vec![IpAddr::V4(ALLOWED)],
        ..EgressSettings::default()
    };
    let log = Arc::new(Log::default());
    let egress = Egress::new(NetworkPolicy::Open, Arc::new(settings), log.clone());
    (Egress { resolver: Box::new(names), ..egress }, log)
}

/// The one private address that the proxy of a test may reach.
pub(super) const ALLOWED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A program's connection to the proxy.
pub(super) fn connect(egress: &Arc<Egress>) -> DuplexStream {
    connect_until(egress, CancellationToken::new())
}

/// The same of a program that may be found to be gone.
pub(super) fn connect_until(egress: &Arc<Egress>, gone: CancellationToken) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(256 << 10);
    tokio::spawn(egress.clone().serve(Bytes::new(), theirs, gone));
    ours
}

/// Asks for a tunnel, which must be given.
pub(super) async fn tunnel(egress: &Arc<Egress>, place: &str) -> DuplexStream {
    tunnel_in(connect(egress), place).await
}

pub(super) async fn tunnel_in(mut stream: DuplexStream, place: &str) -> DuplexStream {
    let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    stream
}

/// Sends bytes and reads all that comes back until the other side is done.
pub(super) async fn exchange(mut stream: impl ByteStream, bytes: &[u8]) -> String {
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) async fn read_head(stream: &mut (impl ByteStream + ?Sized)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A listener that sandboxes of a test may reach.
pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ALLOWED, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An authority, and what a host needs that it vouches for.
pub(super) struct Certified {
    pub(super) authority: String,
    pub(super) acceptor: TlsAcceptor,
}

pub(super) fn certified(name: &str) -> Certified {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new([name.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    Certified { authority, acceptor: TlsAcceptor::from(Arc::new(config)) }
}

/// Answers every connection with a few words, after it has read a head, and remembers all it got.
pub(super) fn remember(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
) -> Arc<Mutex<Vec<u8>>> {
    let got = Arc::new(Mutex::new(Vec::new()));
    let remembered = got.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, remembered) = (acceptor.clone(), remembered.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => serve(stream, &remembered).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            serve(stream, &remembered).await;
                        }
                    }
                }
            });
        }
    });
    got
}

async fn serve(mut stream: impl ByteStream, got: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    let mut request = Vec::new();
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        got.lock().unwrap().extend_from_slice(&buffer[..count]);
        request.extend_from_slice(&buffer[..count]);
        // A whole request: a head, and for a body that comes in chunks the last of them.
        let chunked = String::from_utf8_lossy(&request).contains("chunked");
        if request.ends_with(b"\r\n\r\n") && (!chunked || request.ends_with(b"0\r\n\r\n")) {
            request.clear();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    }
}

pub(super) fn text(got: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&got.lock().unwrap()).into_owned()
}

/// Kept for tests that play the server themselves.
pub(super) async fn accept(listener: TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}
