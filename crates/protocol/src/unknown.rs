//! What a newer program wrote and this one cannot read: kept whole, passed on as it stands, acted on by
//! nobody here.
//!
//! Programs of two versions work on one database during an upgrade, so the older ones meet records of the
//! newer ones. Only what comes from the store is read like this; what a client sends is read strictly.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A record of a chain: of a kind that is new, or of one whose contents have become others.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = Object))]
#[serde(transparent)]
pub struct UnknownRecord(Map<String, Value>);

impl UnknownRecord {
    /// A record with these fields, of which `type` says what it is; `None` if it does not.
    pub fn new(mut fields: Map<String, Value>) -> Option<Self> {
        // The seal is the line's, and is made anew for another line.
        for sealing in ["prev", "hash"] {
            fields.remove(sealing);
        }
        fields.get("type").is_some_and(Value::is_string).then_some(Self(fields))
    }

    /// The word that stands under `type`.
    pub fn kind(&self) -> &str {
        word(&self.0, "type")
    }

    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl<'de> Deserialize<'de> for UnknownRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::deserialize(deserializer)?;
        Self::new(fields).ok_or_else(|| D::Error::missing_field("type"))
    }
}

/// A stored call of a tool that is new, or of one that has a field or a value that is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UnknownCall(Map<String, Value>);

impl UnknownCall {
    /// A call with these fields, of which `tool` says whose it is; `None` if it does not.
    pub fn new(fields: Map<String, Value>) -> Option<Self> {
        fields.get("tool").is_some_and(Value::is_string).then_some(Self(fields))
    }

    pub fn tool(&self) -> &str {
        word(&self.0, "tool")
    }
}

