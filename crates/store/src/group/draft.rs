//! What a transaction is going to write, as the rules decide it operation by operation. Knows no
//! database: each writes it in its own way.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::id::{Generation, JobId};
use jiff::Timestamp;

use super::operation::{Claim, Operation, Pending, Release};
use crate::index::IndexRow;
use crate::{Change, StoreError, rules};

/// A line of a job's log on its way into the database.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) job: JobId,
    pub(crate) seq: u64,
    pub(crate) text: String,
}

/// The jobs concerned as they are going to stand, and the lines to add.
pub(crate) struct Draft {
    rows: HashMap<JobId, IndexRow>,
    /// Rows that differ from the database. In order, so that neighbours lie on one page.
    unwritten: BTreeSet<JobId>,
    lines: Vec<Line>,
    /// Jobs with new events, of which listeners are told.
    told: BTreeSet<JobId>,
}

impl Draft {
    pub(crate) fn of(rows: Vec<IndexRow>) -> Self {
        Self {
            rows: rows.into_iter().map(|row| (row.id, row)).collect(),
            unwritten: BTreeSet::new(),
            lines: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Decides one operation and leaves the answer in it. Those that look at all jobs, claiming
    /// and releasing, are not decided here.
    pub(crate) fn decide(&mut self, operation: &mut Operation, now: Timestamp) {
        match operation {
            Operation::Schedule(pending) => {
                let new = &pending.request;
                pending.answer = Some(self.may_go_on_from(new.row.forked_from));
                if let Some(Ok(())) = pending.answer {
                    let text = new.line.clone();
                    self.lines.push(Line { job: new.row.id, seq: new.row.last_seq, text });
                    self.changed(new.row.id);
                    self.rows.insert(new.row.id, new.row.clone());
                }
            }
            Operation::Append(pending) => {
                let request = &pending.request;
                let appended = self
                    .row(request.job)
                    .and_then(|row| rules::append(row, request.generation, &request.bodies, now));
                if let Ok(events) = &appended {
                    self.add_lines(events);
                }
                pending.answer = Some(appended);
            }
            Operation::Cancel(pending) => {
                let request = &pending.request;
                let cancelled = self.row(request.job).map(|row| {
                    let events = rules::request_cancel(row, &request.by, now);
                    (row.status, events)
                });
                pending.answer = Some(cancelled.map(|(status, events)| {
                    self.add_lines(&events);
                    status
                }));
            }
            Operation::Steer(pending) => {
                let request = &pending.request;
                let steered = self.row(request.job).and_then(|row| {
                    let event = rules::steer(row, &request.wish, &request.by, now)?;
                    Ok((row.status, event))
                });
                pending.answer = Some(steered.map(|(status, event)| {
                    self.add_lines(event.as_slice());
                    status
                }));
            }
            Operation::ChangeNetwork(pending) => {
                let request = &pending.request;
                let changed = self.row(request.job).and_then(|row| {
                    let event = rules::change_network(row, &request.network, &request.by, now)?;
                    Ok((row.status, event))
                });
                pending.answer = Some(changed.map(|(status, event)| {
                    self.add_lines(&[event]);
                    status
                }));
            }
            Operation::Renew(pending) => {
                let request = &pending.request;
                let mut lost = Vec::new();
                for &(job, generation) in &request.held {
                    let renewed = self.row(job).is_ok_and(|row| {
                        rules::renew(row, &request.worker, generation, request.lease, now)
                    });
                    if renewed {
                        self.unwritten.insert(job);
                    } else {
                        lost.push(job);
                    }
                }
                pending.answer = Some(Ok(lost));
            }
            Operation::ClaimOwn(pending) if !pending.is_abandoned() => {
                let request = &pending.request;
                let own = self.rows.get_mut(&request.job).filter(|row| {
                    !row.status.is_terminal() && row.worker.as_ref() == Some(&request.worker)
                });
                let claimed = own.map(|row| {
                    let event = rules::claim(row, &request.worker, request.lease, now);
                    (row.generation, event)
                });
                pending.answer = Some(Ok(claimed.map(|(generation, event)| {
                    self.add_lines(&[event]);
                    generation
                })));
            }
            Operation::ClaimOwn(_)
            | Operation::Release(_)
            | Operation::Claim(_)
            | Operation::Memory(_)
            | Operation::Access(_)
            | Operation::Retire(_)
            | Operation::Forget(_)
            | Operation::Close(_) => {}
        }
    }

    /// What a job goes on from must stay until the job has ended, so it must not be on its way out.
    fn may_go_on_from(&self, parent: Option<JobId>) -> Result<(), StoreError> {
        let Some(parent) = parent else { return Ok(()) };
        let is_there = self.rows.get(&parent).is_some_and(|row| !row.retired);
        if is_there { Ok(()) } else { Err(StoreError::NotFound(parent)) }
    }

    /// Ends all leases of a worker, as far as the rows of its jobs are here.
    pub(crate) fn release(&mut self, Release { worker, kept }: &Release) {
        for row in self.rows.values_mut() {
            let is_held = !row.status.is_terminal() && row.worker.as_ref() == Some(worker);
            if is_held && !kept.contains(&row.id) {
                row.lease_until = Some(rules::GIVEN_BACK);
                self.unwritten.insert(row.id);
            }
        }
    }

    /// Hands the best jobs to those who ask, in the order in which they asked.
    pub(crate) fn claim(
        &mut self,
        operations: &mut [Operation],
        best: Vec<IndexRow>,
        now: Timestamp,
    ) {
        let mut best = best.into_iter();
        for pending in claims(operations) {
            let claimed = best.next().map(|mut row| {
                let request = &pending.request;
                let event = rules::claim(&mut row, &request.worker, request.lease, now);
                let taken = (row.id, row.generation);
                self.rows.insert(row.id, row);
                self.add_lines(std::slice::from_ref(&event));
                taken
            });
            pending.answer = Some(Ok(claimed));
        }
    }

    /// Rows and lines that are not in the database yet. Whoever asks writes them.
    pub(crate) fn take_unwritten(&mut self) -> (Vec<&IndexRow>, Vec<Line>) {
        let unwritten = std::mem::take(&mut self.unwritten);
        let rows = unwritten.iter().filter_map(|job| self.rows.get(job)).collect();
        (rows, std::mem::take(&mut self.lines))
    }

    /// What listeners are to be told once it is committed.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.told.iter().filter_map(|job| self.rows.get(job)).map(IndexRow::change).collect()
    }

    fn row(&mut self, job: JobId) -> Result<&mut IndexRow, StoreError> {
        self.rows.get_mut(&job).ok_or(StoreError::NotFound(job))
    }

    fn changed(&mut self, job: JobId) {
        self.unwritten.insert(job);
        self.told.insert(job);
    }

    fn add_lines(&mut self, events: &[SealedEvent]) {
        for SealedEvent { event, line, .. } in events {
            self.changed(event.job);
            self.lines.push(Line { job: event.job, seq: event.seq, text: line.clone() });
        }
    }
}

/// Those who ask for a job and still wait for it: nobody would work on one whose claimer has gone.
fn claims(
    operations: &mut [Operation],
) -> impl Iterator<Item = &mut Pending<Claim, Option<(JobId, Generation)>>> {
    operations.iter_mut().filter_map(|operation| match operation {
        Operation::Claim(pending) if !pending.is_abandoned() => Some(pending),
        _ => None,
    })
}

/// How many ask for a job.
pub(crate) fn count_claims(operations: &mut [Operation]) -> usize {
    claims(operations).count()
}

/// The longest lease that somebody asks for with a job.
pub(crate) fn longest_claimed_lease(operations: &mut [Operation]) -> Option<Duration> {
    claims(operations).map(|pending| pending.request.lease).max()
}

/// The jobs that the operations are about, as far as they say.
pub(crate) fn jobs_named_by(operations: &[Operation]) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for operation in operations {
        match operation {
            Operation::Append(pending) => jobs.push(pending.request.job),
            Operation::Cancel(pending) => jobs.push(pending.request.job),
            Operation::Steer(pending) => jobs.push(pending.request.job),
            Operation::ChangeNetwork(pending) => jobs.push(pending.request.job),
            Operation::Renew(pending) => {
                jobs.extend(pending.request.held.iter().map(|(job, _)| *job));
            }
            Operation::Schedule(pending) => jobs.extend(pending.request.row.forked_from),
            Operation::Retire(pending) => jobs.push(pending.request),
            Operation::ClaimOwn(pending) => jobs.push(pending.request.job),
            Operation::Release(_)
            | Operation::Claim(_)
            | Operation::Memory(_)
            | Operation::Access(_)
            | Operation::Forget(_)
            | Operation::Close(_) => {}
        }
    }
    jobs
}
