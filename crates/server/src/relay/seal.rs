//! How servers and workers prove to each other that they belong together.
//!
//! A request carries a seal over its method, its address, who asked for it, the time and a number that is
//! used once, made with the cluster's secret; the answer carries one over that number. So strangers who
//! reach a worker's port get nothing, a request cannot be used again or for something else, nobody can
//! pose as a worker, and the secret itself never travels. Bodies are neither sealed nor hidden: whoever
//! can change what passes between the machines is kept out by the network between them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, HeaderValue, Method};
use bellglass_protocol::id::JobId;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;

use crate::settings::Secret;

pub(super) const SEAL: &str = "bellglass-relay";
pub(super) const PROOF: &str = "bellglass-relay-proof";

/// How far two clocks may differ, in seconds.
const SKEW: i64 = 60;

/// Numbers that are remembered at the most. More than this in two minutes is an attack or a mistake.
const MOST_REMEMBERED: usize = 1 << 20;

/// That whoever passed a request on has let its caller in, and who that was where there are users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vouched {
    pub(crate) owner: Option<String>,
}

/// A request's seal as it is sent, and the number in it.
pub(super) fn seal(
    secret: &Secret,
    method: &Method,
    address: &str,
    vouched: &Vouched,
    now: Timestamp,
) -> (HeaderValue, String) {
    let (time, number) = (now.as_second(), JobId::generate().to_string());
    // A name is written as `.` and its digits, so that no name and an empty one are two things.
    let caller =
        vouched.owner.as_ref().map_or("-".into(), |owner| format!(".{}", hex::encode(owner)));
    let seal = hex::encode(
        keyed(secret, &request_text(method, address, &caller, time, &number))
            .finalize()
            .into_bytes(),
    );
    let text = format!("v1 {time} {number} {caller} {seal}");
    (HeaderValue::try_from(text).expect("only plain characters"), number)
}

/// Whether an answer comes from somebody who knows the secret.
pub(super) fn is_proof(secret: &Secret, number: &str, headers: &HeaderMap) -> bool {
    let shown = headers.get(PROOF).and_then(|value| hex::decode(value.as_bytes()).ok());
    shown.is_some_and(|shown| keyed(secret, &answer_text(number)).verify_slice(&shown).is_ok())
}

/// Checks seals, and remembers those that were used.
#[derive(Clone)]
pub(crate) struct Seals {
    secret: Secret,
    used: Arc<Mutex<HashMap<String, i64>>>,
}

/// A request whose seal held.
pub(crate) struct Sealed {
    pub(crate) vouched: Vouched,
    /// To be sent with the answer.
    pub(crate) proof: (&'static str, HeaderValue),
}

impl Seals {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { secret, used: Arc::default() }
    }

    /// On whose behalf a request comes, if its seal holds and was not used before.
    pub(crate) fn open(
        &self,
        method: &Method,
        address: &str,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Option<Sealed> {
        let mut words = headers.get(SEAL)?.to_str().ok()?.split(' ');
        let (version, time, number, caller, shown) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let (time, shown) = (time.parse::<i64>().ok()?, hex::decode(shown).ok()?);
        let text = request_text(method, address, caller, time, number);
        let holds = version == "v1" && keyed(&self.secret, &text).verify_slice(&shown).is_ok();
        let now = now.as_second();
        if !holds || (now - time).abs() > SKEW || !self.is_first_use(number, now) {
            return None;
        }
        let proof = keyed(&self.secret, &answer_text(number)).finalize().into_bytes();
        Some(Sealed {
            vouched: Vouched { owner: read_owner(caller)? },
            proof: (PROOF, HeaderValue::try_from(hex::encode(proof)).ok()?),
        })
    }

    fn is_first_use(&self, number: &str, now: i64) -> bool {
        let mut used = self.used.lock().expect("no code panics while it holds this lock");
        if used.len() >= 1024 {
            used.retain(|_, time| now - *time <= 2 * SKEW);
        }
        used.len() < MOST_REMEMBERED && used.insert(number.to_owned(), now).is_none()
    }
}

fn read_owner(caller: &str) -> Option<Option<String>> {
    match caller.strip_prefix('.') {
        Some(digits) => Some(Some(String::from_utf8(hex::decode(digits).ok()?).ok()?)),
        None => (caller == "-").then_some(None),
    }
}

fn request_text(method: &Method, address: &str, caller: &str, time: i64, number: &str) -> String {
    format!("bellglass relay\n{method}\n{address}\n{caller}\n{time}\n{number}")
}

fn answer_text(number: &str) -> String {
    format!("bellglass relay answer\n{number}")
}

fn keyed(secret: &Secret, text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length");
    mac.update(text.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_once_for_what_it_was_made_for() {
        let (ours, theirs) = (Secret::new("our secret"), Secret::new("another"));
        let seals = Seals::new(ours.clone());
        let now = Timestamp::now();
        let vouched = Vouched { owner: Some("anna, or \u{1F600}".into()) };
        let sealed = |secret: &Secret| {
            let (value, number) = seal(secret, &Method::GET, "/jobs/1/files?x=1", &vouched, now);
            (HeaderMap::from_iter([(SEAL.parse().unwrap(), value)]), number)
        };
        let opens = |headers: &HeaderMap, method: Method, address: &str, at: Timestamp| {
            seals.open(&method, address, headers, at).map(|sealed| sealed.vouched)
        };
        let address = "/jobs/1/files?x=1";
        let (forged, _) = sealed(&theirs);
        assert_eq!(opens(&forged, Method::GET, address, now), None);
        assert_eq!(opens(&HeaderMap::new(), Method::GET, address, now), None);

        let (headers, number) = sealed(&ours);
        assert_eq!(opens(&headers, Method::PUT, address, now), None);
        assert_eq!(opens(&headers, Method::GET, "/jobs/1/files", now), None);
        let later = now + jiff::SignedDuration::from_secs(SKEW + 5);
        assert_eq!(opens(&headers, Method::GET, address, later), None);
        let first = seals.open(&Method::GET, address, &headers, now).unwrap();
        assert_eq!(first.vouched, vouched);
        assert_eq!(opens(&headers, Method::GET, address, now), None, "used before");

        let (name, proof) = first.proof;
        let answer = HeaderMap::from_iter([(name.parse().unwrap(), proof)]);
        assert!(is_proof(&ours, &number, &answer));
        assert!(!is_proof(&theirs, &number, &answer));
        assert!(!is_proof(&ours, "another number", &answer));
        assert!(!is_proof(&ours, &number, &HeaderMap::new()));
        assert_eq!(read_owner("-"), Some(None));
        assert_eq!(read_owner("."), Some(Some(String::new())));
        assert_eq!(read_owner("anna"), None);
    }
}
