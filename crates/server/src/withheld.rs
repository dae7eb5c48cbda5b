//! What a link leaves out of what a job was asked to do.
//!
//! The request stands in the job and in its first event, with the files that came along whole, and with
//! whatever keys its MCP servers are given. Guests see it without them.

use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::job::JobSpec;
use serde_json::{Map, Value};

use crate::caller::Caller;
use crate::rights::JobRight;

/// What is blank for a guest, beside the ways to MCP servers, which always are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withheld {
    /// The contents of files.
    files: bool,
}

impl Withheld {
    /// What is not for somebody to see; nothing is kept from those who have a token.
    pub(crate) fn from(caller: &Caller) -> Option<Self> {
        match caller {
            Caller::Guest { .. } => Some(Self { files: !caller.has_for_jobs(JobRight::Files) }),
            Caller::Nobody
            | Caller::Operator { .. }
            | Caller::Vouched { .. }
            | Caller::Holder { .. } => None,
        }
    }

    /// Blanks it. What there is can still be seen: names, programs, variables.
    pub(crate) fn blank(self, spec: &mut JobSpec) {
        if self.files {
            spec.files.iter_mut().for_each(|file| file.content.clear());
        }
        for server in spec.mcp.values_mut() {
            // Keys are given as arguments, too.
            server.command.truncate(1);
            server.env.values_mut().for_each(String::clear);
            if let Some(url) = &mut server.url {
                url.clear();
            }
        }
    }

    /// The line of an event. One that something was taken out of keeps its hash, which links the next line
    /// to it, but no longer matches it.
    pub(crate) fn line(self, sealed: SealedEvent) -> String {
        let spec = match &sealed.event.body {
            EventBody::Scheduled { spec } => {
                let mut shown = spec.clone();
                self.blank(&mut shown);
                serde_json::to_value(shown).unwrap_or_default()
            }
            // Of a request that cannot be read, nobody knows what is to be kept back.
            unread if unread.kind() == "scheduled" => Value::Null,
            _ => return sealed.line,
        };
        let whole: Map<String, Value> = serde_json::from_str(&sealed.line).unwrap_or_default();
        let mut line = whole.clone();
        line.insert("spec".into(), spec);
        // What a newer program wrote beside that may be a key as well as anything.
        line.retain(|key, _| LINE.contains(&key.as_str()));
        if line == whole { sealed.line } else { Value::Object(line).to_string() }
    }
}

/// All that the line of a request has.
const LINE: [&str; 7] = ["seq", "at", "job", "type", "spec", "prev", "hash"];

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::chain::{LinkHash, seal};
    use bellglass_protocol::event::Event;
    use bellglass_protocol::id::JobId;
    use bellglass_protocol::job::Limits;
    use jiff::Timestamp;
    use serde_json::json;

    fn sealed(body: Value) -> SealedEvent {
        let job = JobId::generate();
        let body = serde_json::from_value(body).unwrap();
        seal(Event { seq: 1, at: Timestamp::UNIX_EPOCH, job, body }, LinkHash::root(job))
    }

    #[test]
    fn a_request_that_only_a_newer_program_can_read_is_kept_back_whole() {
        let sealed = sealed(json!({ "type": "scheduled", "spec": 7, "key": "hush-hush" }));
        assert!(matches!(sealed.event.body, EventBody::Unknown(_)), "{sealed:?}");
        let hash = sealed.hash.hex();
        let line = Withheld { files: false }.line(sealed);
        assert!(!line.contains("hush-hush") && line.contains(&hash), "{line}");
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["type"], &line["spec"]), (&json!("scheduled"), &Value::Null));
    }

    #[test]
    fn what_only_a_newer_program_knows_of_a_request_is_kept_back() {
        let spec = json!({
            "steps": [{ "tool": "shell", "command": "true" }], "on_error": "continue", "priority": 0,
            "image": "base", "limits": Limits::default(), "network": "none", "isolation": "namespace",
        });
        let plain = sealed(json!({ "type": "scheduled", "spec": spec }));
        assert!(matches!(plain.event.body, EventBody::Scheduled { .. }), "{plain:?}");
        // As it was written down by a program that knows one field more.
        let mut written: Value = serde_json::from_str(&plain.line).unwrap();
        written["spec"]["webhook"] = json!({ "token": "hush-hush" });
        written["beside"] = json!("hush-hush");
        let newer = SealedEvent { line: written.to_string(), ..plain.clone() };
        let line = Withheld { files: false }.line(newer);
        assert!(!line.contains("hush-hush"), "{line}");
        // Where there is nothing of the kind, the line is the one that the hash was made of.
        let whole = plain.line.clone();
        assert_eq!(Withheld { files: false }.line(plain), whole);
    }

    #[test]
    fn all_other_lines_stay_as_they_are() {
        let sealed = sealed(json!({ "type": "model.said", "text": "spec" }));
        let line = sealed.line.clone();
        assert_eq!(Withheld { files: true }.line(sealed), line);
    }
}
