//! What of a message's headers passes between a browser and an app in a sandbox.
//!
//! Hop-by-hop fields end here, and nothing of ours enters a sandbox. All else is left as it is.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::pass::OUR_COOKIES;

/// All names and values of a request together.
const LARGEST: usize = 64 << 10;

const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

pub(super) fn are_too_large(headers: &HeaderMap) -> bool {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() > LARGEST
}

/// Whether the client asks for a WebSocket. No other change of protocol passes: what comes after one
/// could be requests whose headers nobody has looked at.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && named_by_connection(headers).any(|name| name == header::UPGRADE)
}

/// Takes away what concerns this connection only.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_by_connection(headers).collect();
    for name in named.into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok())
}

/// Takes our cookies out of a request; those of the app stay.
pub(super) fn remove_our_cookies(headers: &mut HeaderMap) {
    let kept: Vec<Vec<u8>> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(|value| {
            let pairs = value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let kept: Vec<&[u8]> = pairs.filter(|pair| !is_ours(pair)).collect();
            kept.join(&b"; "[..])
        })
        .filter(|value| !value.is_empty())
        .collect();
    headers.remove(header::COOKIE);
    for value in kept {
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.append(header::COOKIE, value);
        }
    }
}

/// Takes cookies out of an answer that would stand in the place of ours.
pub(super) fn remove_cookies_like_ours(headers: &mut HeaderMap) {
    let set: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().cloned().collect();
    headers.remove(header::SET_COOKIE);
    for value in set.into_iter().filter(|value| !is_ours(value.as_bytes().trim_ascii())) {
        headers.append(header::SET_COOKIE, value);
    }
}

fn is_ours(pair: &[u8]) -> bool {
    pair.get(..OUR_COOKIES.len())
        .is_some_and(|name| name.eq_ignore_ascii_case(OUR_COOKIES.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter();
        lines.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_concerns_one_connection_ends_there() {
        let mut map = headers(&[
            ("connection", "keep-alive, X-Private, upgrade"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("accept", "*/*"),
            ("sec-websocket-key", "abc"),
        ]);
        assert!(asks_for_websocket(&map));
        remove_hop_by_hop(&mut map);
        let left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept", "sec-websocket-key"]);
        assert!(!asks_for_websocket(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])));
        assert!(!asks_for_websocket(&headers(&[("upgrade", "websocket")])));
    }

    #[test]
    fn our_cookies_stay_outside() {
        let mut map = headers(&[
            ("cookie", "a=1; bellglass_session=x;Bellglass_app=y; b=2"),
            ("cookie", "bellglass_app_framed=z"),
        ]);
        remove_our_cookies(&mut map);
        let left: Vec<&[u8]> = map.get_all("cookie").iter().map(|value| value.as_bytes()).collect();
        assert_eq!(left, [b"a=1; b=2"]);
        let mut map =
            headers(&[("set-cookie", "x=1; Path=/"), ("set-cookie", "bellglass_session=evil")]);
        remove_cookies_like_ours(&mut map);
        let left: Vec<&[u8]> =
            map.get_all("set-cookie").iter().map(|value| value.as_bytes()).collect();
        assert_eq!(left, [b"x=1; Path=/"]);
    }
}
