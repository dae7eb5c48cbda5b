//! The hash chain: each event's line carries the hash of the line before it, and its own.
//!
//! A line is JSON text. Its hash is SHA-256 over the exact text without the `hash` field, which is
//! always last, so a log can be checked from the file alone, byte for byte, years later.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event::Event;
use crate::id::JobId;

/// What links one event to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkHash([u8; 32]);

impl LinkHash {
    /// Where a job's chain begins. It depends on the job, so no event fits into another's log.
    pub fn root(job: JobId) -> Self {
        Self::of(format!("bellglass job {job}").as_bytes())
    }

    pub(crate) fn of(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

/// An event with its exact line of text and its place in the chain.
#[derive(Clone, Debug)]
pub struct SealedEvent {
    pub event: Event,
    /// The line, hash included, without a line break.
    pub line: String,
    pub hash: LinkHash,
}

const HASH_FIELD: &str = ",\"hash\":\"";

/// Puts an event behind `previous`.
pub fn seal(event: Event, previous: LinkHash) -> SealedEvent {
    let (line, hash) = seal_line(&event, previous);
    SealedEvent { event, line, hash }
}

/// The line of anything that stands in a chain, and its hash.
pub(crate) fn seal_line(content: &impl Serialize, previous: LinkHash) -> (String, LinkHash) {
    #[derive(Serialize)]
    struct Line<'a, T> {
        #[serde(flatten)]
        content: &'a T,
        prev: String,
    }
    let mut line = serde_json::to_string(&Line { content, prev: previous.hex() })
        .expect("an event is always writable as JSON");
    let hash = LinkHash::of(line.as_bytes());
    line.pop();
    line.push_str(HASH_FIELD);
    line.push_str(&hash.hex());
    line.push_str("\"}");
    (line, hash)
}

/// What a line whose text matches its hash says of its place in the chain.
pub(crate) struct CheckedLink {
    /// The hash that it gives as the one of the line before it.
    pub(crate) previous: String,
    pub(crate) hash: LinkHash,
}

/// Whether a line matches the hash that it carries, whatever it says. Where it stands in a log is not looked at.
pub fn is_as_written(line: &str) -> bool {
    checked_link(line, 0).is_ok()
}

pub(crate) fn checked_link(text: &str, line: u64) -> Result<CheckedLink, ChainError> {
    #[derive(Deserialize)]
    struct Seal {
        prev: String,
        hash: String,
    }
    let seal: Seal = serde_json::from_str(text)
        .map_err(|error| ChainError::NotAnEvent { line, reason: error.to_string() })?;
    let ending = format!("{HASH_FIELD}{}\"}}", seal.hash);
    let body = text.strip_suffix(&ending).ok_or(ChainError::Altered { line })?;
    let mut hasher = Sha256::new();
    hasher.update(body.as_bytes());
    hasher.update(b"}");
    let hash = LinkHash(hasher.finalize().into());
    match hash.hex() == seal.hash {
        true => Ok(CheckedLink { previous: seal.prev, hash }),
        false => Err(ChainError::Altered { line }),
    }
}

/// What is wrong with a log.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ChainError {
    #[error("line {line}: not an event: {reason}")]
    NotAnEvent { line: u64, reason: String },
    #[error("line {line}: the text does not match its hash; it was changed after it was written")]
    Altered { line: u64 },
    #[error("line {line}: does not follow the line before it; a line was removed, added or moved")]
    Broken { line: u64 },
    #[error("the end is missing: {lines} lines are here, and {written} were written")]
    Shortened { lines: u64, written: u64 },
    #[error("the log is empty")]
    Empty,
}

/// Checks a log line by line.
pub struct Verifier {
    job: Option<JobId>,
    previous: Option<LinkHash>,
    lines: u64,
}

impl Verifier {
    /// Checks the log of `job`, or of whichever job the first line names.
    pub fn new(job: Option<JobId>) -> Self {
        Self { job, previous: job.map(LinkHash::root), lines: 0 }
    }

    /// Takes the next line and returns its event if all is well up to here.
    pub fn line(&mut self, text: &str) -> Result<Event, ChainError> {
        self.lines += 1;
        let line = self.lines;
        let event: Event = serde_json::from_str(text)
            .map_err(|error| ChainError::NotAnEvent { line, reason: error.to_string() })?;
        let link = checked_link(text, line)?;

        let job = *self.job.get_or_insert(event.job);
        let previous = self.previous.unwrap_or_else(|| LinkHash::root(job));
        if event.job != job || event.seq != line || previous.hex() != link.previous {
            return Err(ChainError::Broken { line });
        }
        self.previous = Some(link.hash);
        Ok(event)
    }

    /// The hash of the last line that was right.
    pub fn last_hash(&self) -> Option<String> {
        self.previous.filter(|_| self.lines > 0).map(|hash| hash.hex())
    }

    /// How many lines were right, and the hash of the last: naming it elsewhere pins the whole log.
    pub fn finish(self) -> Result<(u64, String), ChainError> {
        match self.previous {
            Some(hash) if self.lines > 0 => Ok((self.lines, hash.hex())),
            _ => Err(ChainError::Empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventBody;
    use jiff::Timestamp;

    fn log(job: JobId) -> Vec<String> {
        let mut previous = LinkHash::root(job);
        (1..=4)
            .map(|seq| {
                let body = EventBody::SandboxLost { reason: format!("reason {seq}"), kept: None };
                let sealed = seal(Event { seq, at: Timestamp::UNIX_EPOCH, job, body }, previous);
                previous = sealed.hash;
                sealed.line
            })
            .collect()
    }

    fn check(job: JobId, lines: &[String]) -> Result<(u64, String), ChainError> {
        let mut verifier = Verifier::new(Some(job));
        for line in lines {
            verifier.line(line)?;
        }
        verifier.finish()
    }

    #[test]
    fn an_honest_log_is_right() {
        let job = JobId::generate();
        assert_eq!(check(job, &log(job)).unwrap().0, 4);
    }

    #[test]
    fn every_kind_of_tampering_is_found() {
        let job = JobId::generate();
        let honest = log(job);

        let mut altered = honest.clone();
        altered[1] = altered[1].replace("reason 2", "reason X");
        assert_eq!(check(job, &altered), Err(ChainError::Altered { line: 2 }));
        assert_eq!([&honest, &altered].map(|log| is_as_written(&log[1])), [true, false]);

        let mut removed = honest.clone();
        removed.remove(1);
        assert_eq!(check(job, &removed), Err(ChainError::Broken { line: 2 }));

        let mut swapped = honest.clone();
        swapped.swap(1, 2);
        assert_eq!(check(job, &swapped), Err(ChainError::Broken { line: 2 }));

        let mut spaced = honest.clone();
        spaced[0] = spaced[0].replacen(':', ": ", 1);
        assert_eq!(check(job, &spaced), Err(ChainError::Altered { line: 1 }));

        assert_eq!(check(JobId::generate(), &honest), Err(ChainError::Broken { line: 1 }));
        assert_eq!(check(job, &[]), Err(ChainError::Empty));
        assert!(matches!(
            check(job, &["{}".to_string()]),
            Err(ChainError::NotAnEvent { line: 1, .. })
        ));
    }
}
