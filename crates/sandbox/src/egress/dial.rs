//! From a host name to a connection: policy, resolving, the check of addresses, connecting.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::{Connection, Verdict, is_host, is_public};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::counted::{Counted, Counts};
use super::live::ConnectionNumber;
use super::tunnel::tunnel;
use super::upstream::{Purpose, UpstreamProxy};
use super::{ByteStream, Egress};

const RESOLVE_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// How long a name is looked up that a proxy of the host's will look up too. Hosts that need one often
/// know no names themselves.
const BESIDE_A_PROXY: Duration = Duration::from_secs(1);

/// Who finds the addresses of a name.
#[async_trait]
pub(super) trait Resolve: Send + Sync {
    /// A look-up that takes longer than this is given up (`TimedOut`); one that cannot even begin, since too
    /// many are under way, says so (`ResourceBusy`).
    async fn resolve(&self, host: &str, port: u16, time: Duration) -> io::Result<Vec<SocketAddr>>;
}

/// The host's own way of finding them. It takes a thread for as long as the name servers take to
/// answer, whether or not somebody still waits, so there are few of these threads.
pub(super) struct HostResolver {
    /// Look-ups that one sandbox may have under way.
    own: Arc<Semaphore>,
    /// Names that took too long, and when: they are not looked up again at once.
    slow: Mutex<VecDeque<(String, Instant)>>,
}

/// Look-ups of one sandbox, and of all together.
const OWN_LOOK_UPS: usize = 8;
static ALL_LOOK_UPS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(64)));

const SLOW_FOR: Duration = Duration::from_secs(60);
const MOST_SLOW: usize = 64;

impl HostResolver {
    pub(super) fn new() -> Self {
        Self { own: Arc::new(Semaphore::new(OWN_LOOK_UPS)), slow: Mutex::default() }
    }

    fn is_slow(&self, host: &str) -> bool {
        let mut slow = self.slow.lock().expect("no code panics while it holds this lock");
        slow.retain(|(_, at)| at.elapsed() < SLOW_FOR);
        slow.iter().any(|(name, _)| name == host)
    }

    fn was_slow(&self, host: &str) {
        let mut slow = self.slow.lock().expect("no code panics while it holds this lock");
        if slow.len() >= MOST_SLOW {
            slow.pop_front();
        }
        slow.push_back((host.to_owned(), Instant::now()));
    }
}

#[async_trait]
impl Resolve for HostResolver {
    async fn resolve(&self, host: &str, port: u16, time: Duration) -> io::Result<Vec<SocketAddr>> {
        let deadline = Instant::now() + RESOLVE_TIME;
        let permits = loop {
            if self.is_slow(host) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let acquiring = async {
                let own = self.own.clone().acquire_owned().await;
                (own, ALL_LOOK_UPS.clone().acquire_owned().await)
            };
            match tokio::time::timeout(BESIDE_A_PROXY, acquiring).await {
                Ok(permits) => break permits,
                // Somebody else may have found out meanwhile that this name takes too long.
                Err(_) if Instant::now() < deadline => {}
                Err(_) => return Err(io::ErrorKind::ResourceBusy.into()),
            }
        };
        let name = host.to_owned();
        let looking_up = tokio::task::spawn_blocking(move || {
            // They come back with the thread, and not when nobody waits for it any more.
            let _permits = permits;
            Ok((name.as_str(), port).to_socket_addrs()?.collect())
        });
        match tokio::time::timeout(time, looking_up).await {
            Ok(found) => found.map_err(io::Error::other)?,
            Err(_) => {
                self.was_slow(host);
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }
}

/// A connection to the world.
pub(super) struct Dialed {
    pub(super) stream: Counted<TcpStream>,
    pub(super) record: Record,
    /// The proxy that the stream leads to, where it is no tunnel: each request must say where it goes.
    pub(super) proxy: Option<UpstreamProxy>,
}

/// What the log will be told when this is dropped. Kept apart from the stream, which others take
/// over.
pub(super) struct Record {
    egress: Arc<Egress>,
    pub(super) host: String,
    pub(super) port: u16,
    counts: Arc<Counts>,
    number: ConnectionNumber,
    cut: CancellationToken,
    /// Cancelled when nothing is left of the client.
    gone: CancellationToken,
    /// Goes after the log has heard.
    _held: TaskTrackerToken,
}

impl Record {
    /// Works on the connection until the work is done or the connection must go.
    pub(super) async fn until_cut<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let work = self.cut.run_until_cancelled(self.gone.run_until_cancelled(work));
        self.egress.live.until_closed(work).await.flatten().flatten()
    }

    /// Passes bytes between a client and what the connection leads to.
    pub(super) async fn join(&self, client: impl ByteStream, server: impl ByteStream) {
        self.until_cut(tunnel(client, server, &self.counts)).await;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.egress.live.leave(self.number);
        let is_cut = self.cut.is_cancelled();
        self.egress.log.connection(Connection {
            host: shown(&self.host),
            port: self.port,
            verdict: if is_cut { Verdict::CutByPolicy } else { Verdict::Allowed },
            bytes_out: self.counts.written.load(Ordering::Relaxed),
            bytes_in: self.counts.read.load(Ordering::Relaxed),
        });
    }
}

/// An attempt to connect, of which the log hears however it ends, but for one that becomes a connection: a client
/// that is gone before its answer may have had a name looked up all the same.
struct Attempt {
    egress: Arc<Egress>,
    host: String,
    port: u16,
    failure: Option<Verdict>,
    _held: TaskTrackerToken,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(verdict) = self.failure else { return };
        let (host, port) = (shown(&self.host), self.port);
        self.egress.log.connection(Connection { host, port, verdict, bytes_out: 0, bytes_in: 0 });
    }
}

