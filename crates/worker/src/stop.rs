//! Why a job must stop before its mind is done, and how everybody who works on it hears of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Why a job stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Somebody asked for it.
    Cancelled,
    /// The job's wall-clock time is used up.
    TimeLimit,
    /// Another worker holds the job now; nothing may be written or destroyed any more.
    LeaseLost,
    /// This process ends. The job is left as it is, for whoever takes it up.
    ShuttingDown,
    /// A newer program said something about the job that cannot be read here. The job is left as it is, for
    /// programs that can.
    Misread,
}

impl StopReason {
    /// Whether the job comes to its end here, rather than going on elsewhere.
    pub(crate) fn ends_the_job(self) -> bool {
        matches!(self, Self::Cancelled | Self::TimeLimit)
    }
}

/// Tells a job to stop. The first reason to end it counts, but a reason to let go of it counts more.
#[derive(Clone, Debug)]
pub(crate) struct StopSwitch {
    reason: watch::Sender<Option<StopReason>>,
    winding_down: Arc<AtomicBool>,
}

impl StopSwitch {
    pub(crate) fn new() -> Self {
        Self { reason: watch::Sender::new(None), winding_down: Arc::default() }
    }

    pub(crate) fn stop(&self, reason: StopReason) {
        self.reason.send_if_modified(|current| {
            let replaces = match current {
                None => true,
                Some(known) => known.ends_the_job() && !reason.ends_the_job(),
            };
            if replaces {
                *current = Some(reason);
            }
            replaces
        });
    }

    /// Has the job left to newer programs. Returns why it stops, which may be an earlier reason to let go of it.
    pub(crate) fn leave_to_newer(&self) -> StopReason {
        self.stop(StopReason::Misread);
        self.reason().unwrap_or(StopReason::Misread)
    }

    pub(crate) fn reason(&self) -> Option<StopReason> {
        *self.reason.borrow()
    }

    /// Returns once there is a reason to stop.
    pub(crate) async fn stopped(&self) -> StopReason {
        self.stopped_by(|_| true).await
    }

    /// Returns once there is a reason to stop packing: one that is not known already, and not the
    /// time limit, because packing is not counted.
    pub(crate) async fn packing_stopped(&self, known: Option<StopReason>) -> StopReason {
        self.stopped_by(|reason| Some(reason) != known && reason != StopReason::TimeLimit).await
    }

    /// Returns once the job is to be left to others.
    pub(crate) async fn told_to_let_go(&self) -> StopReason {
        self.stopped_by(|reason| !reason.ends_the_job()).await
    }

    /// Has the job begin no more steps: this process ends soon, and what is not begun is not interrupted.
    pub(crate) fn wind_down(&self) {
        self.winding_down.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_winding_down(&self) -> bool {
        self.winding_down.load(Ordering::Relaxed)
    }

    async fn stopped_by(&self, counts: impl Fn(StopReason) -> bool) -> StopReason {
        let mut receiver = self.reason.subscribe();
        let reason = receiver.wait_for(|reason| reason.is_some_and(&counts)).await;
        // The sender lives in `self`, so the channel is open and the value is there.
        reason.ok().and_then(|reason| *reason).unwrap_or(StopReason::ShuttingDown)
    }
}

#[cfg(test)]
mod tests {
    use super::StopReason::{Cancelled, LeaseLost, Misread, ShuttingDown, TimeLimit};
    use super::*;

    #[test]
    fn letting_go_counts_more_than_ending() {
        for (reasons, expected) in [
            (&[Cancelled, TimeLimit][..], Cancelled),
            (&[Cancelled, ShuttingDown], ShuttingDown),
            (&[LeaseLost, Cancelled], LeaseLost),
            (&[LeaseLost, ShuttingDown], LeaseLost),
            (&[Cancelled, Misread, ShuttingDown], Misread),
        ] {
            let switch = StopSwitch::new();
            reasons.iter().for_each(|reason| switch.stop(*reason));
            assert_eq!(switch.reason(), Some(expected), "{reasons:?}");
        }
    }
    #[test]
    fn the_time_limit_does_not_stop_the_packing() {
        use futures::FutureExt as _;
        let switch = StopSwitch::new();
        switch.stop(TimeLimit);
        assert_eq!(switch.stopped().now_or_never(), Some(TimeLimit));
        assert_eq!(switch.packing_stopped(None).now_or_never(), None);
        switch.stop(ShuttingDown);
        assert_eq!(switch.packing_stopped(None).now_or_never(), Some(ShuttingDown));

        let switch = StopSwitch::new();
        switch.stop(Cancelled);
        assert_eq!(switch.packing_stopped(None).now_or_never(), Some(Cancelled));
        assert_eq!(switch.packing_stopped(Some(Cancelled)).now_or_never(), None);
    }
}
