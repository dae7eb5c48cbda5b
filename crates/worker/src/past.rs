//! A job's log with what came before it: a fork of a task goes on from the log of another job, as if
//! both were one. Numbers count on from one log to the next.

use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::JobSpec;
use bellglass_store::{Store, StoreError};

/// Forks of forks that are followed.
const DEEPEST: usize = 64;

/// The logs before a job's own, the oldest first, each with how far it was heard.
#[derive(Clone, Debug, Default)]
pub struct Past(Vec<(JobId, u64)>);

/// An event, and where it really stands.
pub struct Placed {
    pub event: Event,
    pub job: JobId,
    pub seq: u64,
}

impl Past {
    /// Follows a fork back to where it all began.
    pub(crate) async fn of(store: &dyn Store, spec: &JobSpec) -> Result<Self, StoreError> {
        let mut logs = Vec::new();
        let mut fork = spec.fork;
        while let Some(next) = fork
            && let Some(heard) = next.heard
            && logs.len() < DEEPEST
        {
            logs.push((next.job, heard));
            let first = store.events_after(next.job, 0, 1).await?;
            fork = first.into_iter().find_map(|sealed| match sealed.event.body {
                EventBody::Scheduled { spec } => spec.fork,
                _ => None,
            });
        }
        logs.reverse();
        Ok(Self(logs))
    }

    /// The same for a job of which only the id is known.
    pub async fn of_job(store: &dyn Store, job: JobId) -> Result<Self, StoreError> {
        let first = store.events_after(job, 0, 1).await?;
        match first.first().map(|sealed| &sealed.event.body) {
            Some(EventBody::Scheduled { spec }) => Self::of(store, spec).await,
            _ => Ok(Self::default()),
        }
    }

    /// How many events came before the first of the job's own.
    pub(crate) fn events(&self) -> u64 {
        self.0.iter().map(|(_, heard)| heard).sum()
    }

    /// The jobs whose logs these are.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.0.iter().map(|(job, _)| *job)
    }

    /// Events after a number, in order, at most `limit`; none only at the end.
    pub async fn events_after(
        &self,
        store: &dyn Store,
        own: JobId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Placed>, StoreError> {
        let mut before = 0;
        let logs = self.0.iter().copied().chain([(own, u64::MAX)]);
        for (job, heard) in logs {
            if after >= before + heard.min(u64::MAX - before) {
                before += heard;
                continue;
            }
            let page = store.events_after(job, after - before, limit).await?;
            let page = page.into_iter().filter(|sealed| sealed.event.seq <= heard);
            let placed: Vec<Placed> = page
                .map(|sealed| {
                    let seq = sealed.event.seq;
                    Placed { event: Event { seq: before + seq, ..sealed.event }, job, seq }
                })
                .collect();
            if !placed.is_empty() || job == own {
                return Ok(placed);
            }
            before += heard;
        }
        Ok(Vec::new())
    }
}
