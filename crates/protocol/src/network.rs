//! What a sandbox may reach: the policy of a job, and which addresses nobody may reach.
//!
//! Plain decisions over names and numbers. Whoever resolves and connects asks here twice: once with
//! the name, and again with every address that the name turned out to have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a job's sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NetworkPolicy {
    /// Nothing but its own loopback.
    #[default]
    None,
    /// The package registries that this installation knows.
    Registries,
    /// These hosts.
    Allow(Vec<HostRule>),
    /// Every public address.
    Open,
}

impl NetworkPolicy {
    /// Whether a connection may be tried, going by its name alone.
    pub fn allows(&self, host: &str, port: u16, registries: &[HostRule]) -> bool {
        let one_of = |rules: &[HostRule]| rules.iter().any(|rule| rule.matches(host, port));
        match self {
            Self::None => false,
            Self::Registries => one_of(registries),
            Self::Allow(rules) => one_of(rules),
            Self::Open => true,
        }
    }
}

/// A host that may be reached: `example.com`, `*.example.com`, either with `:443`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostRule {
    /// In lower case, without a dot at the end. An IPv6 address stands without brackets.
    host: String,
    /// Whether names below `host` are meant, and not `host` itself.
    below: bool,
    port: Option<u16>,
}

impl HostRule {
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            let shown: String = text.chars().take(100).collect();
            format!("`{shown}` is not a host rule: {why}; write for example \"*.example.com:443\"")
        };
        let (host, port) =
            split_port(text.trim()).ok_or_else(|| bad("the port is not a number"))?;
        let (host, below) = match host.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (host, false),
        };
        let host = canonical(host);
        if host.is_empty() || host.len() > 253 {
            return Err(bad("the name is empty or too long"));
        }
        if !is_host(&host) {
            return Err(bad("only letters, digits, `-`, `_` and `.` make up a name"));
        }
        let is_address = host.parse::<IpAddr>().is_ok();
        if below && is_address {
            return Err(bad("nothing is below an address"));
        }
        Ok(Self { host, below, port })
    }

    pub fn matches(&self, host: &str, port: u16) -> bool {
        let host = canonical(host);
        let right_host = if self.below {
            host.strip_suffix(&self.host)
                .is_some_and(|front| front.len() > 1 && front.ends_with('.'))
        } else {
            host == self.host
        };
        right_host && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.below { "*." } else { "" };
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{star}{}:{port}", self.host),
            None => write!(f, "{star}{}", self.host),
        }
    }
}

/// Whether a text is the name or the address of a host, and so cannot be read as anything more where it
/// stands in an address or in a line of a request. An IPv6 address may stand in brackets.
pub fn is_host(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !text.is_empty()
        && text.len() <= 255
        && text.bytes().all(fits)
        && !text.contains("..")
        && !text.starts_with('.');
    is_name || text.parse::<IpAddr>().is_ok()
}

/// One spelling for a name, however it was written.
fn canonical(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Splits `host:port`; a bare IPv6 address has no port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text, None));
    }
    match text.rsplit_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok().filter(|port| *port > 0)?))),
        None => Some((text, None)),
    }
}

/// Whether an address belongs to the public internet. All others are refused, whatever a name said:
/// loopback, private and link-local networks, the metadata services of clouds, and every way of
/// writing one of these inside an IPv6 address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol_assignments = a == 192 && b == 0 && c == 0;
    let benchmarks = a == 198 && (b == 18 || b == 19);
    // Public by its number, but every virtual machine of one cloud finds its host's agent there.
    let platform = address == Ipv4Addr::new(168, 63, 129, 16);
    !(a == 0
        || platform
        || a >= 240
        || shared
        || protocol_assignments
        || benchmarks
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // Mapped and translated forms are as good as the IPv4 address inside.
        [0, 0, 0, 0, 0, 0xffff, high, low] => inner(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        // Loopback, unspecified, and the old way of embedding an IPv4 address.
        [0, 0, 0, 0, 0, 0, ..] => false,
        // Teredo hides an address; local translation prefixes lead anywhere.
        [0x2001, 0, ..] | [0x64, 0xff9b, 1, ..] => false,
        // Only what is handed out to the public internet begins with 001 in binary.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// What became of a wish to connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Connection {
    pub host: String,
    pub port: u16,
    pub verdict: Verdict,
    /// What was sent out of the sandbox, and what came back.
    pub bytes_out: u64,
    pub bytes_in: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allowed,
    /// The job's policy does not name the host.
    RefusedByPolicy,
    /// The name leads to an address that is not public.
    RefusedPrivateAddress,
    /// The name has no address.
    NotResolved,
    /// Nothing answered at the address.
    NotConnected,
    /// It was allowed once, until the job's policy was changed.
    CutByPolicy,
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Registries => f.write_str("registries"),
            Self::Open => f.write_str("open"),
            Self::Allow(rules) => {
                let rules: Vec<String> = rules.iter().map(HostRule::to_string).collect();
                write!(f, "only {}", rules.join(", "))
            }
        }
    }
}

