//! Sessions of browsers: a cookie which proves that its holder once showed a token.
//!
//! A browser cannot send a token by itself with every request, least of all with an event stream. For the
//! token of the configuration the cookie says until when it holds, sealed with the token as the key: so
//! nothing is kept, a restarted server knows its sessions, and a new token ends all of them. For a user's
//! token, which is not known here, the cookie is a secret of its own that the store keeps beside the token
//! and that goes with it.

use axum::http::{HeaderMap, HeaderValue, header};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;

use crate::settings::Secret;
use crate::token::SESSION;

const NAME: &str = "bellglass_session";
pub(crate) const LIFETIME: SignedDuration = SignedDuration::from_hours(12);

/// A cookie for somebody who has shown the token.
pub(crate) fn begin(token: &Secret, request: &HeaderMap, now: Timestamp) -> HeaderValue {
    let until = (now + LIFETIME).as_second();
    let seal = hex::encode(seal(token, until).finalize().into_bytes());
    cookie(NAME, &format!("{until}.{seal}"), "/", LIFETIME.as_secs(), request)
}

/// A cookie that carries the secret of a user's session.
pub(crate) fn begin_kept(
    secret: &str,
    lifetime: SignedDuration,
    request: &HeaderMap,
) -> HeaderValue {
    cookie(NAME, secret, "/", lifetime.as_secs(), request)
}

/// The secrets of users' sessions that a request comes with. There is one, unless somebody else set more.
pub(crate) fn kept(request: &HeaderMap) -> impl Iterator<Item = &str> {
    values(request, NAME).filter(|value| value.starts_with(SESSION)).take(MOST_KEPT)
}

/// Each of them is looked up in the store.
const MOST_KEPT: usize = 4;

/// A cookie that takes the place of a session's and holds nothing.
pub(crate) fn end(request: &HeaderMap) -> HeaderValue {
    cookie(NAME, "", "/", 0, request)
}

/// Whether the request comes with a cookie that still holds.
pub(crate) fn holds(token: &Secret, request: &HeaderMap, now: Timestamp) -> bool {
    values(request, NAME).any(|value| is_sealed(token, value, now))
}

/// The values of cookies of a name. A page on another port of this host can set a second one of it.
pub(crate) fn values<'a>(request: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let cookies = request.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(move |cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='))
}

fn is_sealed(token: &Secret, value: &str, now: Timestamp) -> bool {
    let Some((until, shown)) = value.split_once('.') else { return false };
    let (Ok(until), Ok(shown)) = (until.parse::<i64>(), hex::decode(shown)) else { return false };
    now.as_second() < until && seal(token, until).verify_slice(&shown).is_ok()
}

fn seal(token: &Secret, until: i64) -> Hmac<Sha256> {
    let mut seal = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length");
    seal.update(format!("bellglass session until {until}").as_bytes());
    seal
}

pub(crate) fn cookie(
    name: &str,
    value: &str,
    path: &str,
    seconds: i64,
    request: &HeaderMap,
) -> HeaderValue {
    // A proxy in front of us says whether the browser came over TLS. Who lies harms only itself.
    let is_secure = request.get("x-forwarded-proto").is_some_and(|value| value == "https");
    let secure = if is_secure { "; Secure" } else { "" };
    let text = format!(
        "{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    HeaderValue::try_from(text).expect("only plain characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_back(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())])
    }

    #[test]
    fn a_session_holds_for_its_time_its_token_and_nothing_else() {
        let (token, now) = (Secret::new("s3cret"), Timestamp::now());
        let set = begin(&token, &HeaderMap::new(), now);
        let set = set.to_str().unwrap();
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"));
        assert!(!set.contains("s3cret") && !set.contains("Secure"));
        let pair = set.split(';').next().unwrap();

        assert!(holds(&token, &sent_back(pair), now));
        assert!(holds(&token, &sent_back(&format!("a=b; {NAME}=forged; {pair}")), now));
        assert!(!holds(&token, &sent_back(pair), now + LIFETIME));
        assert!(!holds(&Secret::new("other"), &sent_back(pair), now));
        assert!(!holds(&token, &HeaderMap::new(), now));
        let (until, seal) = pair.split_once('=').unwrap().1.split_once('.').unwrap();
        let later = until.parse::<i64>().unwrap() + 1;
        for forged in [
            "",
            ".",
            "x.y",
            &format!("{later}.{seal}"),
            &format!("{until}."),
            &format!("{until}.00"),
        ] {
            assert!(!holds(&token, &sent_back(&format!("{NAME}={forged}")), now), "{forged}");
        }
    }

    #[test]
    fn a_cookie_that_came_over_tls_stays_there() {
        let behind = HeaderMap::from_iter([(
            "x-forwarded-proto".parse().unwrap(),
            "https".parse().unwrap(),
        )]);
        assert!(end(&behind).to_str().unwrap().ends_with("; Secure"));
    }
}
