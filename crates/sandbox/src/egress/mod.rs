//! The one way out of a sandbox: a proxy on this side of the glass that decides by host name.
//!
//! The guest relays bytes and decides nothing. Here the HTTP or SOCKS request is read, the job's
//! policy is asked, the name is resolved, addresses that are not public are refused, and what
//! became of it is told to the log. Everything that arrives is hostile.

mod counted;
mod dial;
mod http;
mod socks;
mod socks_request;
mod target;

use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use bellglass_protocol::mux::MuxStream;
use bellglass_protocol::network::{Connection, HostRule, NetworkPolicy};
use bytes::Bytes;
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Chain, Join, ReadHalf, WriteHalf,
};

pub use dial::UpstreamProxy;

/// A program's connection to the proxy.
type Client =
    BufReader<Join<Chain<std::io::Cursor<Bytes>, ReadHalf<MuxStream>>, WriteHalf<MuxStream>>>;

/// Hears of every connection once it is over, or refused.
pub trait ConnectionLog: Send + Sync + 'static {
    fn connection(&self, connection: Connection);
}

/// What the operator decides about all sandboxes' ways out.
#[derive(Clone, Debug, Default)]
pub struct EgressSettings {
    /// What the policy `registries` means.
    pub registries: Vec<HostRule>,
    /// Addresses that may be reached although they are not public.
    pub private_exceptions: Vec<IpAddr>,
    /// A proxy that this host itself must use.
    pub upstream: Option<UpstreamProxy>,
}

/// The way out of one sandbox.
pub struct Egress {
    policy: RwLock<NetworkPolicy>,
    settings: Arc<EgressSettings>,
    log: Arc<dyn ConnectionLog>,
}

impl Egress {
    pub fn new(
        policy: NetworkPolicy,
        settings: Arc<EgressSettings>,
        log: Arc<dyn ConnectionLog>,
    ) -> Self {
        Self { policy: RwLock::new(policy), settings, log }
    }

    /// Puts another policy in force for connections that come from now on.
    pub fn set_policy(&self, policy: NetworkPolicy) {
        *self.policy.write().expect("no code panics while it holds this lock") = policy;
    }

    fn allows(&self, host: &str, port: u16) -> bool {
        let policy = self.policy.read().expect("no code panics while it holds this lock");
        policy.allows(host, port, &self.settings.registries)
    }

    /// Serves one connection that a program in the sandbox made to the guest's proxy port. Its
    /// first bytes may have arrived already.
    pub(crate) async fn serve(self: Arc<Self>, first: Bytes, stream: MuxStream) {
        let (reader, writer) = tokio::io::split(stream);
        let reader = std::io::Cursor::new(first).chain(reader);
        let mut stream = BufReader::new(tokio::io::join(reader, writer));
        match stream.fill_buf().await {
            Ok([socks::VERSION, ..]) => socks::serve(&self, stream).await,
            Ok([_, ..]) => http::serve(self, stream).await,
            _ => {}
        }
    }
}
