//! What a browser lets a page of a sandbox do: talk to its own host, and stand in the page that opened it.
//!
//! A sandbox has one way out, which decides by name and writes down what it lets through. The browser of
//! whoever looks at a page of it has ways of its own, and must not become another one. All that a browser
//! fetches for a page is kept to the page's own host; that it can be led away by a link is not in our hands.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers that have a browser tell others of the page, or turn to others in its place.
const TELLING_OTHERS: [&str; 5] =
    ["content-security-policy-report-only", "report-to", "reporting-endpoints", "nel", "alt-svc"];

/// Directives of a policy that do.
const REPORTING: [&str; 2] = ["report-uri", "report-to"];

/// Sees to it that an answer of an app brings its page nowhere else. A policy of the app's own stays:
/// browsers keep to all that they are given.
pub(super) fn keep_to_itself(headers: &mut HeaderMap, host: &Authority, opener: Option<&str>) {
    for name in TELLING_OTHERS {
        headers.remove(name);
    }
    let own: Vec<HeaderValue> =
        headers.get_all(header::CONTENT_SECURITY_POLICY).iter().filter_map(silenced).collect();
    headers.remove(header::CONTENT_SECURITY_POLICY);
    let ours = HeaderValue::try_from(policy(host, opener)).ok();
    for policy in own.into_iter().chain(ours) {
        headers.append(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers
        .insert(HeaderName::from_static("x-dns-prefetch-control"), HeaderValue::from_static("off"));
    // Its address has the job's id in it.
    headers.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
}

/// Whether a page wants a service worker. One could answer in our place, without our policy.
pub(super) fn asks_for_service_worker(headers: &HeaderMap) -> bool {
    headers.contains_key("service-worker")
}

fn policy(host: &Authority, opener: Option<&str>) -> String {
    // Not the text as it came: this one is known to be a name and a number.
    let own = match host.port_u16() {
        Some(port) => format!("{}:{port}", host.host()),
        None => host.host().to_owned(),
    };
    let opener = opener.map_or(String::new(), |opener| format!(" {opener}"));
    format!(
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; \
         connect-src 'self' ws://{own} wss://{own} data: blob:; \
         form-action 'self'; frame-ancestors 'self'{opener}"
    )
}

/// The app's own policy without those to whom breaches of it would be reported.
fn silenced(value: &HeaderValue) -> Option<HeaderValue> {
    let reports = |directive: &&[u8]| {
        let name = directive.trim_ascii().split(u8::is_ascii_whitespace).next();
        name.is_some_and(|name| REPORTING.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes())))
    };
    // Commas part policies and semicolons their directives; neither can be quoted.
    let policies = value.as_bytes().split(|byte| *byte == b',').map(|policy| {
        let directives = policy.split(|byte| *byte == b';').filter(|it| !reports(it));
        directives.collect::<Vec<_>>().join(&b';')
    });
    HeaderValue::from_bytes(&policies.collect::<Vec<_>>().join(&b',')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter();
        let mut map: HeaderMap =
            lines.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        keep_to_itself(
            &mut map,
            &"a-1.localhost:8000".parse().unwrap(),
            Some("http://localhost:8000"),
        );
        map
    }

    fn policies(headers: &HeaderMap) -> Vec<&str> {
        let policies = headers.get_all(header::CONTENT_SECURITY_POLICY).iter();
        policies.map(|policy| policy.to_str().unwrap()).collect()
    }

    #[test]
    fn a_page_talks_to_its_own_host_and_stands_in_the_page_that_opened_it() {
        let headers = kept(&[]);
        let [ours] = policies(&headers)[..] else { panic!("{headers:?}") };
        for part in [
            "default-src 'self' ",
            "connect-src 'self' ws://a-1.localhost:8000 wss://a-1.localhost:8000 ",
            "form-action 'self'",
            "frame-ancestors 'self' http://localhost:8000",
        ] {
            assert!(ours.contains(part), "{part}: {ours}");
        }
        assert!(!ours.contains('*') && !ours.contains("https:"), "{ours}");
        assert_eq!(headers["referrer-policy"], "same-origin");
        let own = kept(&[("referrer-policy", "no-referrer")]);
        assert_eq!(own["referrer-policy"], "no-referrer");
        let alone = policy(&"a-1.localhost".parse().unwrap(), None);
        assert!(alone.ends_with("frame-ancestors 'self'") && alone.contains("ws://a-1.localhost "));
    }

    #[test]
    fn nobody_else_is_told_of_a_page() {
        let headers = kept(&[
            (
                "content-security-policy",
                "img-src 'none'; Report-URI https://evil.example/?a, script-src x",
            ),
            ("content-security-policy", "report-to evil;report-uri //evil.example"),
            ("content-security-policy-report-only", "img-src 'none'; report-uri //evil.example"),
            ("report-to", "{}"),
            ("reporting-endpoints", "evil=\"https://evil.example\""),
            ("nel", "{}"),
            ("alt-svc", "h2=\"evil.example:443\""),
            ("x-own", "yes"),
        ]);
        let said = format!("{headers:?}").to_ascii_lowercase();
        assert!(!said.contains("evil") && !said.contains("report"), "{said}");
        assert_eq!(policies(&headers)[0], "img-src 'none', script-src x");
        assert_eq!(headers["x-own"], "yes");
    }
}
