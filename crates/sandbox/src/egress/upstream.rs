//! The host's own proxies: which of them a connection goes through, and how it asks for a tunnel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use base64::Engine as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A proxy through which this host reaches the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamProxy {
    pub host: String,
    pub port: u16,
    /// `user:password`, if it asks for one.
    pub credentials: Option<String>,
}

/// All that this host says about its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// For plain requests, which are sent to it whole.
    pub http: Option<UpstreamProxy>,
    /// For everything else, which it is asked for a tunnel for.
    pub https: Option<UpstreamProxy>,
    /// What is reached without either.
    pub direct: DirectHosts,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Tunnel,
    PlainRequest,
}

impl Upstream {
    /// The proxy that a connection to this host goes through, if it goes through one.
    pub(super) fn proxy_for(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Option<&UpstreamProxy> {
        let proxy = match purpose {
            Purpose::Tunnel => &self.https,
            Purpose::PlainRequest => &self.http,
        };
        proxy.as_ref().filter(|_| !self.direct.hold(host, port))
    }
}

impl UpstreamProxy {
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// What it is told about who asks.
    pub(super) fn authorization(&self) -> Option<String> {
        let encode = |credentials| base64::engine::general_purpose::STANDARD.encode(credentials);
        self.credentials.as_ref().map(|credentials| format!("Basic {}", encode(credentials)))
    }

    /// Asks for a tunnel.
    pub(super) async fn tunnel(
        &self,
        host: &str,
        port: u16,
        time: Duration,
    ) -> io::Result<TcpStream> {
        let host =
            if host.contains(':') && !host.starts_with('[') { &format!("[{host}]") } else { host };
        let tunnel = async {
            let mut stream = self.connect().await?;
            let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
            if let Some(authorization) = self.authorization() {
                request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
            }
            request.push_str("\r\n");
            stream.write_all(request.as_bytes()).await?;
            // Byte by byte, so that nothing of what comes after the answer is taken.
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                if answer.len() > 8192 {
                    return Err(io::Error::other("the proxy's answer is too long"));
                }
                answer.push(stream.read_u8().await?);
            }
            let ok = answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200");
            if ok { Ok(stream) } else { Err(io::Error::other("the proxy refused")) }
        };
        tokio::time::timeout(time, tunnel).await?
    }
}

/// Hosts that are reached without a proxy, in the words of the variable `no_proxy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectHosts(Vec<DirectHost>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectHost {
    All,
    /// A name, and all names below it.
    Name {
        name: String,
        port: Option<u16>,
    },
    /// The addresses that begin with so many bits of this one.
    Network {
        address: IpAddr,
        bits: u8,
    },
}

impl DirectHosts {
    /// Reads names, addresses and networks, apart by commas or spaces. What is none of these is left
    /// out: this list only says which way is taken, and never what may be reached.
    pub fn parse(text: &str) -> Self {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        Self(words.filter_map(DirectHost::parse).collect())
    }

    fn hold(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|direct| direct.is(host, port))
    }
}

impl DirectHost {
    fn parse(word: &str) -> Option<Self> {
        if word == "*" {
            return Some(Self::All);
        }
        let (address, bits) = match word.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (word, None),
        };
        if let Ok(address) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let all = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.unwrap_or(all);
            return (bits <= all).then_some(Self::Network { address, bits });
        }
        let (name, port) = match word.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (word, None),
        };
        let name = plain(name.trim_start_matches('*').trim_start_matches('.'));
        (bits.is_none() && !name.is_empty()).then_some(Self::Name { name, port })
    }

    fn is(&self, host: &str, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Name { name, port: wanted } => {
                let host = plain(host);
                let front = host.strip_suffix(name.as_str());
                front.is_some_and(|front| front.is_empty() || front.ends_with('.'))
                    && wanted.is_none_or(|wanted| wanted == port)
            }
            Self::Network { address, bits } => {
                let host = host.parse::<IpAddr>().map(|host| host.to_canonical());
                host.is_ok_and(|host| begin_alike(host, *address, *bits))
            }
        }
    }
}

fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn begin_alike(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let differing = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let number = |address: Ipv4Addr| address.to_bits();
            (number(one) ^ number(other)).leading_zeros()
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let number = |address: Ipv6Addr| address.to_bits();
            (number(one) ^ number(other)).leading_zeros()
        }
        _ => return false,
    };
    differing >= u32::from(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_proxy_are_known_by_name_port_and_network() {
        let list = "localhost, .corp.example,*.lab.example,mirror.example:8080,10.0.0.0/8,192.0.2.7 \
                    2001:db8::/32,,bad/9,10.0.0.0/99,a:b:c";
        let direct = DirectHosts::parse(list);
        for (host, port, expected) in [
            ("localhost", 80, true),
            ("LOCALHOST.", 80, true),
            ("x.localhost", 80, true),
            ("corp.example", 443, true),
            ("a.b.corp.example", 443, true),
            ("notcorp.example", 443, false),
            ("a.lab.example", 443, true),
            ("mirror.example", 8080, true),
            ("mirror.example", 443, false),
            ("10.255.0.1", 443, true),
            ("::ffff:10.0.0.1", 443, true),
            ("11.0.0.1", 443, false),
            ("192.0.2.7", 443, true),
            ("192.0.2.8", 443, false),
            ("2001:db8:1::1", 443, true),
            ("2001:db9::1", 443, false),
            ("bad", 443, false),
            ("example", 443, false),
        ] {
            assert_eq!(direct.hold(host, port), expected, "{host}:{port}");
        }
        assert!(DirectHosts::parse("*").hold("anything.example", 1));
        assert!(!DirectHosts::parse("").hold("anything.example", 1));
    }
}
