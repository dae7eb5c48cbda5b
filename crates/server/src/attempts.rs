//! Who shows a token that is none may try again, but not as often as they like: so many times in a second from
//! each address.
//!
//! Whoever has a token that was good before is not held up by others who guess from the same address, such as
//! behind one proxy.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};

use crate::problem::ApiError;
use crate::quota::Bucket;
use crate::token::hash_of;

/// Wrong tokens from one address in a second; twice as many may come at once. Tokens are long.
const RATE: f64 = 5.0;

/// Addresses and tokens that are remembered. More than this come from an attack, or from a mistake.
const MOST_REMEMBERED: usize = 4096;

#[derive(Default)]
pub(crate) struct Attempts {
    wrong: Mutex<HashMap<IpAddr, Bucket>>,
    /// Hashes of tokens that let somebody in.
    good: Mutex<HashSet<[u8; 32]>>,
    /// Hashes of tokens that visitors showed to apps, and that are not ours.
    foreign: Mutex<HashSet<[u8; 32]>>,
}

/// From where a request comes, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Peer(Option<IpAddr>);

impl Peer {
    /// Somebody who is not counted.
    pub(crate) const UNKNOWN: Self = Self(None);

    pub(crate) fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<SocketAddr>>() else {
            return Self::UNKNOWN;
        };
        let address = address.ip().to_canonical();
        // A proxy on this machine says for whom it asks, after what its client may have made up.
        let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
        let forwarded = forwarded.filter(|_| address.is_loopback()).and_then(|value| {
            value.to_str().ok()?.rsplit(',').next()?.trim().parse::<IpAddr>().ok()
        });
        Self(Some(network_of(forwarded.unwrap_or(address).to_canonical())))
    }
}

/// One user may have as many addresses as fit into the last half of an IPv6 address.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.extensions, &parts.headers))
    }
}

impl Attempts {
    /// Finds out whom a token lets in, unless too many that were none came from there.
    pub(crate) async fn judged<T>(
        &self,
        from: Peer,
        shown: &[u8],
        judging: impl Future<Output = Result<Option<T>, ApiError>>,
    ) -> Result<Option<T>, ApiError> {
        let hash = hash_of(shown).0;
        let known = open(&self.good).contains(&hash);
        let Peer(Some(address)) = from else { return judging.await };
        if !known && !self.may_try(address, Instant::now()) {
            return Err(ApiError::TooManyAttempts);
        }
        let judged = judging.await?;
        match (judged.is_some(), known) {
            (true, false) => {
                self.was_good(address);
                let mut good = open(&self.good);
                if good.len() >= MOST_REMEMBERED {
                    good.clear();
                }
                good.insert(hash);
            }
            // It was revoked since.
            (false, true) => drop(open(&self.good).remove(&hash)),
            (true, true) | (false, false) => {}
        }
        Ok(judged)
    }

    /// Whether a token is one of an app's own, which is passed on. Only the first time that one is shown may be a
    /// guess at ours, and is counted as such.
    pub(crate) fn is_foreign(
        &self,
        from: Peer,
        shown: &[u8],
        is_ours: bool,
    ) -> Result<bool, ApiError> {
        let hash = hash_of(shown).0;
        if open(&self.foreign).contains(&hash) {
            return Ok(true);
        }
        if let Peer(Some(address)) = from
            && !self.may_try(address, Instant::now())
        {
            return Err(ApiError::TooManyAttempts);
        }
        if !is_ours {
            let mut foreign = open(&self.foreign);
            if foreign.len() >= MOST_REMEMBERED {
                foreign.clear();
            }
            foreign.insert(hash);
        }
        Ok(!is_ours)
    }

    /// Takes an attempt before it is made, so that many at once are not more than many after each other.
    fn may_try(&self, address: IpAddr, now: Instant) -> bool {
        let mut wrong = open(&self.wrong);
        if wrong.len() >= MOST_REMEMBERED {
            wrong.retain(|_, bucket| !bucket.is_full(RATE, now));
        }
        wrong.entry(address).or_insert_with(|| Bucket::full(RATE, now)).take(RATE, now)
    }

    fn was_good(&self, address: IpAddr) {
        if let Some(bucket) = open(&self.wrong).get_mut(&address) {
            bucket.give_back(RATE);
        }
    }
}

/// Nothing that panics happens while these are held.
fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str, forwarded: &[&str]) -> Peer {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo(SocketAddr::new(address.parse().unwrap(), 1234)));
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        Peer::of(&extensions, &headers)
    }

    #[test]
    fn a_peer_is_an_address_or_what_a_proxy_on_this_machine_says() {
        let is = |address: &str| Peer(Some(address.parse().unwrap()));
        assert_eq!(peer("192.0.2.1", &[]), is("192.0.2.1"));
        assert_eq!(peer("192.0.2.1", &["198.51.100.7"]), is("192.0.2.1"), "it is no proxy of ours");
        assert_eq!(peer("127.0.0.1", &["6.6.6.6, 198.51.100.7"]), is("198.51.100.7"));
        assert_eq!(peer("::1", &["6.6.6.6", "198.51.100.7"]), is("198.51.100.7"));
        assert_eq!(peer("127.0.0.1", &["nonsense"]), is("127.0.0.1"));
        assert_eq!(peer("::ffff:192.0.2.1", &[]), is("192.0.2.1"));
        assert_eq!(peer("2001:db8::1:2:3:4", &[]), is("2001:db8::"));
        assert_eq!(Peer::of(&Extensions::new(), &HeaderMap::new()), Peer::UNKNOWN);
    }

    #[tokio::test]
    async fn who_guesses_is_held_up_and_who_knows_is_not() {
        let attempts = Attempts::default();
        let (one, other) = (peer("192.0.2.1", &[]), peer("192.0.2.2", &[]));
        let is_good = async |from: Peer, shown: &[u8]| {
            let judged = async { Ok((shown == b"good").then_some(())) };
            attempts.judged(from, shown, judged).await.map(|it| it.is_some())
        };
        assert!(is_good(one, b"good").await.unwrap());
        let mut held_up = false;
        for _ in 0..100_000 {
            held_up = is_good(one, b"wrong").await.is_err();
            if held_up {
                break;
            }
        }
        assert!(held_up, "it can be tried without end");
        assert!(is_good(one, b"good").await.unwrap(), "it was good before");
        assert!(!is_good(other, b"wrong").await.unwrap(), "another address");
        // An app's own token is shown as often as its page wants; many different ones are guesses.
        let third = peer("192.0.2.3", &[]);
        assert!((0..1_000).all(|_| attempts.is_foreign(third, b"its own", false).unwrap()));
        let guess = |n: u32| attempts.is_foreign(third, &n.to_be_bytes(), false).is_err();
        assert!((0..100_000).any(guess), "it can be guessed without end");
        assert!(attempts.is_foreign(third, b"its own", false).unwrap());
        assert!(attempts.is_foreign(third, b"ours", true).is_err());
        assert!(!attempts.is_foreign(other, b"ours", true).unwrap(), "ours is no app's");
        // What is revoked is a guess like any other.
        let revoked = attempts.judged(one, b"good", async { Ok(None::<()>) }).await;
        assert!(revoked.unwrap().is_none());
        assert!(!open(&attempts.good).contains(&hash_of(b"good").0));
    }
}
