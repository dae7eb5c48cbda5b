//! Links to one job for those who have no token: sealed, so that nobody can make one up, and for a time.
//!
//! A link says all about itself. It is sealed with a key of the job's own, which is taken away to end all
//! links of the job at once.

use axum::http::{HeaderMap, HeaderValue};
use bellglass_protocol::id::JobId;
use bellglass_store::access::ShareKey;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;

use crate::session;

/// What a link shows, beside the job's page and its history, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareLink {
    pub(crate) job: JobId,
    /// Seconds since 1970.
    pub(crate) until: i64,
    /// Whether the files may be read.
    pub(crate) files: bool,
    /// Whether the ZIP may be downloaded.
    pub(crate) output: bool,
}

const COOKIE: &str = "bellglass_share";

impl ShareLink {
    /// The link as text, which fits into an address and into a cookie.
    pub(crate) fn sealed(&self, key: &ShareKey) -> String {
        let seal = hex::encode(self.seal(key).finalize().into_bytes());
        format!("{}.{}.{}.{seal}", self.job, self.until, self.letters())
    }

    fn seal(&self, key: &ShareKey) -> Hmac<Sha256> {
        let mut seal = Hmac::<Sha256>::new_from_slice(&key.0).expect("a key of any length");
        let (job, until, letters) = (self.job, self.until, self.letters());
        seal.update(format!("bellglass share {job} until {until} with {letters}").as_bytes());
        seal
    }

    fn letters(&self) -> &'static str {
        match (self.files, self.output) {
            (false, false) => "e",
            (true, false) => "ef",
            (false, true) => "eo",
            (true, true) => "efo",
        }
    }
}

/// A link that says something, whether it is true or not.
#[derive(Debug)]
pub(crate) struct ShownLink {
    claimed: ShareLink,
    seal: Vec<u8>,
}

impl ShownLink {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let job = parts.next()?.parse().ok()?;
        let until = parts.next()?.parse().ok()?;
        let (files, output) = match parts.next()? {
            "e" => (false, false),
            "ef" => (true, false),
            "eo" => (false, true),
            "efo" => (true, true),
            _ => return None,
        };
        let seal = hex::decode(parts.next()?).ok()?;
        let claimed = ShareLink { job, until, files, output };
        parts.next().is_none().then_some(Self { claimed, seal })
    }

    pub(crate) fn job(&self) -> JobId {
        self.claimed.job
    }

    /// What the link gives, if it is one of ours and its time is not over.
    pub(crate) fn checked(self, key: &ShareKey, now: Timestamp) -> Option<ShareLink> {
        let holds = now.as_second() < self.claimed.until
            && self.claimed.seal(key).verify_slice(&self.seal).is_ok();
        holds.then_some(self.claimed)
    }
}

/// What a browser that opened a link shows with each request for the job.
pub(crate) fn shown(request: &HeaderMap) -> impl Iterator<Item = ShownLink> {
    session::values(request, COOKIE).filter_map(ShownLink::read)
}

/// Cookies by which a browser goes on showing a link, for the job's addresses and no others.
pub(crate) fn cookies(
    link: &ShareLink,
    text: &str,
    request: &HeaderMap,
    now: Timestamp,
) -> [HeaderValue; 2] {
    let seconds = link.until.saturating_sub(now.as_second());
    ["jobs", "status"].map(|part| {
        session::cookie(COOKIE, text, &format!("/{part}/{}", link.job), seconds, request)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_holds_for_its_job_its_time_its_key_and_nothing_else() {
        let (key, now) = (ShareKey([7; 32]), Timestamp::now());
        let until = now.as_second() + 60;
        let link = ShareLink { job: JobId::generate(), until, files: true, output: false };
        let text = link.sealed(&key);
        let check = |text: &str, key: &ShareKey, now| ShownLink::read(text)?.checked(key, now);
        assert_eq!(check(&text, &key, now), Some(link.clone()));
        assert_eq!(check(&text, &ShareKey([8; 32]), now), None, "another key");
        let later = Timestamp::from_second(until).unwrap();
        assert_eq!(check(&text, &key, later), None, "its time is over");
        let (job, other) = (link.job.to_string(), JobId::generate().to_string());
        for forged in [
            text.replace(&job, &other),
            text.replace(&until.to_string(), &(until + 1).to_string()),
            text.replace(".ef.", ".efo."),
            text.replace(".ef.", ".e."),
            format!("{text}00"),
            format!("{text}."),
            text[..text.len() - 2].to_owned(),
            format!("{job}.{until}.ef."),
            String::new(),
            "....".into(),
        ] {
            assert_eq!(check(&forged, &key, now), None, "{forged}");
        }
    }
}
