//! What callers ask of the writer, each with the way back to its caller.

use std::time::Duration;

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::JobStatus;
use tokio::sync::oneshot;

use super::access::AccessChange;
use super::memories::MemoryChange;
use crate::index::IndexRow;
use crate::memory::Memory;
use crate::{Steering, StoreError};

/// One thing for the writer to do.
#[derive(Debug)]
pub(super) enum Operation {
    Schedule(Pending<Box<NewJob>, ()>),
    Append(Pending<Append, Vec<SealedEvent>>),
    Cancel(Pending<Cancel, JobStatus>),
    Steer(Pending<Steer, JobStatus>),
    ChangeNetwork(Pending<ChangeNetwork, JobStatus>),
    Renew(Pending<Renew, Vec<JobId>>),
    Release(Pending<WorkerId, ()>),
    Claim(Pending<Claim, Option<(JobId, Generation)>>),
    Memory(Pending<MemoryChange, Option<Memory>>),
    Access(Pending<AccessChange, bool>),
    /// Ends the writer. Answered when the file is free.
    Close(oneshot::Sender<()>),
}

/// A request, and its answer once there is one.
///
/// The answer waits here until the transaction is committed: nobody hears of what might still be
/// rolled back.
#[derive(Debug)]
pub(super) struct Pending<Q, A> {
    pub(super) request: Q,
    pub(super) answer: Option<Result<A, StoreError>>,
    reply: oneshot::Sender<Result<A, StoreError>>,
}

/// A job that is ready to be written: its row and its first line.
#[derive(Debug)]
pub(super) struct NewJob {
    pub(super) row: IndexRow,
    pub(super) line: String,
}

#[derive(Debug)]
pub(super) struct Append {
    pub(super) job: JobId,
    pub(super) generation: Generation,
    pub(super) bodies: Vec<EventBody>,
}

#[derive(Debug)]
pub(super) struct Cancel {
    pub(super) job: JobId,
    pub(super) by: String,
}

#[derive(Debug)]
pub(super) struct Steer {
    pub(super) job: JobId,
    pub(super) wish: Steering,
    pub(super) by: String,
}

#[derive(Debug)]
pub(super) struct ChangeNetwork {
    pub(super) job: JobId,
    pub(super) network: NetworkPolicy,
    pub(super) by: String,
}

#[derive(Debug)]
pub(super) struct Renew {
    pub(super) worker: WorkerId,
    pub(super) held: Vec<(JobId, Generation)>,
    pub(super) lease: Duration,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) worker: WorkerId,
    pub(super) lease: Duration,
}

impl<Q, A> Pending<Q, A> {
    pub(super) fn new(request: Q) -> (Self, oneshot::Receiver<Result<A, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { request, answer: None, reply }, answer)
    }

    /// Whether the caller has gone away.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn deliver(self) {
        if let Some(answer) = self.answer {
            // A caller that went away does not want to know.
            let _ = self.reply.send(answer);
        }
    }
}

impl Operation {
    /// Tells the caller what the transaction decided.
    pub(super) fn deliver(self) {
        match self {
            Self::Schedule(pending) => pending.deliver(),
            Self::Append(pending) => pending.deliver(),
            Self::Cancel(pending) => pending.deliver(),
            Self::Steer(pending) => pending.deliver(),
            Self::ChangeNetwork(pending) => pending.deliver(),
            Self::Renew(pending) => pending.deliver(),
            Self::Release(pending) => pending.deliver(),
            Self::Claim(pending) => pending.deliver(),
            Self::Memory(pending) => pending.deliver(),
            Self::Access(pending) => pending.deliver(),
            Self::Close(_) => {}
        }
    }

    /// Replaces whatever was decided: the transaction did not happen.
    pub(super) fn fail(&mut self, error: StoreError) {
        match self {
            Self::Schedule(pending) => pending.answer = Some(Err(error)),
            Self::Append(pending) => pending.answer = Some(Err(error)),
            Self::Cancel(pending) => pending.answer = Some(Err(error)),
            Self::Steer(pending) => pending.answer = Some(Err(error)),
            Self::ChangeNetwork(pending) => pending.answer = Some(Err(error)),
            Self::Renew(pending) => pending.answer = Some(Err(error)),
            Self::Release(pending) => pending.answer = Some(Err(error)),
            Self::Claim(pending) => pending.answer = Some(Err(error)),
            Self::Memory(pending) => pending.answer = Some(Err(error)),
            Self::Access(pending) => pending.answer = Some(Err(error)),
            Self::Close(_) => {}
        }
    }
}
