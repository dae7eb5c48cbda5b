//! From a host name to a connection: policy, resolving, the check of addresses, connecting.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use bellglass_protocol::network::{Connection, Verdict, is_public};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Egress;
use super::counted::{Counted, Counts};

const RESOLVE_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// A proxy through which this host reaches the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamProxy {
    pub host: String,
    pub port: u16,
    /// `user:password`, if it asks for one.
    pub credentials: Option<String>,
}

/// A connection to the world. Tells the log about itself when it is dropped.
pub(super) struct Dialed {
    pub(super) stream: Counted<TcpStream>,
    pub(super) record: Record,
}

/// What the log will be told. Kept apart from the stream, which others take over.
pub(super) struct Record {
    egress: Arc<Egress>,
    host: String,
    port: u16,
    counts: Arc<Counts>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.egress.log.connection(Connection {
            host: std::mem::take(&mut self.host),
            port: self.port,
            verdict: Verdict::Allowed,
            bytes_out: self.counts.written.load(Ordering::Relaxed),
            bytes_in: self.counts.read.load(Ordering::Relaxed),
        });
    }
}

/// Connects to a host if everything allows it. A refusal is in the log when this returns.
pub(super) async fn dial(egress: &Arc<Egress>, host: &str, port: u16) -> Result<Dialed, Verdict> {
    match try_dial(egress, host, port).await {
        Ok(stream) => {
            let counts = Arc::new(Counts::default());
            let record =
                Record { egress: egress.clone(), host: shown(host), port, counts: counts.clone() };
            Ok(Dialed { stream: Counted::new(stream, counts), record })
        }
        Err(verdict) => {
            let host = shown(host);
            let connection = Connection { host, port, verdict, bytes_out: 0, bytes_in: 0 };
            egress.log.connection(connection);
            Err(verdict)
        }
    }
}

async fn try_dial(egress: &Egress, host: &str, port: u16) -> Result<TcpStream, Verdict> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if !egress.allows(bare, port) {
        return Err(Verdict::RefusedByPolicy);
    }
    let literal = bare.parse::<IpAddr>().ok();
    if let Some(proxy) = &egress.settings.upstream {
        // The proxy resolves names where we may not be able to; an address we can still judge.
        if literal.is_some_and(|address| !may_reach(egress, address)) {
            return Err(Verdict::RefusedPrivateAddress);
        }
        return through(proxy, host, port).await.map_err(|_| Verdict::NotConnected);
    }
    let resolving = tokio::net::lookup_host((bare, port));
    let found: Vec<SocketAddr> = match tokio::time::timeout(RESOLVE_TIME, resolving).await {
        Ok(Ok(addresses)) => addresses.collect(),
        _ => return Err(Verdict::NotResolved),
    };
    if found.is_empty() {
        return Err(Verdict::NotResolved);
    }
    // The addresses that were checked are the ones that are connected to: a name that changes its
    // mind in between changes nothing.
    let fit: Vec<SocketAddr> =
        found.into_iter().filter(|address| may_reach(egress, address.ip())).collect();
    if fit.is_empty() {
        return Err(Verdict::RefusedPrivateAddress);
    }
    for address in fit {
        let connecting = TcpStream::connect(address);
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIME, connecting).await {
            let _ = stream.set_nodelay(true);
            return Ok(stream);
        }
    }
    Err(Verdict::NotConnected)
}

fn may_reach(egress: &Egress, address: IpAddr) -> bool {
    is_public(address) || egress.settings.private_exceptions.contains(&address.to_canonical())
}

/// Asks the host's own proxy for a tunnel.
async fn through(proxy: &UpstreamProxy, host: &str, port: u16) -> std::io::Result<TcpStream> {
    let tunnel = async {
        let mut stream = TcpStream::connect((proxy.host.as_str(), proxy.port)).await?;
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some(credentials) = &proxy.credentials {
            let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
            request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        // Byte by byte, so that nothing of what comes after the answer is taken.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > 8192 {
                return Err(std::io::Error::other("the proxy's answer is too long"));
            }
            answer.push(stream.read_u8().await?);
        }
        let ok = answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200");
        if ok { Ok(stream) } else { Err(std::io::Error::other("the proxy refused")) }
    };
    tokio::time::timeout(CONNECT_TIME, tunnel).await?
}

/// A host's name for the log: it comes from inside, so it is bounded and plain.
fn shown(host: &str) -> String {
    host.chars().take(253).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}
