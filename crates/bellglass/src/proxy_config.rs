//! The proxies through which this host reaches the world, as its environment names them.

use anyhow::Context as _;
use bellglass_sandbox::egress::{DirectHosts, Upstream, UpstreamProxy};

/// What the variables hold. Each counts in small letters first, then in capitals.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProxyEnvironment {
    http: Option<String>,
    https: Option<String>,
    all: Option<String>,
    none: Option<String>,
}

impl ProxyEnvironment {
    pub(crate) fn read() -> Self {
        Self::read_from(|name| std::env::var(name).ok())
    }

    fn read_from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            let names = [name.to_owned(), name.to_uppercase()];
            names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        Self {
            http: either("http_proxy"),
            https: either("https_proxy"),
            all: either("all_proxy"),
            none: either("no_proxy"),
        }
    }

    /// A host that names one proxy has one, so where a kind of connection has none of its own, the
    /// other's is taken.
    pub(crate) fn upstream(&self) -> anyhow::Result<Upstream> {
        let first = |names: [&Option<String>; 3]| {
            names.into_iter().flatten().next().map(|text| parse_proxy(text)).transpose()
        };
        Ok(Upstream {
            http: first([&self.http, &self.all, &self.https])?,
            https: first([&self.https, &self.all, &self.http])?,
            direct: DirectHosts::parse(self.none.as_deref().unwrap_or_default()),
        })
    }
}

/// Reads an address such as `http://user:password@proxy.example:3128`.
fn parse_proxy(text: &str) -> anyhow::Result<UpstreamProxy> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest,
        Some((scheme, _)) => anyhow::bail!(
            "the proxy in the environment is one for `{scheme}`; only those like http://HOST:PORT can be used"
        ),
    };
    let rest = rest.trim_end_matches('/');
    let (credentials, place) = match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(decoded(credentials)?), place),
        None => (None, rest),
    };
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "80"));
    let port = port.parse();
    // The text may hold a password, so it is not shown.
    let port = port.context("the proxy in the environment is not like http://HOST:PORT")?;
    Ok(UpstreamProxy { host: host.to_owned(), port, credentials })
}

/// A name and a password as they are meant, without the escapes that an address needs.
fn decoded(credentials: &str) -> anyhow::Result<String> {
    let decoded = percent_encoding::percent_decode_str(credentials).decode_utf8();
    Ok(decoded.context("the password of the proxy in the environment is no text")?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_in_the_environment_is_understood_or_refused() {
        let proxy = parse_proxy("http://ada:p%40ss%3A@proxy.example:3128/").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
        assert_eq!(proxy.credentials.as_deref(), Some("ada:p@ss:"));
        assert_eq!(parse_proxy("proxy.example").unwrap().port, 80);
        for unusable in
            ["socks5://u:secret@proxy.example:1080", "https://u:secret@proxy.example:443"]
        {
            let error = parse_proxy(unusable).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn each_kind_of_connection_has_its_proxy() {
        for (variables, http, https) in [
            (&[][..], None, None),
            (&[("http_proxy", "h:1"), ("https_proxy", "s:2")], Some("h"), Some("s")),
            (&[("HTTP_PROXY", "h:1"), ("HTTPS_PROXY", "s:2")], Some("h"), Some("s")),
            (
                &[("https_proxy", "small:1"), ("HTTPS_PROXY", "large:2")],
                Some("small"),
                Some("small"),
            ),
            (&[("https_proxy", ""), ("HTTPS_PROXY", "large:2")], Some("large"), Some("large")),
            (&[("http_proxy", "h:1"), ("all_proxy", "a:3")], Some("h"), Some("a")),
            (&[("ALL_PROXY", "a:3")], Some("a"), Some("a")),
            (&[("http_proxy", "h:1")], Some("h"), Some("h")),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(each, _)| *each == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let upstream = ProxyEnvironment::read_from(variable).upstream().unwrap();
            let host = |proxy: &Option<UpstreamProxy>| proxy.as_ref().map(|it| it.host.clone());
            let found = (host(&upstream.http), host(&upstream.https));
            assert_eq!(found, (http.map(Into::into), https.map(Into::into)), "{variables:?}");
        }
        let variable = |name: &str| (name == "NO_PROXY").then(|| "a.example".to_owned());
        let upstream = ProxyEnvironment::read_from(variable).upstream().unwrap();
        assert_eq!(upstream.direct, DirectHosts::parse("a.example"));
    }
}
