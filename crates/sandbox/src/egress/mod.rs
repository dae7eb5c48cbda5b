//! The one way out of a sandbox: a proxy on this side of the glass that decides by host name.
//!
//! The guest relays bytes and decides nothing. Here the HTTP or SOCKS request is read, the job's
//! policy is asked, the name is resolved, addresses that are not public are refused, and what
//! became of it is told to the log. Everything that arrives is hostile.

mod authority;
mod counted;
mod dial;
mod equipment;
mod http;
mod intercept;
mod live;
mod message;
mod secret;
mod socks;
mod socks_request;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;
mod upstream;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::{Connection, HostRule, NetworkPolicy};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader};
use tokio_util::sync::CancellationToken;

pub use authority::Authority;
pub use equipment::{PackageSources, equipment, trust_of_chromium};
pub use secret::{BoundSecret, PathPrefix, Place, Scheme, Secret, SecretValue};
pub use upstream::{DirectHosts, Upstream, UpstreamProxy};

use dial::{Dialed, HostResolver, Resolve};
use intercept::Interceptor;
use live::LiveConnections;

/// Bytes both ways.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A program's connection to the proxy.
type Client = BufReader<Box<dyn ByteStream>>;

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
    /// The proxies that this host itself must use.
    pub upstream: Upstream,
    /// The authorities that this host trusts, as PEM; nothing if it has no list of them.
    pub certificates: String,
    /// Where this host's package tools look.
    pub packages: PackageSources,
}

/// How long connections may take to end that were told to. Nothing that they do takes time then.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The way out of one sandbox.
pub struct Egress {
    policy: RwLock<NetworkPolicy>,
    settings: RwLock<Arc<EgressSettings>>,
    log: Arc<dyn ConnectionLog>,
    live: LiveConnections,
    resolver: Box<dyn Resolve>,
    secrets: Vec<BoundSecret>,
    /// There only for a job that has a secret.
    interceptor: Option<Interceptor>,
    /// Asked about hosts that the policy does not allow, where a job wants that.
    asker: Option<Arc<dyn HostAsker>>,
    /// What the asker allowed under this policy.
    granted: RwLock<HashSet<(String, u16)>>,
}

/// Knows somebody who may allow a host that the policy does not.
#[async_trait]
pub trait HostAsker: Send + Sync {
    async fn may_reach(&self, host: &str, port: u16) -> bool;
}

impl Egress {
    pub fn new(
        policy: NetworkPolicy,
        settings: Arc<EgressSettings>,
        log: Arc<dyn ConnectionLog>,
    ) -> Self {
        Self {
            policy: RwLock::new(policy),
            settings: RwLock::new(settings),
            log,
            live: LiveConnections::default(),
            resolver: Box::new(HostResolver::new()),
            secrets: Vec::new(),
            interceptor: None,
            asker: None,
            granted: RwLock::default(),
        }
    }

    /// Asks before a host is refused by the policy.
    pub fn with_asker(self, asker: Arc<dyn HostAsker>) -> Self {
        Self { asker: Some(asker), ..self }
    }

    /// Whether a host may be reached, also if that has to be asked.
    async fn allows_or_asks(&self, host: &str, port: u16) -> bool {
        if self.allows(host, port) {
            return true;
        }
        let Some(asker) = &self.asker else { return false };
        if !asker.may_reach(host, port).await {
            return false;
        }
        let mut granted = self.granted.write().expect("no code panics while it holds this lock");
        granted.insert((host.to_owned(), port));
        true
    }

    /// Lets requests to the secrets' hosts carry them. `certificates` are the authorities that
    /// vouch for those hosts.
    pub fn with_secrets(
        self,
        secrets: Vec<BoundSecret>,
        authority: Arc<Authority>,
        certificates: &str,
    ) -> Self {
        let interceptor = Some(Interceptor::new(authority, certificates));
        Self { secrets, interceptor, ..self }
    }

    /// Puts another policy in force. Connections that it forbids are cut.
    pub fn set_policy(&self, policy: NetworkPolicy) {
        *self.policy.write().expect("no code panics while it holds this lock") = policy;
        self.granted.write().expect("no code panics while it holds this lock").clear();
        self.cut_what_is_forbidden();
    }

    /// Puts other settings in force. Connections that they forbid by name are cut.
    pub fn set_settings(&self, settings: Arc<EgressSettings>) {
        *self.settings.write().expect("no code panics while it holds this lock") = settings;
        self.cut_what_is_forbidden();
    }

    fn cut_what_is_forbidden(&self) {
        self.live.cut_unless(|host, port| self.allows(host, port));
    }

    fn allows(&self, host: &str, port: u16) -> bool {
        let policy = self.policy.read().expect("no code panics while it holds this lock");
        let granted = self.granted.read().expect("no code panics while it holds this lock");
        policy.allows(host, port, &self.settings().registries)
            || granted.contains(&(host.to_owned(), port))
    }

    fn settings(&self) -> Arc<EgressSettings> {
        self.settings.read().expect("no code panics while it holds this lock").clone()
    }

    fn secrets_for(&self, scheme: Scheme, host: &str, port: u16) -> Vec<BoundSecret> {
        let here = self.secrets.iter().filter(|secret| secret.is_for(scheme, host, port));
        here.cloned().collect()
    }

    /// Serves one connection that a program made to the proxy. Its first bytes may have arrived
    /// already. Once `gone` is cancelled nothing is left of it, also where nobody reads from the
    /// program, since its server takes nothing, and so would hear that it broke off.
    pub async fn serve<S>(self: Arc<Self>, first: Bytes, stream: S, gone: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        let stream = tokio::io::join(std::io::Cursor::new(first).chain(reader), writer);
        let mut client: Client = BufReader::new(Box::new(stream));
        let serving = async {
            match tokio::time::timeout(http::PATIENCE, client.fill_buf()).await {
                Ok(Ok([socks::VERSION, ..])) => socks::serve(&self, client, &gone).await,
                Ok(Ok([_, ..])) => http::serve(self, client, &gone).await,
                _ => {}
            }
        };
        gone.run_until_cancelled(serving).await;
    }

    /// Cuts every connection, makes no more, and returns when the log has heard of all.
    pub async fn close(&self) {
        if tokio::time::timeout(LAST_WORDS, self.live.close()).await.is_err() {
            tracing::warn!("connections of a sandbox that is left do not end");
        }
    }

    /// Joins a client with the host that it asked for, until they are done.
    async fn join(&self, client: impl ByteStream + 'static, dialed: Dialed) {
        let Dialed { record, .. } = &dialed;
        let secrets = self.secrets_for(Scheme::Https, &record.host, record.port);
        match &self.interceptor {
            Some(interceptor) if !secrets.is_empty() => {
                interceptor.serve(client, dialed, secrets).await;
            }
            _ => dialed.record.join(client, dialed.stream).await,
        }
    }
}