/// Connects to a host if everything allows it. A refusal is in the log when this returns.
pub(super) async fn dial(
    egress: &Arc<Egress>,
    host: &str,
    port: u16,
    purpose: Purpose,
    gone: &CancellationToken,
) -> Result<Dialed, Verdict> {
    let mut attempt = Attempt {
        egress: egress.clone(),
        host: host.to_owned(),
        port,
        failure: Some(Verdict::RefusedByPolicy),
        _held: egress.live.hold(),
    };
    let attempting = async {
        may_dial(egress, host, port).await?;
        attempt.failure = Some(Verdict::NotConnected);
        try_dial(egress, host, port, purpose).await
    };
    let dialed = egress.live.until_closed(attempting).await;
    let (stream, proxy) = match dialed.unwrap_or(Err(Verdict::NotConnected)) {
        Ok(dialed) => dialed,
        Err(verdict) => {
            attempt.failure = Some(verdict);
            return Err(verdict);
        }
    };
    attempt.failure = None;
    let counts = Arc::new(Counts::default());
    let (number, cut) = egress.live.enter(bare(host), port);
    if !egress.allows(bare(host), port) {
        // The policy was changed while the connection was made, and did not see it yet.
        cut.cancel();
    }
    let record = Record {
        egress: egress.clone(),
        host: host.to_owned(),
        port,
        counts: counts.clone(),
        number,
        cut,
        gone: gone.clone(),
        _held: egress.live.hold(),
    };
    Ok(Dialed { stream: Counted::new(stream, counts), record, proxy })
}

/// An address of IPv6 stands in brackets beside a port; policies and grants name it without.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

async fn may_dial(egress: &Egress, host: &str, port: u16) -> Result<(), Verdict> {
    // From a SOCKS client it may be any bytes, and it will stand in a line for a proxy and in a question.
    if !is_host(host) {
        return Err(Verdict::NotResolved);
    }
    let is_allowed = egress.allows_or_asks(bare(host), port).await;
    is_allowed.then_some(()).ok_or(Verdict::RefusedByPolicy)
}

