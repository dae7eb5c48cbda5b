//! The audit log: what was done to the server as a whole, by whom, in one chain like those of jobs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::chain::{self, ChainError, LinkHash};
use crate::id::JobId;
use crate::unknown::UnknownRecord;

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Counts from 1 without gaps.
    pub seq: u64,
    pub at: Timestamp,
    /// A user; `user` where there are no users, `retention` for the program itself.
    pub by: String,
    #[serde(flatten)]
    pub deed: Deed,
}

/// What was done. No secret is ever in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Deed {
    #[serde(rename = "token.created")]
    TokenCreated {
        token: String,
        user: String,
        role: String,
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// Somebody logged in with a token.
    #[serde(rename = "session.begun")]
    SessionBegun { session: String, token: String, user: String },
    /// A token was taken back with its sessions, or a session was ended.
    #[serde(rename = "token.revoked")]
    TokenRevoked { token: String },
    #[serde(rename = "link.made")]
    LinkMade { job: JobId },
    /// All links to a job were taken back.
    #[serde(rename = "links.revoked")]
    LinksRevoked { job: JobId },
    /// Somebody wrote a memory by hand. What jobs keep stands in their own logs.
    #[serde(rename = "memory.added")]
    MemoryAdded { memory: i64, project: String },
    #[serde(rename = "memory.edited")]
    MemoryEdited { memory: i64, project: String },
    #[serde(rename = "memory.deleted")]
    MemoryDeleted { memory: i64, project: String },
    /// A job was removed with its log, which ended with this hash.
    #[serde(rename = "job.forgotten")]
    JobForgotten { job: JobId, events: u64, last_hash: String },
    /// Something that this program cannot read, because a newer one did it.
    #[serde(untagged)]
    Unknown(UnknownRecord),
}

/// Where the chain begins.
pub fn root() -> LinkHash {
    LinkHash::of(b"bellglass audit")
}

/// Puts an entry behind `previous`: its line, and the hash for the next one.
pub fn seal(entry: &AuditEntry, previous: LinkHash) -> (String, LinkHash) {
    chain::seal_line(entry, previous)
}

/// Checks an audit log line by line.
pub struct AuditVerifier {
    previous: LinkHash,
    lines: u64,
}

impl Default for AuditVerifier {
    fn default() -> Self {
        Self { previous: root(), lines: 0 }
    }
}

impl AuditVerifier {
    /// Takes the next line and returns its entry if all is well up to here.
    pub fn line(&mut self, text: &str) -> Result<AuditEntry, ChainError> {
        self.lines += 1;
        let line = self.lines;
        let entry: AuditEntry = serde_json::from_str(text)
            .map_err(|error| ChainError::NotAnEvent { line, reason: error.to_string() })?;
        let link = chain::checked_link(text, line)?;
        if entry.seq != line || link.previous != self.previous.hex() {
            return Err(ChainError::Broken { line });
        }
        self.previous = link.hash;
        Ok(entry)
    }

    /// The hash of the last line that was right.
    pub fn last_hash(&self) -> String {
        self.previous.hex()
    }

    /// How many lines were right, and the hash of the last.
    pub fn finish(self) -> (u64, String) {
        (self.lines, self.previous.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<String> {
        let mut previous = root();
        (1..=3)
            .map(|seq| {
                let deed = Deed::MemoryDeleted { memory: seq as i64, project: "shop".into() };
                let entry = AuditEntry { seq, at: Timestamp::UNIX_EPOCH, by: "anna".into(), deed };
                let (line, hash) = seal(&entry, previous);
                previous = hash;
                line
            })
            .collect()
    }

    fn check(lines: &[String]) -> Result<(u64, String), ChainError> {
        let mut verifier = AuditVerifier::default();
        for line in lines {
            verifier.line(line)?;
        }
        Ok(verifier.finish())
    }

    #[test]
    fn what_was_changed_removed_or_moved_is_found() {
        let whole = log();
        assert_eq!(check(&whole).unwrap().0, 3);
        let mut altered = whole.clone();
        altered[1] = altered[1].replace("anna", "bob");
        assert_eq!(check(&altered), Err(ChainError::Altered { line: 2 }));
        assert_eq!(check(&whole[1..]), Err(ChainError::Broken { line: 1 }));
        let moved = [whole[0].clone(), whole[2].clone(), whole[1].clone()];
        assert_eq!(check(&moved), Err(ChainError::Broken { line: 2 }));
    }
}