impl Serialize for NetworkPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Registries => serializer.serialize_str("registries"),
            Self::Open => serializer.serialize_str("open"),
            Self::Allow(rules) => {
                let rules: Vec<String> = rules.iter().map(HostRule::to_string).collect();
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("allow", &rules)?;
                map.end()
            }
        }
    }
}

/// Rules in one policy. Each is looked at for each connection.
const MOST_RULES: usize = 200;

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const FORMS: &str = "write \"none\", \"registries\", \"open\" or {\"allow\": [\"host\"]}";
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(word) => match word.as_str() {
                "none" => Ok(Self::None),
                "registries" => Ok(Self::Registries),
                "open" => Ok(Self::Open),
                _ => Err(D::Error::custom(format!("there is no such network policy; {FORMS}"))),
            },
            serde_json::Value::Object(map) if map.len() == 1 => {
                let rules = map.get("allow").and_then(serde_json::Value::as_array);
                let rules = rules.ok_or_else(|| D::Error::custom(FORMS))?;
                if rules.len() > MOST_RULES {
                    return Err(D::Error::custom("a policy has at most 200 hosts"));
                }
                let parse = |rule: &serde_json::Value| {
                    let text = rule.as_str().ok_or("a host rule is a text")?;
                    HostRule::parse(text)
                };
                let rules: Result<Vec<_>, String> = rules.iter().map(parse).collect();
                rules.map(Self::Allow).map_err(D::Error::custom)
            }
            _ => Err(D::Error::custom(FORMS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_from_what_only_looks_like_one() {
        for good in ["a", "A-b_c.example.", "1.2.3.4", "::1", "[::1]", "xn--bcher-kva.example"] {
            assert!(is_host(good), "{good}");
        }
        let long = "a".repeat(256);
        for bad in [
            "", ".a", "a..b", "a b", "a\r\nb", "a:1", "a[b", "[a]", "[::1", "a@b", "a;b",
            "b\u{fc}", &long,
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn rules_match_names_and_ports() {
        for (rule, host, port, expected) in [
            ("example.com", "example.com", 443, true),
            ("example.com", "EXAMPLE.com.", 80, true),
            ("example.com", "a.example.com", 443, false),
            ("example.com:443", "example.com", 80, false),
            ("*.example.com", "a.b.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("*.example.com", "notexample.com", 443, false),
            ("*.example.com", ".example.com", 443, false),
            ("203.0.114.5:8080", "203.0.114.5", 8080, true),
            ("[2600::1]:443", "[2600::1]", 443, true),
            ("2600::1", "2600::1", 22, true),
        ] {
            let parsed = HostRule::parse(rule).unwrap();
            assert_eq!(parsed.matches(host, port), expected, "{rule} {host}:{port}");
            assert_eq!(HostRule::parse(&parsed.to_string()).unwrap(), parsed, "{rule}");
        }
        for bad in
            ["", "*.", "a..b", "a b", "host:0", "host:x", "http://a", "*.1.2.3.4", "a/b", "*"]
        {
            assert!(HostRule::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_public_addresses_are_public() {
        for (address, expected) in [
            ("93.184.216.34", true),
            ("2606:4700::1", true),
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.31.0.1", false),
            ("192.168.1.1", false),
            ("169.254.169.254", false),
            ("100.100.100.200", false),
            ("168.63.129.16", false),
            ("::ffff:168.63.129.16", false),
            ("0.0.0.0", false),
            ("255.255.255.255", false),
            ("224.0.0.1", false),
            ("198.18.0.1", false),
            ("::1", false),
            ("::", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:93.184.216.34", true),
            ("::7f00:1", false),
            ("64:ff9b::7f00:1", false),
            ("2002:7f00:1::", false),
            ("2001:0:1::", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn policies_read_as_documented() {
        let read = |text: &str| serde_json::from_str::<NetworkPolicy>(text);
        assert_eq!(read(r#""open""#).unwrap(), NetworkPolicy::Open);
        let allow = read(r#"{"allow": ["*.example.com:443"]}"#).unwrap();
        assert!(allow.allows("a.example.com", 443, &[]));
        assert!(!allow.allows("a.example.com", 80, &[]));
        assert_eq!(read(&serde_json::to_string(&allow).unwrap()).unwrap(), allow);
        for bad in
            [r#""all""#, "{}", "7", r#"{"deny":[]}"#, r#"{"allow":[7]}"#, r#"{"allow":["a b"]}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        let registries = [HostRule::parse("packages.example").unwrap()];
        assert!(NetworkPolicy::Registries.allows("packages.example", 443, &registries));
        assert!(!NetworkPolicy::Registries.allows("example.com", 443, &registries));
        assert!(!NetworkPolicy::None.allows("packages.example", 443, &registries));
    }
}