async fn try_dial(
    egress: &Egress,
    host: &str,
    port: u16,
    purpose: Purpose,
) -> Result<(TcpStream, Option<UpstreamProxy>), Verdict> {
    let bare = bare(host);
    let settings = egress.settings();
    let may_reach = |address: IpAddr| {
        (is_public(address) && !is_of_this_machine(address))
            || settings.private_exceptions.contains(&address.to_canonical())
    };
    if let Some(proxy) = settings.upstream.proxy_for(bare, port, purpose) {
        // The proxy resolves names where we may not be able to; what is plainly an address, or a
        // name for this machine itself, we can still judge.
        let is_fit = match bare.parse::<IpAddr>() {
            Ok(address) => may_reach(address),
            Err(_) if is_address_in_disguise(bare) || is_localhost(bare) => false,
            // And so we can a name that is known here, as those of the host's own network are.
            Err(_) => match egress.resolver.resolve(bare, port, BESIDE_A_PROXY).await {
                Ok(found) => found.iter().all(|address| may_reach(address.ip())),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(Verdict::NotResolved);
                }
                Err(_) => true,
            },
        };
        if !is_fit {
            return Err(Verdict::RefusedPrivateAddress);
        }
        let connected = match purpose {
            Purpose::Tunnel => {
                let tunnel = proxy.tunnel(host, port, CONNECT_TIME).await;
                tunnel.map(|stream| (stream, None))
            }
            Purpose::PlainRequest => {
                let connecting = tokio::time::timeout(CONNECT_TIME, proxy.connect()).await;
                let connected = connecting.map_err(io::Error::from).flatten();
                connected.map(|stream| (stream, Some(proxy.clone())))
            }
        };
        return connected.map_err(|_| Verdict::NotConnected);
    }
    let found = match egress.resolver.resolve(bare, port, RESOLVE_TIME).await {
        Ok(addresses) if !addresses.is_empty() => addresses,
        _ => return Err(Verdict::NotResolved),
    };
    // The addresses that were checked are the ones that are connected to: a name that changes its
    // mind in between changes nothing.
    let fit: Vec<SocketAddr> =
        found.into_iter().filter(|address| may_reach(address.ip())).collect();
    if fit.is_empty() {
        return Err(Verdict::RefusedPrivateAddress);
    }
    for address in fit {
        let connecting = TcpStream::connect(address);
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIME, connecting).await {
            let _ = stream.set_nodelay(true);
            return Ok((stream, None));
        }
    }
    Err(Verdict::NotConnected)
}

/// Whether some resolvers would take a name for an IPv4 address: `2130706433`, `0x7f.1`, `127.1`.
fn is_address_in_disguise(host: &str) -> bool {
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    last.bytes().all(|byte| byte.is_ascii_digit())
        || is_hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether an address is one of this machine's own, however public: its services may trust what comes
/// from the machine itself.
fn is_of_this_machine(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: the kernel only chooses what it would send from, which for its own addresses
    // is the address itself.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip().to_canonical() == address.to_canonical())
}

fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// A host's name for the log: it comes from inside, so it is bounded and plain.
fn shown(host: &str) -> String {
    host.chars().take(253).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_own_addresses_are_known() {
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_of_this_machine(own.parse().unwrap()), "{own}");
        }
        // Set aside for documentation, so that nobody has them.
        for other in ["192.0.2.1", "2001:db8::1"] {
            assert!(!is_of_this_machine(other.parse().unwrap()), "{other}");
        }
    }

    /// A look-up keeps its place until its thread is free, not until somebody has lost patience.
    #[tokio::test]
    async fn look_ups_are_few_at_once() {
        let resolver = HostResolver::new();
        let held = resolver.own.clone().acquire_many_owned(OWN_LOOK_UPS as u32).await.unwrap();
        let mut waiting = Box::pin(resolver.resolve("127.0.0.1", 80, RESOLVE_TIME));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        assert_eq!(resolver.own.available_permits(), 0);
        drop(held);
        assert_eq!(waiting.await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        while resolver.own.available_permits() < OWN_LOOK_UPS {
            tokio::task::yield_now().await;
        }
    }

    /// Whoever keeps all look-ups busy is not taken at their word for what a name is.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_cannot_begin_is_no_answer() {
        let resolver = HostResolver::new();
        let _held = resolver.own.clone().acquire_many_owned(OWN_LOOK_UPS as u32).await.unwrap();
        let refused = resolver.resolve("a.example", 80, BESIDE_A_PROXY).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        resolver.was_slow("slow.example");
        let slow = resolver.resolve("slow.example", 80, BESIDE_A_PROXY).await.unwrap_err();
        assert_eq!(slow.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn addresses_in_disguise_are_known() {
        for disguised in ["2130706433", "127.1", "0x7f.1", "0x7f000001", "0177.0.0.01", "1.2.3.4."]
        {
            assert!(is_address_in_disguise(disguised), "{disguised}");
        }
        for name in ["example.com", "1e100.net", "0xdead.example", "a.b1", "x86"] {
            assert!(!is_address_in_disguise(name), "{name}");
        }
        assert!(is_localhost("LOCALHOST.") && is_localhost("a.localhost"));
        assert!(!is_localhost("localhost.example"));
    }
}
