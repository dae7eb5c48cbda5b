//! The clock of a job's wall-clock limit: stops the job when its time is up, and stands still while
//! the job does.

use std::time::{Duration, Instant};

use bellglass_protocol::quantity::Seconds;
use bellglass_protocol::view::JobView;
use jiff::Timestamp;
use tokio_util::task::AbortOnDropHandle;

use crate::stop::{StopReason, StopSwitch};

/// Runs from its making on. Dropping it stops it.
pub(crate) struct Clock {
    left: Duration,
    stop: StopSwitch,
    running: Option<(Instant, AbortOnDropHandle<()>)>,
}

impl Clock {
    pub(crate) fn start(view: &JobView, stop: StopSwitch) -> Self {
        let began = view.steps.first().map(|step| step.started_at);
        let now = view.paused_since.unwrap_or_else(Timestamp::now);
        let paused = Duration::from_millis(view.paused_ms);
        let left = time_left(view.spec.limits.time, began, now, paused);
        let mut clock = Self { left, stop, running: None };
        clock.go_on();
        clock
    }

    pub(crate) fn stand_still(&mut self) {
        if let Some((since, _)) = self.running.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// Stops the clock. It has rung before this returns, or never will.
    pub(crate) async fn stop(mut self) {
        if let Some((_, ringing)) = self.running.take() {
            ringing.abort();
            // However it ended, it ended.
            let _ = ringing.await;
        }
    }

    pub(crate) fn go_on(&mut self) {
        let (left, stop) = (self.left, self.stop.clone());
        let ringing = tokio::spawn(async move {
            tokio::time::sleep(left).await;
            stop.stop(StopReason::TimeLimit);
        });
        self.running = Some((Instant::now(), AbortOnDropHandle::new(ringing)));
    }
}

/// What is left of a job's time. It runs from the first step in this sandbox, whoever drove it: a
/// restart of the server gives no more of it, and a job that had to begin again has all of it.
fn time_left(
    limit: Seconds,
    began: Option<Timestamp>,
    now: Timestamp,
    paused: Duration,
) -> Duration {
    let used = began.map(|began| Duration::try_from(now.duration_since(began)));
    // A clock that was set back counts as no time at all.
    let used = used.and_then(Result::ok).unwrap_or_default();
    limit.duration().saturating_sub(used.saturating_sub(paused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_gives_no_new_time_and_a_pause_takes_none() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (began, now, paused, left) in [
            (None, 500, 0, 60),
            (Some(100), 100, 0, 60),
            (Some(100), 130, 0, 30),
            (Some(100), 130, 20, 50),
            (Some(100), 900, 0, 0),
            (Some(100), 90, 0, 60),
        ] {
            let paused = Duration::from_secs(paused);
            let time = time_left(Seconds::whole(60), began.map(at), at(now), paused);
            assert_eq!(time, Duration::from_secs(left), "{began:?} {now}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stopped_clock_never_rings() {
        for _ in 0..1000 {
            let stop = StopSwitch::new();
            let mut clock = Clock { left: Duration::ZERO, stop: stop.clone(), running: None };
            clock.go_on();
            tokio::task::yield_now().await;
            clock.stop().await;
            let rang = stop.reason();
            tokio::task::yield_now().await;
            assert_eq!(stop.reason(), rang);
        }
    }
}
