//! How a browser that is let in at the API's origin is let in at an app's: a ticket, good once and
//! for a moment, which the app's host turns into a cookie of its own.
//!
//! Both are sealed and name the app, so one is worth nothing anywhere else. Neither says who the user
//! is, only by the hash of which token or session they were let in, so that it can be asked whether that
//! still holds; and neither ever enters a sandbox.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderValue, header};
use bellglass_store::access::TokenHash;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;

use super::key::AppKey;
use super::name::AppName;
use crate::caller::Shown;
use crate::session::Session;

/// The beginning of the names of all our cookies: none of them is for a sandbox.
pub(crate) const OUR_COOKIES: &str = "bellglass_";

/// For a page in a tab of its own, and for one inside of another page, where browsers send only
/// cookies that say so. The second is kept apart for each page around it (`Partitioned`).
const IN_A_TAB: &str = "bellglass_app";
const IN_A_FRAME: &str = "bellglass_app_framed";

const TICKET_LIFETIME: SignedDuration = SignedDuration::from_secs(60);
const COOKIE_LIFETIME: SignedDuration = SignedDuration::from_hours(12);

/// Tickets that were used and would still hold. Nobody opens so many pages in a minute.
const MOST_USED: usize = 10_000;

pub(crate) struct Passes {
    key: [u8; 32],
    used: Mutex<HashMap<String, i64>>,
}

/// What a sealed text is good for; one kind is never taken for another.
#[derive(Clone, Copy)]
enum Kind {
    Ticket,
    Cookie,
}

/// Who is let in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Visitor {
    /// The origin of the page from which the app was opened, such as `http://localhost:8000`.
    pub opener: String,
    /// By what whoever opened it was let in there.
    pub shown: Shown,
}

/// What a ticket or a cookie says.
#[derive(Debug, PartialEq)]
pub(crate) struct Pass {
    pub visitor: Visitor,
    until: i64,
    nonce: String,
}

impl Visitor {
    fn shown_text(&self) -> String {
        match &self.shown {
            Shown::Nothing => String::new(),
            Shown::Token(TokenHash(hash)) => format!("t{}", hex::encode(hash)),
            Shown::Session(Session { id: TokenHash(id), until }) => {
                format!("s{until}-{}", hex::encode(id))
            }
        }
    }
}

impl Passes {
    pub(crate) fn new(AppKey(key): AppKey) -> Self {
        Self { key, used: Mutex::default() }
    }

    /// A ticket for somebody who was let in at the API's origin.
    pub(crate) fn ticket(&self, app: &AppName, visitor: &Visitor, now: Timestamp) -> String {
        self.seal(Kind::Ticket, app, visitor, now + TICKET_LIFETIME)
    }

    /// Takes a ticket. It is good for nothing afterwards.
    pub(crate) fn redeem(&self, app: &AppName, ticket: &str, now: Timestamp) -> Option<Pass> {
        let pass = self.open(Kind::Ticket, app, ticket, now)?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, until| now.as_second() < *until);
        let is_new =
            used.len() < MOST_USED && used.insert(pass.nonce.clone(), pass.until).is_none();
        is_new.then_some(pass)
    }

    /// Cookies for the app's host.
    pub(crate) fn cookies(&self, app: &AppName, pass: &Pass, now: Timestamp) -> [HeaderValue; 2] {
        let value = self.seal(Kind::Cookie, app, &pass.visitor, now + COOKIE_LIFETIME);
        let seconds = COOKIE_LIFETIME.as_secs();
        [(IN_A_TAB, "SameSite=Lax"), (IN_A_FRAME, "SameSite=None; Secure; Partitioned")].map(
            |(name, rules)| {
                let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; {rules}");
                HeaderValue::try_from(text).expect("only plain characters")
            },
        )
    }

    /// What the request's cookie says, if one of them holds.
    pub(crate) fn admitted(
        &self,
        app: &AppName,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Option<Pass> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            matches!(name, IN_A_TAB | IN_A_FRAME).then_some(value)
        });
        pairs.find_map(|value| self.open(Kind::Cookie, app, value, now))
    }

    fn seal(&self, kind: Kind, app: &AppName, visitor: &Visitor, until: Timestamp) -> String {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).expect("the system has random numbers");
        let (nonce, until) = (hex::encode(nonce), until.as_second());
        let seal = self.mac(kind, app, visitor, until, &nonce).finalize().into_bytes();
        let (shown, opener) = (visitor.shown_text(), hex::encode(&visitor.opener));
        format!("{until}.{nonce}.{shown}.{opener}.{}", hex::encode(seal))
    }

    fn open(&self, kind: Kind, app: &AppName, text: &str, now: Timestamp) -> Option<Pass> {
        let mut parts = text.split('.');
        let until: i64 = parts.next()?.parse().ok()?;
        let nonce = parts.next()?.to_owned();
        let shown = read_shown(parts.next()?)?;
        let opener = String::from_utf8(hex::decode(parts.next()?).ok()?).ok()?;
        let visitor = Visitor { opener, shown };
        let seal = hex::decode(parts.next()?).ok()?;
        let is_whole = parts.next().is_none() && now.as_second() < until;
        let holds = self.mac(kind, app, &visitor, until, &nonce).verify_slice(&seal).is_ok();
        (is_whole && holds).then_some(Pass { visitor, until, nonce })
    }

    fn mac(
        &self,
        kind: Kind,
        app: &AppName,
        visitor: &Visitor,
        until: i64,
        nonce: &str,
    ) -> Hmac<Sha256> {
        let kind = match kind {
            Kind::Ticket => "ticket",
            Kind::Cookie => "cookie",
        };
        let mut seal = mac(&self.key);
        // No part but the last can have a line break in it, so the text means one thing only.
        let (app, shown, opener) = (app.label(), visitor.shown_text(), &visitor.opener);
        seal.update(format!("{kind}\n{app}\n{until}\n{nonce}\n{shown}\n{opener}").as_bytes());
        seal
    }
}

