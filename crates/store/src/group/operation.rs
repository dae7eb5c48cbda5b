//! What callers ask of a store's writer, each with the way back to its caller.

use std::time::Duration;

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::view::JobStatus;
use tokio::sync::oneshot;

use crate::access::AccessChange;
use crate::audit::Wanted;
use crate::index::IndexRow;
use crate::memory::{Memory, MemoryChange};
use crate::{Steering, StoreError};

/// One thing for the writer to do.
#[derive(Debug)]
pub(crate) enum Operation {
    Schedule(Pending<Box<NewJob>, ()>),
    Append(Pending<Append, Vec<SealedEvent>>),
    Cancel(Pending<Cancel, JobStatus>),
    Steer(Pending<Steer, JobStatus>),
    ChangeNetwork(Pending<ChangeNetwork, JobStatus>),
    Renew(Pending<Renew, Vec<JobId>>),
    Release(Pending<Release, ()>),
    Claim(Pending<Claim, Option<(JobId, Generation)>>),
    ClaimOwn(Pending<ClaimOwn, Option<Generation>>),
    Memory(Pending<Wanted<MemoryChange>, Option<Memory>>),
    Access(Pending<Wanted<AccessChange>, bool>),
    /// Keeps others from going on from a job that has ended.
    Retire(Pending<JobId, bool>),
    /// Removes a job that has ended.
    Forget(Pending<JobId, bool>),
    /// Ends the writer. Answered when it has let go of the database.
    Close(oneshot::Sender<()>),
}

/// A request, and its answer once there is one.
///
/// The answer waits here until the transaction is committed: nobody hears of what might still be
/// rolled back.
#[derive(Debug)]
pub(crate) struct Pending<Q, A> {
    pub(crate) request: Q,
    pub(crate) answer: Option<Result<A, StoreError>>,
    reply: oneshot::Sender<Result<A, StoreError>>,
}

/// A job that is ready to be written: its row and its first line.
#[derive(Debug)]
pub(crate) struct NewJob {
    pub(crate) row: IndexRow,
    pub(crate) line: String,
}

#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
    pub(crate) bodies: Vec<EventBody>,
}

#[derive(Debug)]
pub(crate) struct Cancel {
    pub(crate) job: JobId,
    pub(crate) by: String,
}

#[derive(Debug)]
pub(crate) struct Steer {
    pub(crate) job: JobId,
    pub(crate) wish: Steering,
    pub(crate) by: String,
}

#[derive(Debug)]
pub(crate) struct ChangeNetwork {
    pub(crate) job: JobId,
    pub(crate) network: NetworkPolicy,
    pub(crate) by: String,
}

#[derive(Debug)]
pub(crate) struct Renew {
    pub(crate) worker: WorkerId,
    pub(crate) held: Vec<(JobId, Generation)>,
    pub(crate) lease: Duration,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) worker: WorkerId,
    pub(crate) lease: Duration,
}

/// The wish to take a certain job up again.
#[derive(Debug)]
pub(crate) struct ClaimOwn {
    pub(crate) worker: WorkerId,
    pub(crate) job: JobId,
    pub(crate) lease: Duration,
}

/// The end of all leases of a worker but those of the jobs that it keeps.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) worker: WorkerId,
    pub(crate) kept: Vec<JobId>,
}

impl<Q, A> Pending<Q, A> {
    pub(crate) fn new(request: Q) -> (Self, oneshot::Receiver<Result<A, StoreError>>) {
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
    pub(crate) fn deliver(self) {
        match self {
            Self::Schedule(pending) => pending.deliver(),
            Self::Append(pending) => pending.deliver(),
            Self::Cancel(pending) => pending.deliver(),
            Self::Steer(pending) => pending.deliver(),
            Self::ChangeNetwork(pending) => pending.deliver(),
            Self::Renew(pending) => pending.deliver(),
            Self::Release(pending) => pending.deliver(),
            Self::Claim(pending) => pending.deliver(),
            Self::ClaimOwn(pending) => pending.deliver(),
            Self::Memory(pending) => pending.deliver(),
            Self::Access(pending) => pending.deliver(),
            Self::Retire(pending) => pending.deliver(),
            Self::Forget(pending) => pending.deliver(),
            Self::Close(_) => {}
        }
    }

    /// Whether nobody waits for the answer any more. The end of the store is always waited for.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Schedule(pending) => pending.is_abandoned(),
            Self::Append(pending) => pending.is_abandoned(),
            Self::Cancel(pending) => pending.is_abandoned(),
            Self::Steer(pending) => pending.is_abandoned(),
            Self::ChangeNetwork(pending) => pending.is_abandoned(),
            Self::Renew(pending) => pending.is_abandoned(),
            Self::Release(pending) => pending.is_abandoned(),
            Self::Claim(pending) => pending.is_abandoned(),
            Self::ClaimOwn(pending) => pending.is_abandoned(),
            Self::Memory(pending) => pending.is_abandoned(),
            Self::Access(pending) => pending.is_abandoned(),
            Self::Retire(pending) => pending.is_abandoned(),
            Self::Forget(pending) => pending.is_abandoned(),
            Self::Close(_) => false,
        }
    }

    /// Replaces whatever was decided: the transaction did not happen.
    pub(crate) fn fail(&mut self, error: StoreError) {
        match self {
            Self::Schedule(pending) => pending.answer = Some(Err(error)),
            Self::Append(pending) => pending.answer = Some(Err(error)),
            Self::Cancel(pending) => pending.answer = Some(Err(error)),
            Self::Steer(pending) => pending.answer = Some(Err(error)),
            Self::ChangeNetwork(pending) => pending.answer = Some(Err(error)),
            Self::Renew(pending) => pending.answer = Some(Err(error)),
            Self::Release(pending) => pending.answer = Some(Err(error)),
            Self::Claim(pending) => pending.answer = Some(Err(error)),
            Self::ClaimOwn(pending) => pending.answer = Some(Err(error)),
            Self::Memory(pending) => pending.answer = Some(Err(error)),
            Self::Access(pending) => pending.answer = Some(Err(error)),
            Self::Retire(pending) => pending.answer = Some(Err(error)),
            Self::Forget(pending) => pending.answer = Some(Err(error)),
            Self::Close(_) => {}
        }
    }
}
