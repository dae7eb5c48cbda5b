//! What a transaction is going to write, as the rules decide it operation by operation.

use std::collections::{BTreeSet, HashMap};

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::operation::Operation;
use super::rows::{self, Line};
use crate::index::IndexRow;
use crate::{Change, StoreError, rules};

/// The jobs concerned as they are going to stand, and the lines to add.
pub(super) struct Draft {
    rows: HashMap<JobId, IndexRow>,
    /// Rows that differ from the database. In order, so that neighbours lie on one page.
    unwritten: BTreeSet<JobId>,
    lines: Vec<Line>,
    /// Jobs with new events, of which listeners are told.
    told: BTreeSet<JobId>,
}

impl Draft {
    pub(super) fn of(rows: Vec<IndexRow>) -> Self {
        Self {
            rows: rows.into_iter().map(|row| (row.id, row)).collect(),
            unwritten: BTreeSet::new(),
            lines: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Decides one operation and leaves the answer in it. Those that look at all jobs, claiming
    /// and releasing, are not decided here.
    pub(super) fn decide(&mut self, operation: &mut Operation, now: Timestamp) {
        match operation {
            Operation::Schedule(pending) => {
                let new = &pending.request;
                let text = new.line.clone();
                self.lines.push(Line { job: new.row.id, seq: new.row.last_seq, text });
                self.changed(new.row.id);
                self.rows.insert(new.row.id, new.row.clone());
                pending.answer = Some(Ok(()));
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
            Operation::Release(_)
            | Operation::Claim(_)
            | Operation::Memory(_)
            | Operation::Access(_)
            | Operation::Close(_) => {}
        }
    }

    /// Takes in a job that was changed outside of [`decide`](Self::decide), with its new event.
    pub(super) fn put(&mut self, row: IndexRow, event: &SealedEvent) {
        self.rows.insert(row.id, row);
        self.add_lines(std::slice::from_ref(event));
    }

    /// Writes what is not written yet.
    pub(super) async fn write(
        &mut self,
        connection: &mut SqliteConnection,
    ) -> Result<(), StoreError> {
        let changed: Vec<_> = self.unwritten.iter().filter_map(|job| self.rows.get(job)).collect();
        rows::write_jobs(connection, &changed).await?;
        rows::write_lines(connection, std::mem::take(&mut self.lines)).await?;
        self.unwritten.clear();
        Ok(())
    }

    /// What listeners are to be told once it is committed.
    pub(super) fn changes(&self) -> Vec<Change> {
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