fn read_shown(text: &str) -> Option<Shown> {
    let hash = |digits: &str| Some(TokenHash(hex::decode(digits).ok()?.try_into().ok()?));
    if text.is_empty() {
        return Some(Shown::Nothing);
    }
    match text.split_at_checked(1)? {
        ("t", digits) => Some(Shown::Token(hash(digits)?)),
        ("s", rest) => {
            let (until, digits) = rest.split_once('-')?;
            Some(Shown::Session(Session { id: hash(digits)?, until: until.parse().ok()? }))
        }
        _ => None,
    }
}

pub(super) fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("a key of any length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::name::Service;

    fn app(port: u16) -> AppName {
        let job = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        AppName { job, service: Service::Port(port.try_into().unwrap()) }
    }

    fn visitor() -> Visitor {
        let shown = Shown::Token(TokenHash([7; 32]));
        Visitor { opener: "http://localhost:8000".into(), shown }
    }

    #[test]
    fn by_what_somebody_was_let_in_reads_back() {
        let session = Session { id: TokenHash([9; 32]), until: 1_800_000_000 };
        for shown in [Shown::Nothing, visitor().shown, Shown::Session(session)] {
            let visitor = Visitor { shown: shown.clone(), ..visitor() };
            assert_eq!(read_shown(&visitor.shown_text()), Some(shown));
        }
        for garbage in ["t", "t00", "s", "s1", "s1-00", "x", "é"] {
            assert_eq!(read_shown(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_ticket_is_good_once_for_its_app_and_its_time() {
        let (passes, now) = (Passes::new(AppKey([1; 32])), Timestamp::now());
        let ticket = passes.ticket(&app(80), &visitor(), now);
        assert_eq!(passes.redeem(&app(81), &ticket, now), None);
        assert_eq!(passes.redeem(&app(80), &ticket, now + TICKET_LIFETIME), None);
        assert_eq!(Passes::new(AppKey([2; 32])).redeem(&app(80), &ticket, now), None);
        assert_eq!(passes.redeem(&app(80), &ticket, now).unwrap().visitor, visitor());
        assert_eq!(passes.redeem(&app(80), &ticket, now), None);
        for forged in ["", "...", "1.2.3.4", &ticket.replacen('1', "2", 1)] {
            assert_eq!(passes.redeem(&app(80), forged, now), None, "{forged}");
        }
    }

    #[test]
    fn a_cookie_is_good_for_its_app_and_a_ticket_is_no_cookie() {
        let (passes, now) = (Passes::new(AppKey([1; 32])), Timestamp::now());
        let ticket = passes.ticket(&app(80), &visitor(), now);
        let pass = passes.redeem(&app(80), &ticket, now).unwrap();
        let sent_back = |text: &str| {
            HeaderMap::from_iter([(header::COOKIE, HeaderValue::try_from(text).unwrap())])
        };
        for set in passes.cookies(&app(80), &pass, now) {
            let set = set.to_str().unwrap();
            assert!(
                set.contains("; HttpOnly") && set.contains("SameSite=") && !set.contains("Domain")
            );
            let pair = set.split(';').next().unwrap();
            let headers = sent_back(&format!("a=b; {pair}"));
            assert_eq!(passes.admitted(&app(80), &headers, now).unwrap().visitor, visitor());
            assert_eq!(passes.admitted(&app(81), &headers, now), None);
            assert_eq!(passes.admitted(&app(80), &headers, now + COOKIE_LIFETIME), None);
        }
        let as_cookie = sent_back(&format!("{IN_A_TAB}={ticket}"));
        assert_eq!(passes.admitted(&app(80), &as_cookie, now), None);
    }
}
