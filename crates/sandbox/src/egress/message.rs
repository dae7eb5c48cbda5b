//! What the proxy does to HTTP messages on their way, wherever they come from.

use bellglass_protocol::network::Verdict;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri, header};

use super::secret::{Scheme, canonical};
use super::upstream::UpstreamProxy;

pub(super) type Body = BoxBody<Bytes, hyper::Error>;

/// Headers that concern one connection and not the request.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out what concerns the connection that a message came over, and only that.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // The other side may name more headers that concern only this connection.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("proxy-connection");
    headers.remove("keep-alive");
}

/// Makes a request for us into one for the server itself, or for the proxy that it goes through.
pub(super) fn readdress<B>(
    request: &mut Request<B>,
    host: &str,
    port: u16,
    proxy: Option<&UpstreamProxy>,
) {
    // The host that was judged is the host that is asked for, whatever the client wrote.
    let name = if port == Scheme::Http.default_port() {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    // A query may follow on the host at once, and alone it is no address.
    let root = if path.starts_with('/') { "" } else { "/" };
    let address = match proxy {
        Some(_) => format!("http://{name}{root}{path}"),
        None => format!("{root}{path}"),
    };
    // Never the client's own: that one was not written by us.
    *request.uri_mut() = address.parse().unwrap_or_else(|_| Uri::from_static("/"));
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    if let Ok(value) = HeaderValue::from_str(&name) {
        headers.insert(header::HOST, value);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    let authorization = proxy.and_then(UpstreamProxy::authorization);
    if let Some(Ok(mut value)) = authorization.map(|text| HeaderValue::from_str(&text)) {
        value.set_sensitive(true);
        headers.insert(header::PROXY_AUTHORIZATION, value);
    }
}

/// What a client is told about a connection that was not made.
pub(super) fn refuse(verdict: Verdict, host: &str, port: u16) -> Response<Body> {
    let place = format!("{host}:{port}");
    match verdict {
        Verdict::RefusedByPolicy | Verdict::CutByPolicy => say(
            StatusCode::FORBIDDEN,
            &format!("{place} is not in this job's network policy; name it under `network`"),
        ),
        Verdict::RefusedPrivateAddress => say(
            StatusCode::FORBIDDEN,
            &format!("{place} has no public address, and others cannot be reached from a sandbox"),
        ),
        Verdict::NotResolved => {
            say(StatusCode::BAD_GATEWAY, &format!("{place} cannot be resolved"))
        }
        Verdict::NotConnected | Verdict::Allowed => {
            say(StatusCode::BAD_GATEWAY, &format!("{place} does not answer"))
        }
    }
}

pub(super) fn say(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("bellglass: {text}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Whether a server would answer with the request itself, and so tell a secret that was put into it.
pub(super) fn asks_for_an_echo(method: &Method) -> bool {
    matches!(method.as_str(), "TRACE" | "TRACK")
}

pub(super) const NO_ECHO: &str =
    "a request that is sent back as it came is not passed on to this host";

/// Whether a request is for the host whose connection this is, and for no other by any reading.
pub(super) fn check<B>(request: &Request<B>, host: &str, port: u16) -> Result<(), &'static str> {
    let uri = request.uri();
    if request.method() == Method::CONNECT || uri.authority().is_some() || uri.scheme().is_some() {
        return Err("a request over this connection names a path and no host");
    }
    if asks_for_an_echo(request.method()) {
        return Err(NO_ECHO);
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(named), None) = (hosts.next(), hosts.next()) else {
        return Err("a request has exactly one Host");
    };
    let named = named.to_str().unwrap_or_default();
    let authority = named.parse::<hyper::http::uri::Authority>();
    let right = authority.is_ok_and(|authority| {
        let asked = authority.port_u16().unwrap_or(Scheme::Https.default_port());
        // Only the forms `host` and `host:port` are as long as their parts.
        let length = authority.host().len() + authority.port().map_or(0, |p| p.as_str().len() + 1);
        canonical(authority.host()) == host && asked == port && length == named.len()
    });
    if right { Ok(()) } else { Err("the Host of a request must be the host of its connection") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_anew_whatever_follows_on_the_host() {
        let proxy = UpstreamProxy { host: "proxy.example".into(), port: 3128, credentials: None };
        for (asked, passed) in [("", "/"), ("?", "/?"), ("?a=b", "/?a=b"), ("/x?y", "/x?y")] {
            let request = || Request::get(format!("http://example.com{asked}")).body(()).unwrap();
            let mut direct = request();
            readdress(&mut direct, "example.com", 80, None);
            assert_eq!(direct.uri(), passed, "{asked}");
            let mut through = request();
            readdress(&mut through, "example.com", 80, Some(&proxy));
            assert_eq!(through.uri(), format!("http://example.com{passed}").as_str(), "{asked}");
        }
    }

    #[test]
    fn only_requests_for_the_judged_host_pass() {
        let request = |method: &str, uri: &str, hosts: &[&str]| {
            let mut request = Request::builder().method(method).uri(uri);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            request.body(()).unwrap()
        };
        for (uri, hosts, port) in [
            ("/", &["a.example"][..], 443),
            ("/x?y", &["A.Example"], 443),
            ("/", &["a.example:443"], 443),
            ("/", &["a.example:8443"], 8443),
            ("*", &["a.example"], 443),
        ] {
            assert_eq!(check(&request("GET", uri, hosts), "a.example", port), Ok(()), "{hosts:?}");
        }
        for (method, uri, hosts) in [
            ("GET", "/", &[][..]),
            ("GET", "/", &["b.example"]),
            ("GET", "/", &["a.example", "a.example"]),
            ("GET", "/", &["a.example", "b.example"]),
            ("GET", "/", &["a.example:80"]),
            ("GET", "/", &["a.example:443:80"]),
            ("GET", "/", &["b.example@a.example"]),
            ("GET", "/", &["a.example,b.example"]),
            ("GET", "/", &["a.example:"]),
            ("GET", "/", &[""]),
            ("GET", "http://a.example/", &["a.example"]),
            ("GET", "https://b.example/", &["a.example"]),
            ("CONNECT", "b.example:443", &["a.example"]),
        ] {
            assert!(check(&request(method, uri, hosts), "a.example", 443).is_err(), "{hosts:?}");
        }
        assert!(check(&request("GET", "/", &["a.example"]), "a.example", 8443).is_err());
    }
}