fn word<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{self, AuditEntry, AuditVerifier, Deed};
    use crate::chain::{LinkHash, SealedEvent, Verifier, seal};
    use crate::event::{Event, EventBody};
    use crate::id::JobId;
    use crate::job::Work;
    use crate::request::JobRequest;
    use crate::step::StepStatus;
    use crate::tool::ToolCall;
    use crate::view::{JobStatus, JobView};
    use jiff::Timestamp;
    use serde_json::json;

    const JOB: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn job() -> JobId {
        JOB.parse().unwrap()
    }

    /// Seals what any program may have written, as that program would have.
    fn sealed(seq: u64, fields: &Value, previous: LinkHash) -> SealedEvent {
        let record = UnknownRecord::new(fields.as_object().unwrap().clone()).unwrap();
        let body = EventBody::Unknown(record);
        seal(Event { seq, at: Timestamp::UNIX_EPOCH, job: job(), body }, previous)
    }

    fn log(bodies: &[Value]) -> Vec<String> {
        let mut previous = LinkHash::root(job());
        let lines = (1..).zip(bodies).map(|(seq, fields)| {
            let sealed = sealed(seq, fields, previous);
            previous = sealed.hash;
            sealed.line
        });
        lines.collect()
    }

    fn read(body: Value) -> EventBody {
        let lines = log(&[body]);
        serde_json::from_str::<Event>(&lines[0]).unwrap().body
    }

    fn spec() -> Value {
        json!({
            "steps": [{ "tool": "shell", "command": "true" }],
            "on_error": "continue", "priority": 0, "image": "base", "network": "none",
            "isolation": "namespace", "limits": { "memory": 1 },
        })
    }

    fn with(mut object: Value, pointer: &str, name: &str, value: Value) -> Value {
        object.pointer_mut(pointer).unwrap()[name] = value;
        object
    }

    fn outcome() -> Value {
        json!({
            "status": "succeeded", "stdout": "", "stderr": "", "output": "", "output_bytes": 0,
            "dropped_bytes": 0, "duration_ms": 1,
        })
    }

    #[test]
    fn what_cannot_be_read_is_kept_whole() {
        for body in [
            json!({ "type": "weather.changed", "to": { "sun": [1, 2.5, null] }, "seen_by": "ada" }),
            json!({ "type": "weather.changed" }),
            // Kinds that are known, with contents that are not.
            json!({ "type": "live.opened", "by": "ada", "place": "the attic" }),
            json!({ "type": "finished", "end": { "status": "evaporated", "failed_steps": [] } }),
            json!({ "type": "paused" }),
        ] {
            let EventBody::Unknown(record) = read(body.clone()) else { panic!("{body}") };
            assert_eq!(record.kind(), body["type"]);
            assert_eq!(serde_json::to_value(&record).unwrap(), body);
        }
    }

    #[test]
    fn what_says_nothing_of_itself_is_no_event() {
        let head = format!(r#""seq":1,"at":"1970-01-01T00:00:00Z","job":"{JOB}""#);
        for text in [
            format!("{{{head}}}"),
            format!(r#"{{{head},"type":7}}"#),
            format!(r#"{{"type":"weather.changed","seq":1,"job":"{JOB}"}}"#),
            r#"{"type":"weather.changed"}"#.to_owned(),
            "[]".to_owned(),
        ] {
            assert!(serde_json::from_str::<Event>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_that_are_new_leave_what_is_known_readable() {
        let colour = json!("blue");
        let scheduled = |spec| json!({ "type": "scheduled", "spec": spec });
        let desktop = with(spec(), "", "desktop", json!({ "width": 400, "height": 400, "dpi": 2 }));
        let files = json!([{ "path": "a", "content": "b", "owner": "ada" }]);
        let mcp = json!({ "git": { "command": ["git"], "colour": "blue" } });
        for body in [
            scheduled(with(spec(), "", "colour", colour.clone())),
            scheduled(with(spec(), "/limits", "colour", colour.clone())),
            scheduled(with(spec(), "", "budget", json!({ "steps": 3, "colour": "blue" }))),
            scheduled(desktop),
            scheduled(with(spec(), "", "files", files)),
            scheduled(with(spec(), "", "mcp", mcp)),
            json!({ "type": "plan.updated", "steps": [{ "title": "a", "status": "done", "by": 1 }] }),
            json!({ "type": "paused", "by": "ada", "until": "noon" }),
            json!({ "type": "step.finished", "n": 1, "outcome": with(outcome(), "", "joules", json!(3)) }),
        ] {
            assert!(!matches!(read(body.clone()), EventBody::Unknown(_)), "{body}");
        }
        let session = json!({ "session": { "colour": "blue" } });
        let mut spec = spec();
        spec.as_object_mut().unwrap().remove("steps");
        spec.as_object_mut().unwrap().extend(session.as_object().unwrap().clone());
        let EventBody::Scheduled { spec } = read(scheduled(spec)) else { panic!() };
        assert!(matches!(spec.work, Work::Session(_)));
    }

    #[test]
    fn stored_calls_that_cannot_be_read_are_kept_whole() {
        for call in [
            json!({ "tool": "teleport", "to": "moon" }),
            json!({ "tool": "shell", "command": "ls", "as_user": "ada" }),
            json!({ "tool": "wait_for", "until": { "moon": "full" } }),
        ] {
            let spec = with(spec(), "", "steps", json!([call]));
            for body in [
                json!({ "type": "step.started", "n": 1, "call": call }),
                json!({ "type": "tool.used", "by": "ada", "call": call, "outcome": outcome() }),
                json!({ "type": "scheduled", "spec": spec }),
            ] {
                let stored = match read(body.clone()) {
                    EventBody::StepStarted { call, .. } | EventBody::ToolUsed { call, .. } => call,
                    EventBody::Scheduled { spec } => match spec.work {
                        Work::Steps(mut calls) => calls.pop().unwrap(),
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                };
                assert!(matches!(stored, ToolCall::Unknown(_)), "{body}");
                assert_eq!(stored.name(), call["tool"]);
                assert_eq!(serde_json::to_value(&stored).unwrap(), call);
                assert!(stored.fault().is_some());
            }
            // What a client sends is read as strictly as ever.
            assert!(serde_json::from_value::<ToolCall>(call.clone()).is_err(), "{call}");
            let request = json!({ "steps": [call] }).to_string();
            assert!(JobRequest::from_json(request.as_bytes()).is_err(), "{request}");
        }
    }

    #[test]
    fn a_log_with_unknown_events_verifies_and_folds() {
        let known = [
            json!({ "type": "scheduled", "spec": spec() }),
            json!({ "type": "claimed", "worker": "w", "generation": 1 }),
            json!({ "type": "step.started", "n": 1, "call": { "tool": "shell", "command": "true" } }),
            json!({ "type": "step.finished", "n": 1, "outcome": outcome() }),
            json!({ "type": "finished", "end": { "status": "completed", "failed_steps": [] } }),
        ];
        let new = json!({ "type": "weather.changed", "to": "rain" });
        let mixed: Vec<Value> =
            known.iter().flat_map(|known| [known.clone(), new.clone()]).collect();
        let lines = log(&mixed);
        let mut verifier = Verifier::new(Some(job()));
        let events: Vec<Event> = lines.iter().map(|line| verifier.line(line).unwrap()).collect();
        assert_eq!(verifier.finish().unwrap().0, 10);
        let view = JobView::from_events(&events).unwrap();
        assert_eq!((view.status, view.last_seq), (JobStatus::Completed, 10));
        assert_eq!(view.steps[0].status, StepStatus::Succeeded);

        let mut altered = lines.clone();
        altered[1] = altered[1].replace("rain", "snow");
        let mut verifier = Verifier::new(Some(job()));
        verifier.line(&altered[0]).unwrap();
        assert!(verifier.line(&altered[1]).is_err());
    }

    #[test]
    fn an_audit_log_with_unknown_deeds_verifies() {
        let fields = json!({ "type": "moon.moved", "from": "here" });
        let record = UnknownRecord::new(fields.as_object().unwrap().clone()).unwrap();
        let deeds = [Deed::Unknown(record), Deed::TokenRevoked { token: "t".into() }];
        let (mut verifier, mut previous) = (AuditVerifier::default(), audit::root());
        for (seq, deed) in (1..).zip(deeds) {
            let entry = AuditEntry { seq, at: Timestamp::UNIX_EPOCH, by: "ada".into(), deed };
            let (line, hash) = audit::seal(&entry, previous);
            previous = hash;
            assert_eq!(verifier.line(&line).unwrap(), entry);
        }
        assert_eq!(verifier.finish().0, 2);
    }
}
