//! Secrets that a sandbox can use and never read: where a secret may go, and how it gets there.
//!
//! Inside there is only a placeholder. The rules here decide, from plain data, whether a request is
//! one that the secret was meant for; whoever sends the request on asks first.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// A text that nobody is to see: it has no way into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(String);

impl SecretValue {
    /// Refuses what no header could carry. The reason never repeats the value.
    pub fn new(text: impl Into<String>) -> Result<Self, &'static str> {
        let text = text.into();
        if text.is_empty() {
            return Err("it is empty");
        }
        match text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            true => Ok(Self(text)),
            false => Err("it has characters that a header cannot carry, such as a line break"),
        }
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

/// A secret and the only requests that it may be part of. The operator decides both together.
#[derive(Clone, Debug)]
pub struct Secret {
    pub value: SecretValue,
    pub places: Vec<Place>,
    /// Where paths must begin; everywhere if not given.
    pub path: Option<PathPrefix>,
    pub header: HeaderName,
    /// What a request gets that has no such header, with `{}` in the value's place.
    pub format: Option<String>,
}

/// A server that a secret may be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub scheme: Scheme,
    /// As [`canonical`] writes it.
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Https,
    /// Without TLS, which somebody must have asked for in so many words.
    Http,
}

impl Place {
    /// Reads `api.example.com`, `api.example.com:8443` or `http://api.example.com`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            let shown: String = text.chars().take(100).collect();
            format!("`{shown}` is not a host; write for example \"api.example.com:443\"")
        };
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::Https, text),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(_) => return Err(bad()),
        };
        let authority: hyper::http::uri::Authority = rest.parse().map_err(|_| bad())?;
        let host = canonical(authority.host());
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !authority.as_str().ends_with(']') => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?
            }
            _ => scheme.default_port(),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        if host.is_empty() || rest.contains('@') || !host.chars().all(fits) {
            return Err(bad());
        }
        Ok(Self { scheme, host, port })
    }
}

impl Scheme {
    pub(super) fn default_port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }
}

/// One spelling for a host, however it was written.
pub(super) fn canonical(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The beginning of a path, in whole segments: `/v1` has `/v1` and `/v1/x` below it, not `/v10`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefix(String);

impl PathPrefix {
    pub fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if !text.starts_with('/') || (!trimmed.is_empty() && !is_unambiguous(trimmed)) {
            return Err(format!("`{text}` is not a plain path; write for example \"/v1\""));
        }
        Ok(Self(trimmed.to_owned()))
    }

    /// Whether a request's path lies below. One that servers might read in different ways does not.
    fn holds(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) && is_unambiguous(path)
    }
}

/// Whether every server takes a path for the same place: no empty or dot segments, nothing encoded
/// that would make one or that would be decoded twice, no backslashes and no path parameters.
fn is_unambiguous(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let Some(decoded) = percent_decoded(segment) else { return false };
        let odd = |byte: &u8| !(0x20..0x7f).contains(byte) || b"/\\%;".contains(byte);
        if (segment.is_empty() && !is_last)
            || matches!(decoded.as_slice(), b"." | b"..")
            || decoded.iter().any(odd)
        {
            return false;
        }
    }
    true
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                (digit(bytes.next())? * 16 + digit(bytes.next())?) as u8
            }
            other => other,
        });
    }
    Some(decoded)
}

/// A secret as a job uses it: under the name of an environment variable.
#[derive(Clone, Debug)]
pub struct BoundSecret {
    pub variable: String,
    pub secret: Arc<Secret>,
}

impl BoundSecret {
    /// What the variable holds inside. Says nothing about the value; `-` cannot be part of a
    /// variable's name, so none of these contains another.
    pub fn placeholder(&self) -> String {
        format!("bellglass-{}-placeholder", self.variable)
    }

    pub(super) fn is_for(&self, scheme: Scheme, host: &str, port: u16) -> bool {
        let asked = Place { scheme, host: canonical(host), port };
        self.secret.places.contains(&asked)
    }

    fn is_for_path(&self, path: &str) -> bool {
        self.secret.path.as_ref().is_none_or(|prefix| prefix.holds(path))
    }

    /// Puts the secret into a request for one of its places.
    pub(super) fn put_into(&self, headers: &mut HeaderMap, path: &str) {
        if !self.is_for_path(path) {
            return;
        }
        let Secret { value: SecretValue(value), header, format, .. } = &*self.secret;
        let placeholder = self.placeholder();
        match headers.entry(header) {
            hyper::header::Entry::Vacant(entry) => {
                if let Some(value) =
                    format.as_ref().and_then(|format| sensitive(&format.replace("{}", value)))
                {
                    entry.insert(value);
                }
            }
            hyper::header::Entry::Occupied(mut entry) => {
                for written in entry.iter_mut() {
                    let text = written.to_str().unwrap_or_default();
                    let replaced = replaced(text, &placeholder, value);
                    if let Some(value) = replaced.as_deref().and_then(sensitive) {
                        *written = value;
                    }
                }
            }
        }
    }
}

