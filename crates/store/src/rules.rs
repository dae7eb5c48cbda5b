//! What may happen to a job next: the rules of claiming, appending, cancelling and leasing.
//!
//! Pure decisions over one row of the index, the same for every database. A rule either changes
//! the row and gives the events to write, or refuses and changes nothing.

use std::time::Duration;

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::{EndStatus, EventBody, JobEnd};
use bellglass_protocol::id::{Generation, WorkerId};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::JobStatus;
use jiff::Timestamp;

use crate::index::IndexRow;
use crate::{Steering, StoreError};

/// When the lease of a job that was given back ended: before any that ran out by itself.
pub(crate) const GIVEN_BACK: Timestamp = Timestamp::UNIX_EPOCH;

/// Gives the job to a worker under the next generation, which fences off whoever held it before.
pub(crate) fn claim(
    row: &mut IndexRow,
    worker: &WorkerId,
    lease: Duration,
    now: Timestamp,
) -> SealedEvent {
    let generation = Generation(row.generation.0.saturating_add(1));
    let claimed = row.append(EventBody::Claimed { worker: worker.clone(), generation }, now);
    row.lease_until = Some(lease_end(now, lease));
    claimed
}

/// Adds what the holder of a job reports: all of it, or nothing.
pub(crate) fn append(
    row: &mut IndexRow,
    generation: Generation,
    bodies: &[EventBody],
    now: Timestamp,
) -> Result<Vec<SealedEvent>, StoreError> {
    if generation != row.generation {
        return Err(StoreError::StaleGeneration);
    }
    if row.status.is_terminal() {
        return Err(StoreError::JobEnded);
    }
    // A job that was never claimed has generation 0 and no holder who could speak for it.
    if row.worker.is_none() {
        return Err(StoreError::StaleGeneration);
    }
    for (n, body) in bodies.iter().enumerate() {
        match body {
            EventBody::Scheduled { .. }
            | EventBody::Claimed { .. }
            | EventBody::NetworkChanged { .. }
            // Nobody speaks for a program that is newer.
            | EventBody::Unknown(_) => {
                return Err(StoreError::ReservedEvent(body.kind().into()));
            }
            EventBody::Finished { .. } if n + 1 < bodies.len() => return Err(StoreError::JobEnded),
            _ => {}
        }
    }
    let mut events: Vec<_> = bodies.iter().map(|body| row.append(body.clone(), now)).collect();
    let is_released = bodies.iter().any(|body| matches!(body, EventBody::Released { .. }));
    if is_released && row.left_to_newer && !row.status.is_terminal() {
        // Only of a job that nobody of this version claims any more. Otherwise a worker that has its database to
        // itself would claim what it cannot read again at once, each time it lets go of it.
        row.lease_until = Some(GIVEN_BACK);
        if row.cancel_requested {
            events.push(end_as_cancelled(row, now));
        }
    }
    Ok(events)
}

/// Records the wish that the job end. Where nobody holds it, there is nobody to wait for.
pub(crate) fn request_cancel(row: &mut IndexRow, by: &str, now: Timestamp) -> Vec<SealedEvent> {
    let mut events = Vec::new();
    if row.status.is_terminal() {
        return events;
    }
    if !row.cancel_requested {
        events.push(row.append(EventBody::CancelRequested { by: by.into() }, now));
    }
    // Whom it was left to may never come, and no other takes it up to end it.
    let is_left = row.left_to_newer && row.lease_until.is_none_or(|until| until <= now);
    if row.status == JobStatus::Scheduled || is_left {
        events.push(end_as_cancelled(row, now));
    }
    events
}

fn end_as_cancelled(row: &mut IndexRow, now: Timestamp) -> SealedEvent {
    let failed_steps = row.failed_steps.clone();
    let end = JobEnd { status: EndStatus::Cancelled, failed_steps, error: None };
    row.append(EventBody::Finished { end }, now)
}

