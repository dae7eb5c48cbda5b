//! How much of the server one user may use: requests in a second, jobs at once, jobs and time in a day.
//!
//! Whoever looks after the server is not counted. A day is one of UTC, so that everybody knows when the
//! next one begins. Jobs are counted in the store; requests only here, since a second is soon over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bellglass_protocol::job::Limits;
use bellglass_protocol::quantity::Seconds;
use bellglass_store::Store;
use bellglass_store::access::{Role, Usage};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use tokio::sync::OwnedMutexGuard;

use crate::caller::Caller;
use crate::problem::ApiError;

/// What each user may use. 0 is no limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Jobs that are not at their end.
    pub jobs_at_once: u64,
    /// Jobs that are scheduled in one day.
    pub jobs_per_day: u64,
    /// The time for which a user's jobs run in one day, all of them together.
    #[serde(deserialize_with = "time_or_no_limit")]
    pub running_time_per_day: Option<Seconds>,
    pub requests_per_second: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            jobs_at_once: 16,
            jobs_per_day: 1000,
            running_time_per_day: Some(Seconds::whole(48 * 3600)),
            requests_per_second: 100,
        }
    }
}

/// Which limit was met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Quota {
    JobsAtOnce(u64),
    JobsPerDay(u64),
    RunningTime(Seconds),
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::JobsAtOnce(most) => write!(
                f,
                "you have {most} jobs that are not at their end, as many as one user may have"
            ),
            Self::JobsPerDay(most) => {
                write!(f, "you have scheduled {most} jobs today, as many as one user may in a day")
            }
            Self::RunningTime(most) => {
                let hours = most.get() / 3600.0;
                write!(f, "your jobs have run for {hours:.1} h today, as long as one user's may")
            }
        }
    }
}

/// Counts, and says when it is too much.
#[derive(Default)]
pub(crate) struct Meter {
    quotas: Quotas,
    buckets: Mutex<HashMap<String, Bucket>>,
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// So many requests may come at once: twice those of a second.
const BURST: f64 = 2.0;

/// Users about whom nothing need be remembered are forgotten when there are more than this.
const MANY: usize = 1024;

impl Meter {
    pub(crate) fn new(quotas: Quotas) -> Self {
        Self { quotas, ..Self::default() }
    }

    /// Counts a request.
    pub(crate) fn request(&self, caller: &Caller) -> Result<(), ApiError> {
        let rate = f64::from(self.quotas.requests_per_second);
        let name = match caller {
            Caller::Holder { token, .. } if token.role != Role::Admin => token.user.clone(),
            // No user's name has a space in it.
            Caller::Guest { link, .. } => format!("guest of {}", link.job),
            Caller::Holder { .. }
            | Caller::Operator { .. }
            | Caller::Vouched { .. }
            | Caller::Nobody => {
                return Ok(());
            }
        };
        if rate <= 0.0 {
            return Ok(());
        }
        let now = Instant::now();
        let mut buckets = open(&self.buckets);
        if buckets.len() > MANY {
            buckets.retain(|_, bucket| !bucket.is_full(rate, now));
        }
        let bucket = buckets.entry(name).or_insert_with(|| Bucket::full(rate, now));
        if bucket.take(rate, now) { Ok(()) } else { Err(ApiError::TooManyRequests) }
    }

