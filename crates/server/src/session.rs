//! Sessions of browsers: a cookie which proves that its holder once showed a token.
//!
//! A browser cannot send a token by itself with every request, least of all with an event stream. For the
//! token of the configuration the cookie says until when it holds, sealed with a key that the server keeps and
//! that the token is part of: so nothing else is kept but which were ended before, a restarted server knows its
//! sessions, and a new token ends all of them. For a user's token, which is not known here, the cookie is a secret of its own that the store keeps beside the token
//! and that goes with it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderValue, header};
use bellglass_store::access::TokenHash;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;

use crate::settings::Secret;
use crate::token::{SESSION, hash_of, random};

const NAME: &str = "bellglass_session";
pub(crate) const LIFETIME: SignedDuration = SignedDuration::from_hours(12);

/// A session with the token of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Session {
    /// By which it is known, and by which it cannot be used.
    pub(crate) id: TokenHash,
    /// Seconds since 1970.
    pub(crate) until: i64,
}

/// Such sessions that were ended before their time. Only this process knows of them: there is no place for
/// them in the store.
#[derive(Default)]
pub(crate) struct EndedSessions(Mutex<HashMap<[u8; 32], i64>>);

impl EndedSessions {
    pub(crate) fn add(&self, session: Session, now: Timestamp) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|_, until| now.as_second() < *until);
        ended.insert(session.id.0, session.until);
    }

    pub(crate) fn holds(&self, session: &Session, now: Timestamp) -> bool {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.as_second() < session.until && !ended.contains_key(&session.id.0)
    }
}

/// A cookie for somebody who has shown the token.
pub(crate) fn begin(key: &Secret, request: &HeaderMap, now: Timestamp) -> HeaderValue {
    let (until, number) = ((now + LIFETIME).as_second(), hex::encode(random::<16>()));
    let seal = hex::encode(seal(key, until, &number).finalize().into_bytes());
    cookie(NAME, &format!("{until}.{number}.{seal}"), "/", LIFETIME.as_secs(), request)
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

/// The sessions with the token whose cookies a request comes with, and whose time is not over.
pub(crate) fn shown<'a>(
    key: &'a Secret,
    request: &'a HeaderMap,
    now: Timestamp,
) -> impl Iterator<Item = Session> + 'a {
    values(request, NAME).filter_map(move |value| read(key, value, now))
}

/// The values of cookies of a name. A page on another port of this host can set a second one of it.
pub(crate) fn values<'a>(request: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let cookies = request.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(move |cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='))
}

fn read(key: &Secret, value: &str, now: Timestamp) -> Option<Session> {
    let (until, rest) = value.split_once('.')?;
    let (number, shown) = rest.split_once('.')?;
    let (until, shown) = (until.parse::<i64>().ok()?, hex::decode(shown).ok()?);
    let holds = now.as_second() < until && seal(key, until, number).verify_slice(&shown).is_ok();
    // By the seal, which is written in one way here, whatever the cookie has it like.
    holds.then(|| Session { id: hash_of(&shown), until })
}

fn seal(key: &Secret, until: i64, number: &str) -> Hmac<Sha256> {
    let mut seal = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key of any length");
    seal.update(format!("bellglass session {number} until {until}").as_bytes());
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
        let holds = |token: &Secret, request: &HeaderMap, now: Timestamp| {
            shown(token, request, now).next().is_some()
        };

        assert!(holds(&token, &sent_back(pair), now));
        assert!(holds(&token, &sent_back(&format!("a=b; {NAME}=forged; {pair}")), now));
        assert!(!holds(&token, &sent_back(pair), now + LIFETIME));
        assert!(!holds(&Secret::new("other"), &sent_back(pair), now));
        assert!(!holds(&token, &HeaderMap::new(), now));
        let (until, rest) = pair.split_once('=').unwrap().1.split_once('.').unwrap();
        let (number, seal) = rest.split_once('.').unwrap();
        let later = until.parse::<i64>().unwrap() + 1;
        for forged in [
            "",
            ".",
            "x.y",
            &format!("{later}.{number}.{seal}"),
            &format!("{until}.0{number}.{seal}"),
            &format!("{until}.{seal}"),
            &format!("{until}.{number}."),
            &format!("{until}.{number}.00"),
        ] {
            assert!(!holds(&token, &sent_back(&format!("{NAME}={forged}")), now), "{forged}");
        }
    }

    #[test]
    fn a_session_is_ended_by_itself() {
        let (token, now) = (Secret::new("s3cret"), Timestamp::now());
        let session = || {
            let set = begin(&token, &HeaderMap::new(), now);
            let pair = set.to_str().unwrap().split(';').next().unwrap().to_owned();
            (shown(&token, &sent_back(&pair), now).next().unwrap(), pair)
        };
        let ((one, pair), (other, _)) = (session(), session());
        let ended = EndedSessions::default();
        assert!(ended.holds(&one, now) && ended.holds(&other, now));
        ended.add(one.clone(), now);
        assert!(!ended.holds(&one, now) && ended.holds(&other, now));
        assert!(!ended.holds(&other, now + LIFETIME));
        // The same cookie in other letters is the same session.
        let (beginning, seal) = pair.rsplit_once('.').unwrap();
        let written = sent_back(&format!("{beginning}.{}", seal.to_ascii_uppercase()));
        assert_eq!(shown(&token, &written, now).next(), Some(one));
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