/// Records what somebody wants of the job. What is so already needs no event.
pub(crate) fn steer(
    row: &mut IndexRow,
    wish: &Steering,
    by: &str,
    now: Timestamp,
) -> Result<Option<SealedEvent>, StoreError> {
    let by = by.to_owned();
    let body = match (wish, row.status) {
        (_, status) if status.is_terminal() => return Err(StoreError::JobEnded),
        (Steering::Pause, JobStatus::Scheduled) => return Err(StoreError::NotStarted),
        (Steering::Pause, JobStatus::Running) => EventBody::Paused { by },
        (Steering::Resume, JobStatus::Paused) => EventBody::Resumed { by },
        (Steering::Pause | Steering::Resume, _) => return Ok(None),
        (Steering::Decide { id, decision, words }, _) => EventBody::ApprovalDecided {
            id: id.clone(),
            decision: *decision,
            by,
            words: words.clone(),
        },
        (Steering::Restore { .. }, JobStatus::Scheduled) => return Err(StoreError::NotStarted),
        (Steering::Restore { step }, _) => EventBody::RestoreRequested { step: *step, by },
        (Steering::Message(text), _) => EventBody::MessageReceived { by, text: text.clone() },
    };
    Ok(Some(row.append(body, now)))
}

/// Records what the job may reach from now on. A job that nobody holds yet begins with it.
pub(crate) fn change_network(
    row: &mut IndexRow,
    network: &NetworkPolicy,
    by: &str,
    now: Timestamp,
) -> Result<SealedEvent, StoreError> {
    if row.status.is_terminal() {
        return Err(StoreError::JobEnded);
    }
    let changed = EventBody::NetworkChanged { network: network.clone(), by: by.into() };
    Ok(row.append(changed, now))
}

/// Extends a lease. `false` if the worker does not hold the job under this generation any more; a
/// lease that has run out but was taken by nobody is still its own, unless the job was left to newer programs.
pub(crate) fn renew(
    row: &mut IndexRow,
    worker: &WorkerId,
    generation: Generation,
    lease: Duration,
    now: Timestamp,
) -> bool {
    // A heartbeat may cross with the word that the job is let go of.
    let is_given_back = row.left_to_newer && row.lease_until == Some(GIVEN_BACK);
    let is_holder = row.worker.as_ref() == Some(worker) && row.generation == generation;
    let held = is_holder && !is_given_back;
    if held {
        row.lease_until = Some(lease_end(now, lease));
    }
    held
}

fn lease_end(now: Timestamp, lease: Duration) -> Timestamp {
    // A lease beyond the end of the calendar is one that never runs out.
    now.checked_add(lease).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::now;
    use crate::index::tests::{spec, step_finished};
    use bellglass_protocol::step::StepStatus;

    const LEASE: Duration = Duration::from_secs(60);

    /// A job in the hands of a worker, one of whose steps failed, and the word that the worker lets go of it.
    fn held(left_to_newer: bool) -> (IndexRow, WorkerId, EventBody) {
        let (mut row, _) = IndexRow::accept(spec(), now());
        let worker = WorkerId::new("w");
        claim(&mut row, &worker, LEASE, now());
        let failed = step_finished(1, StepStatus::Failed);
        append(&mut row, Generation(1), &[failed], now()).unwrap();
        row.left_to_newer = left_to_newer;
        (row, worker, EventBody::Released { generation: Generation(1) })
    }

    fn kinds(events: &[SealedEvent]) -> Vec<&str> {
        events.iter().map(|sealed| sealed.event.body.kind()).collect()
    }

    #[test]
    fn a_job_that_was_left_to_newer_programs_is_cancelled_before_and_after() {
        let (mut row, worker, released) = held(true);
        append(&mut row, Generation(1), std::slice::from_ref(&released), now()).unwrap();
        assert!(!renew(&mut row, &worker, Generation(1), LEASE, now()), "it was given back");
        let events = request_cancel(&mut row, "me", now());
        assert_eq!(kinds(&events), ["cancel.requested", "finished"]);
        assert_eq!((row.status, row.failed_steps), (JobStatus::Cancelled, vec![1]));

        let (mut row, _, released) = held(true);
        assert_eq!(kinds(&request_cancel(&mut row, "me", now())), ["cancel.requested"]);
        let events = append(&mut row, Generation(1), &[released], now()).unwrap();
        assert_eq!(kinds(&events), ["released", "finished"]);
        assert_eq!((row.status, row.failed_steps), (JobStatus::Cancelled, vec![1]));
    }

    #[test]
    fn a_job_that_its_own_kind_may_claim_keeps_its_lease_when_it_is_released() {
        let (mut row, worker, released) = held(false);
        let lease = row.lease_until;
        request_cancel(&mut row, "me", now());
        let events = append(&mut row, Generation(1), &[released], now()).unwrap();
        assert_eq!((kinds(&events), row.lease_until), (vec!["released"], lease));
        assert!(renew(&mut row, &worker, Generation(1), LEASE, now()));
    }
}
