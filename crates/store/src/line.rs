//! Reads a stored line back as the event it is. Trusts the database; the `Verifier` does not.

use bellglass_protocol::chain::{LinkHash, SealedEvent};
use bellglass_protocol::id::JobId;

use crate::StoreError;

/// The event of a line, with the hash that the line carries.
pub(crate) fn read_line(job: JobId, line: String) -> Result<SealedEvent, StoreError> {
    let event = serde_json::from_str(&line).map_err(|error| {
        StoreError::Corrupt(format!("job {job} has a line that is not an event: {error}"))
    })?;
    let hash = hash_at_end(&line)
        .ok_or_else(|| StoreError::Corrupt(format!("job {job} has a line without a hash")))?;
    Ok(SealedEvent { event, line, hash })
}

/// The hash is always the last field, so it is found without reading the JSON a second time.
pub(crate) fn hash_at_end(line: &str) -> Option<LinkHash> {
    let text = line.strip_suffix("\"}")?;
    let (_, digits) = text.rsplit_once('"')?;
    let digits = digits.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    LinkHash::from_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::chain::seal;
    use bellglass_protocol::event::{Event, EventBody};
    use jiff::Timestamp;

    #[test]
    fn a_sealed_line_reads_back_whole() {
        let job = JobId::generate();
        let body = EventBody::SandboxLost { reason: "\"} tricky \"".into(), kept: None };
        let event = Event { seq: 1, at: Timestamp::UNIX_EPOCH, job, body };
        let sealed = seal(event, LinkHash::root(job));
        let read = read_line(job, sealed.line.clone()).unwrap();
        assert_eq!((read.event, read.line, read.hash), (sealed.event, sealed.line, sealed.hash));
    }

    #[test]
    fn a_damaged_line_is_said_to_be_corrupt() {
        let job = JobId::generate();
        for bad in ["", "{}", "not json", "{\"hash\":\"12\"}"] {
            assert!(matches!(read_line(job, bad.into()), Err(StoreError::Corrupt(_))), "{bad}");
        }
    }
}
