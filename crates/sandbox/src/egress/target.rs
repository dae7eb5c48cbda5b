//! Which host a request for a proxy is for, read from its address.

use bellglass_protocol::network::is_host;
use hyper::Uri;

/// The host and port of an address.
pub(crate) fn target(uri: &Uri, default_port: Option<u16>) -> Option<(String, u16)> {
    let authority = uri.authority()?;
    let port = authority.port_u16().or(default_port).filter(|port| *port > 0)?;
    // A user name in the address is nobody's business here.
    let host = authority.host();
    is_host(host).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_from_addresses() {
        for (uri, default_port, expected) in [
            ("example.com:443", None, Some(("example.com", 443))),
            ("http://example.com/x", Some(80), Some(("example.com", 80))),
            ("http://user:pass@example.com:81/", Some(80), Some(("example.com", 81))),
            ("[::1]:443", None, Some(("[::1]", 443))),
            ("example.com:0", None, None),
            ("/path", Some(80), None),
            // A parser that lets these through reads them differently the next time.
            ("exa[mple:12].70:8", Some(80), None),
            ("http://a;b/", Some(80), None),
        ] {
            let found = target(&uri.parse().unwrap(), default_port);
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(found, expected, "{uri}");
        }
    }
}