    /// Lets a user schedule one job, if they may.
    pub(crate) async fn job(&self, store: &dyn Store, caller: &Caller) -> Result<Place, ApiError> {
        let user = match caller {
            Caller::Holder { token, .. } if token.role != Role::Admin => &token.user,
            _ => return Ok(Place::default()),
        };
        let turn = {
            let mut turns = open(&self.turns);
            if turns.len() > MANY {
                turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            turns.entry(user.clone()).or_default().clone()
        };
        let turn = turn.lock_owned().await;
        let now = Timestamp::now();
        let usage = store.usage(user, midnight(now), now).await?;
        match self.quotas.met_by(&usage) {
            None => Ok(Place { time: self.quotas.time_for_one_more(&usage), _turn: Some(turn) }),
            Some(quota) => {
                let retry_after = match quota {
                    Quota::JobsAtOnce(_) => 30,
                    Quota::JobsPerDay(_) | Quota::RunningTime(_) => until_midnight(now),
                };
                Err(ApiError::QuotaExceeded { quota, retry_after })
            }
        }
    }
}

/// Room for one job. Keeps the user's other requests from counting the same room a second time: hold it
/// until the job is counted.
#[derive(Default)]
pub(crate) struct Place {
    /// For how long the job may run, where that is bounded.
    time: Option<Seconds>,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl Place {
    pub(crate) fn bound(&self, limits: &mut Limits) {
        if let Some(time) = self.time.filter(|time| *time < limits.time) {
            limits.time = time;
        }
    }
}

/// In seconds. A job that would have less is refused: it would only end in the middle of something. Where the whole
/// day has little more, a tenth of that will do.
const LEAST_TIME: f64 = 10.0;

impl Quotas {
    /// An even share of the time that is left. Those who are at it have been counted only up to now, so
    /// without this the last moment of a day's time would be enough for any number of long jobs.
    fn time_for_one_more(&self, usage: &Usage) -> Option<Seconds> {
        let left = self.running_time_per_day?.get() - usage.running_ms as f64 / 1000.0;
        let share = left / (usage.unfinished + 1) as f64;
        Seconds::parse(&share.to_string()).ok()
    }

    fn met_by(&self, usage: &Usage) -> Option<Quota> {
        let met = |most: u64, used: u64| most > 0 && used >= most;
        let time = self.running_time_per_day.filter(|most| {
            let share = self.time_for_one_more(usage).map_or(0.0, Seconds::get);
            share < LEAST_TIME.min(most.get() / 10.0)
        });
        if met(self.jobs_at_once, usage.unfinished) {
            Some(Quota::JobsAtOnce(self.jobs_at_once))
        } else if met(self.jobs_per_day, usage.scheduled) {
            Some(Quota::JobsPerDay(self.jobs_per_day))
        } else {
            time.map(Quota::RunningTime)
        }
    }
}

/// A span of time is never nothing, so 0 is read apart.
fn time_or_no_limit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Seconds>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(f64),
        Text(String),
    }
    let text = match Given::deserialize(from)? {
        Given::Number(number) => number.to_string(),
        Given::Text(text) => text,
    };
    let number = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim();
    match number.parse::<f64>() {
        Ok(0.0) => Ok(None),
        _ => Seconds::parse(&text).map(Some).map_err(D::Error::custom),
    }
}

const DAY: i64 = 86_400;

fn midnight(now: Timestamp) -> Timestamp {
    let seconds = now.as_second();
    Timestamp::from_second(seconds - seconds.rem_euclid(DAY)).unwrap_or(now)
}

fn until_midnight(now: Timestamp) -> u64 {
    (DAY - now.as_second().rem_euclid(DAY)).unsigned_abs()
}

/// Fills up with time, and each request takes one out of it.
pub(crate) struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: f64, now: Instant) -> Self {
        Self { left: BURST * rate, at: now }
    }

    pub(crate) fn take(&mut self, rate: f64, now: Instant) -> bool {
        self.left = self.filled(rate, now);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }

    /// Undoes what was taken for something that does not count.
    pub(crate) fn give_back(&mut self, rate: f64) {
        self.left = (self.left + 1.0).min(BURST * rate);
    }

    pub(crate) fn is_full(&self, rate: f64, now: Instant) -> bool {
        self.filled(rate, now) >= BURST * rate
    }

    fn filled(&self, rate: f64, now: Instant) -> f64 {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        (self.left + more).min(BURST * rate)
    }
}

