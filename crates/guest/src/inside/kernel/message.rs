//! Messages of the Jupyter protocol: signed on the way out, read on the way in.

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Whose messages these are.
pub(super) struct Signer {
    pub(super) key: String,
    session: String,
    next: u64,
}

/// A message of a kernel, as far as anybody here looks at it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: String,
    /// The id of the request that it answers.
    pub(super) parent: String,
    pub(super) content: Value,
}

impl Signer {
    pub(super) fn new(key: String) -> Self {
        Self { session: key.chars().take(16).collect(), key, next: 0 }
    }

    /// A request and its id.
    pub(super) fn request(&mut self, kind: &str, content: &Value) -> (String, Vec<Bytes>) {
        self.next += 1;
        let id = format!("{}-{}", self.session, self.next);
        let header = json!({
            "msg_id": id, "session": self.session, "username": "agent", "msg_type": kind,
            "version": "5.3", "date": "1970-01-01T00:00:00Z",
        });
        let parts = [header.to_string(), "{}".into(), "{}".into(), content.to_string()];
        let signature = self.signature(parts.iter().map(String::as_bytes));
        let mut message = vec![Bytes::from_static(DELIMITER), signature.into()];
        message.extend(parts.map(Bytes::from));
        (id, message)
    }

    /// Reads a message; nothing if it is not one, or not from this kernel.
    pub(super) fn read(&self, parts: &[Bytes]) -> Option<Message> {
        let start = parts.iter().position(|part| part.as_ref() == DELIMITER)? + 1;
        let [signature, header, parent, metadata, content, ..] = parts.get(start..)? else {
            return None;
        };
        let signed = [header, parent, metadata, content].map(|part| part.as_ref());
        if self.signature(signed.into_iter()).as_bytes() != signature.as_ref() {
            return None;
        }
        let header: Value = serde_json::from_slice(header).ok()?;
        let parent: Value = serde_json::from_slice(parent).ok()?;
        Some(Message {
            kind: header["msg_type"].as_str()?.into(),
            parent: parent["msg_id"].as_str().unwrap_or_default().into(),
            content: serde_json::from_slice(content).ok()?,
        })
    }

    fn signature<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()) else {
            return String::new();
        };
        parts.for_each(|part| mac.update(part));
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_signed_is_read() {
        let mut signer = Signer::new("secret".into());
        let (id, mut parts) = signer.request("execute_request", &json!({"code": "1"}));
        parts[3] = Bytes::from(format!(r#"{{"msg_id":"{id}"}}"#));
        assert!(signer.read(&parts).is_none());
        let (_, mut parts) = signer.request("status", &json!({"execution_state": "idle"}));
        parts.insert(0, Bytes::from_static(b"kernel.status"));
        let read = signer.read(&parts).unwrap();
        assert_eq!((read.kind.as_str(), read.parent.as_str()), ("status", ""));
        assert_eq!(read.content["execution_state"], "idle");
        assert!(Signer::new("other".into()).read(&parts).is_none());
    }

    #[test]
    fn the_signature_is_the_standards() {
        // RFC 4231, test case 2.
        let signer = Signer::new("Jefe".into());
        let signature = signer.signature([&b"what do ya want "[..], b"for nothing?"].into_iter());
        assert!(signature.starts_with("5bdcc146bf60754e6a042426089575c7"), "{signature}");
    }
}
