//! What the audit log says about changes that are no job's. Written in the transaction that makes the
//! change, so that neither can be had without the other.

use bellglass_protocol::audit::{AuditEntry, Deed, root, seal};
use bellglass_protocol::chain::LinkHash;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;

use crate::access::AccessChange;
use crate::memory::{Memory, MemoryChange};
use crate::{LogEnd, StoreError};

/// A change, and who wants it.
#[derive(Debug)]
pub(crate) struct Wanted<C> {
    pub(crate) by: String,
    pub(crate) change: C,
}

impl<C> Wanted<C> {
    pub(crate) fn by(by: &str, change: C) -> Self {
        Self { by: by.to_owned(), change }
    }
}

/// Something that was done, and by whom.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) by: String,
    pub(crate) deed: Deed,
}

impl Done {
    pub(crate) fn to_access(wanted: &Wanted<AccessChange>) -> Self {
        let deed = match &wanted.change {
            AccessChange::AddToken(token, _) => match &token.parent {
                Some(parent) => Deed::SessionBegun {
                    session: token.id.clone(),
                    token: parent.clone(),
                    user: token.user.clone(),
                },
                None => Deed::TokenCreated {
                    token: token.id.clone(),
                    user: token.user.clone(),
                    role: token.role.as_str().into(),
                    name: token.name.clone(),
                    expires_at: token.expires_at,
                },
            },
            AccessChange::RevokeToken { id } => Deed::TokenRevoked { token: id.clone() },
            AccessChange::KeepShareKey(job, _) => Deed::LinkMade { job: *job },
            AccessChange::DropShareKey(job) => Deed::LinksRevoked { job: *job },
        };
        Self { by: wanted.by.clone(), deed }
    }

    /// `None` for what a job keeps: that stands in its own log.
    pub(crate) fn to_memory(wanted: &Wanted<MemoryChange>, changed: &Memory) -> Option<Self> {
        let (memory, project) = (changed.id, changed.project.clone());
        let deed = match &wanted.change {
            MemoryChange::Add(new) if new.job.is_some() => return None,
            MemoryChange::Add(_) => Deed::MemoryAdded { memory, project },
            MemoryChange::Edit { .. } => Deed::MemoryEdited { memory, project },
            MemoryChange::Delete { .. } => Deed::MemoryDeleted { memory, project },
        };
        Some(Self { by: wanted.by.clone(), deed })
    }

    pub(crate) fn to_forget(job: JobId, LogEnd { seq, hash }: LogEnd) -> Self {
        let deed = Deed::JobForgotten { job, events: seq, last_hash: hash };
        Self { by: "retention".into(), deed }
    }
}

/// Where the audit log ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditEnd {
    pub(crate) seq: u64,
    pub(crate) hash: LinkHash,
}

impl AuditEnd {
    /// As the database has it. Before the first line there is no hash.
    pub(crate) fn read(seq: u64, hash: Option<&[u8]>) -> Result<Self, StoreError> {
        let hash = match hash {
            None => Some(root()),
            Some(bytes) => LinkHash::from_bytes(bytes),
        };
        let wrong = || StoreError::Corrupt("the end of the audit log has no hash".into());
        Ok(Self { seq, hash: hash.ok_or_else(wrong)? })
    }

    /// Puts what was done behind the end: the lines with their numbers.
    pub(crate) fn extend(&mut self, done: Vec<Done>, now: Timestamp) -> Vec<(u64, String)> {
        let lines = done.into_iter().map(|Done { by, deed }| {
            self.seq += 1;
            let entry = AuditEntry { seq: self.seq, at: now, by, deed };
            let (line, hash) = seal(&entry, self.hash);
            self.hash = hash;
            (self.seq, line)
        });
        lines.collect()
    }
}

impl From<AuditEnd> for LogEnd {
    fn from(end: AuditEnd) -> Self {
        Self { seq: end.seq, hash: end.hash.hex() }
    }
}