/// The text with the value in the placeholder's place; nothing if the placeholder is not in it.
/// Basic authentication hides it in base64.
fn replaced(text: &str, placeholder: &str, value: &str) -> Option<String> {
    if text.contains(placeholder) {
        return Some(text.replace(placeholder, value));
    }
    let (scheme, credentials) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64.decode(credentials.trim()).ok()?).ok()?;
    let credentials = decoded.contains(placeholder).then(|| decoded.replace(placeholder, value))?;
    Some(format!("{scheme} {}", BASE64.encode(credentials)))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "the-real-thing";

    fn secret(path: Option<&str>, format: Option<&str>) -> BoundSecret {
        BoundSecret {
            variable: "TOKEN".into(),
            secret: Arc::new(Secret {
                value: SecretValue::new(VALUE).unwrap(),
                places: vec![Place::parse("api.example.com").unwrap()],
                path: path.map(|path| PathPrefix::parse(path).unwrap()),
                header: hyper::header::AUTHORIZATION,
                format: format.map(str::to_owned),
            }),
        }
    }

    #[test]
    fn nothing_shows_a_value() {
        let shown = format!("{:?}", secret(None, Some("Bearer {}")));
        assert!(!shown.contains(VALUE), "{shown}");
        for bad in ["", "two\nlines", "umläut"] {
            let error = SecretValue::new(bad).unwrap_err();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }

    #[test]
    fn places_are_exact() {
        let bound = secret(None, None);
        for (scheme, host, port, expected) in [
            (Scheme::Https, "api.example.com", 443, true),
            (Scheme::Https, "API.Example.COM.", 443, true),
            (Scheme::Https, "api.example.com", 8443, false),
            (Scheme::Http, "api.example.com", 443, false),
            (Scheme::Http, "api.example.com", 80, false),
            (Scheme::Https, "example.com", 443, false),
            (Scheme::Https, "x.api.example.com", 443, false),
            (Scheme::Https, "api.example.com.evil.example", 443, false),
        ] {
            assert_eq!(bound.is_for(scheme, host, port), expected, "{scheme:?} {host}:{port}");
        }
        for (text, scheme, host, port) in [
            ("a.example:8443", Scheme::Https, "a.example", 8443),
            ("http://a.example", Scheme::Http, "a.example", 80),
            ("https://a.example", Scheme::Https, "a.example", 443),
            ("[2600::1]:444", Scheme::Https, "2600::1", 444),
            ("[2600::1]", Scheme::Https, "2600::1", 443),
        ] {
            let expected = Place { scheme, host: host.into(), port };
            assert_eq!(Place::parse(text), Ok(expected), "{text}");
        }
        for bad in ["", "ftp://a", "a/b", "user@a", "a:0", "a:x", "*.a.example", "a b"] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_is_below_a_prefix_only_if_every_server_agrees() {
        let prefix = PathPrefix::parse("/v1/").unwrap();
        for good in ["/v1", "/v1/", "/v1/a", "/v1/a/b/", "/v1/a.b", "/v1/..a", "/v1/a%20b"] {
            assert!(prefix.holds(good), "{good}");
        }
        for bad in [
            "/",
            "/v10",
            "/v2",
            "v1",
            "/v1/../admin",
            "/v1/..",
            "/v1/./a",
            "/v1//a",
            "//v1/a",
            "/v1/%2e%2e/admin",
            "/v1/.%2E/admin",
            "/v1/%252e%252e/admin",
            "/v1/a%2fb",
            "/v1/..%2fadmin",
            "/v1/..%5cadmin",
            "/v1/..\\admin",
            "/v1/..;/admin",
            "/v1/a%00",
            "/v1/%zz",
            "/v1/%e",
            "/V1/a",
            "/%76%31/a",
        ] {
            assert!(!prefix.holds(bad), "{bad}");
        }
        assert!(PathPrefix::parse("/").unwrap().holds("/anything"));
        assert!(!PathPrefix::parse("/").unwrap().holds("/a/../b"));
        for bad in ["v1", "", "/v1/../x", "/a//b"] {
            assert!(PathPrefix::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_value_takes_the_placeholders_place_and_no_other() {
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
        let placeholder = secret(None, None).placeholder();
        for (format, written, expected) in [
            (None, None, None),
            (Some("Bearer {}"), None, Some(format!("Bearer {VALUE}"))),
            (None, Some(format!("token {placeholder}")), Some(format!("token {VALUE}"))),
            (None, Some(basic(&format!("me:{placeholder}"))), Some(basic("me:the-real-thing"))),
            (Some("Bearer {}"), Some("Bearer own".into()), Some("Bearer own".into())),
            (None, Some(basic("me:own")), Some(basic("me:own"))),
            (None, Some("Basic ?".into()), Some("Basic ?".into())),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-other", placeholder.parse().unwrap());
            if let Some(written) = &written {
                headers.insert(hyper::header::AUTHORIZATION, written.parse().unwrap());
            }
            let untouched = headers.clone();
            let bound = secret(Some("/v1"), format);
            bound.put_into(&mut headers, "/v2");
            assert_eq!(headers, untouched);
            bound.put_into(&mut headers, "/v1/x");
            let found = headers.get(hyper::header::AUTHORIZATION);
            assert_eq!(found.map(|value| value.to_str().unwrap()), expected.as_deref());
            assert_eq!(headers["x-other"], placeholder);
        }
    }
}