/// Nothing that panics happens while these are held.
fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_lets_a_burst_through_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::full(10.0, start);
        assert!((0..20).all(|_| bucket.take(10.0, start)));
        assert!(!bucket.take(10.0, start));
        let later = start + Duration::from_millis(250);
        assert!(bucket.take(10.0, later) && bucket.take(10.0, later));
        assert!(!bucket.take(10.0, later));
        bucket.give_back(10.0);
        assert!(bucket.take(10.0, later) && !bucket.take(10.0, later));
        assert!(bucket.is_full(10.0, later + Duration::from_secs(2)));
    }

    #[test]
    fn each_limit_is_met_by_what_it_counts() {
        let quotas = Quotas {
            jobs_at_once: 2,
            jobs_per_day: 5,
            running_time_per_day: Some(Seconds::whole(60)),
            requests_per_second: 0,
        };
        let usage = |unfinished, scheduled, running_ms| Usage { unfinished, scheduled, running_ms };
        assert_eq!(quotas.met_by(&usage(1, 4, 48_000)), None);
        assert_eq!(quotas.met_by(&usage(2, 4, 0)), Some(Quota::JobsAtOnce(2)));
        assert_eq!(quotas.met_by(&usage(1, 5, 0)), Some(Quota::JobsPerDay(5)));
        let time = Seconds::whole(60);
        assert_eq!(quotas.met_by(&usage(0, 0, 60_000)), Some(Quota::RunningTime(time)));
        assert_eq!(quotas.met_by(&usage(0, 0, 54_000)), None);
        assert_eq!(quotas.met_by(&usage(0, 0, 54_001)), Some(Quota::RunningTime(time)));
        assert_eq!(quotas.met_by(&usage(1, 0, 50_000)), Some(Quota::RunningTime(time)));
        let none =
            Quotas { jobs_at_once: 0, jobs_per_day: 0, running_time_per_day: None, ..quotas };
        assert_eq!(none.met_by(&usage(1000, 1000, u64::MAX)), None);
    }

    #[test]
    fn what_is_left_of_the_time_is_shared() {
        let time = Some(Seconds::whole(60));
        let quotas = Quotas { running_time_per_day: time, ..Quotas::default() };
        let share = |unfinished, running_ms| {
            let usage = Usage { unfinished, running_ms, ..Usage::default() };
            quotas.time_for_one_more(&usage).map(Seconds::get)
        };
        assert_eq!(share(0, 0), Some(60.0));
        assert_eq!(share(3, 20_000), Some(10.0));
        assert_eq!(share(0, 59_999), Some(60.0 - 59.999));
        let unbounded = Quotas { running_time_per_day: None, ..quotas };
        assert_eq!(unbounded.time_for_one_more(&Usage::default()), None);
    }

    #[test]
    fn nothing_is_no_limit() {
        let read = |text: &str| serde_json::from_str::<Quotas>(text);
        for none in ["0", "0.0", "\"0\"", "\"0h\"", "\"0 s\""] {
            let quotas = read(&format!("{{\"running_time_per_day\": {none}}}")).unwrap();
            assert_eq!(quotas.running_time_per_day, None, "{none}");
        }
        for (text, seconds) in [("90", 90), ("\"90\"", 90), ("\"2h\"", 7200)] {
            let quotas = read(&format!("{{\"running_time_per_day\": {text}}}")).unwrap();
            assert_eq!(quotas.running_time_per_day, Some(Seconds::whole(seconds)), "{text}");
        }
        for wrong in ["-1", "\"-1h\"", "\"soon\"", "\"\"", "\"h\"", "true", "null"] {
            assert!(read(&format!("{{\"running_time_per_day\": {wrong}}}")).is_err(), "{wrong}");
        }
        let usual = read("{}").unwrap().running_time_per_day;
        assert_eq!(usual, Quotas::default().running_time_per_day);
    }

    #[test]
    fn a_day_ends_at_midnight() {
        let now: Timestamp = "2026-03-01T22:59:50Z".parse().unwrap();
        assert_eq!(midnight(now), "2026-03-01T00:00:00Z".parse().unwrap());
        assert_eq!(until_midnight(now), 3610);
        let first: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        assert_eq!((midnight(first), until_midnight(first)), (first, 86_400));
    }
}
