//! A model that answers from a recording, and only what was asked then.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bellglass_protocol::model::ModelAnswer;

use super::pictures::Sight;
use super::recording::{Exchange, Head, RecordedMessage, RecordedReply, VERSION};
use super::{Failure, Model, ModelError, Request};

/// Gives the recorded answers, one after the other. A conversation that is not the recorded one is
/// an error.
pub(super) struct Replay {
    name: String,
    context_tokens: u64,
    asked: Vec<Asked>,
    /// The exchange that is expected next. Whoever takes a task up in the middle does not know it yet.
    next: Mutex<Option<usize>>,
}

struct Asked {
    /// The whole conversation, shared with the other exchanges as far as it is theirs too.
    messages: Vec<Arc<RecordedMessage>>,
    reply: Result<ModelAnswer, ModelError>,
}

/// The most bytes that a recording may have.
const MOST_BYTES: u64 = 256 << 20;

/// How much of two texts is shown where they begin to differ.
const SHOWN: usize = 300;

impl Replay {
    pub(super) async fn open(name: &str, path: &Path) -> Result<Self, ModelError> {
        let refused = |message: String| ModelError::Refused { status: 0, message };
        let unread = |error: std::io::Error| {
            refused(format!("the recording {} cannot be read: {error}", path.display()))
        };
        if tokio::fs::metadata(path).await.map_err(unread)?.len() > MOST_BYTES {
            return Err(refused(format!("the recording {} is too long", path.display())));
        }
        let text = tokio::fs::read_to_string(path).await.map_err(unread)?;
        Self::read(name, &text).map_err(|why| {
            refused(format!("the recording {} cannot be used: {why}", path.display()))
        })
    }

    fn read(name: &str, text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let head: Head = serde_json::from_str(lines.next().unwrap_or_default())
            .map_err(|error| format!("its first line makes no sense: {error}"))?;
        if head.version != VERSION {
            return Err(format!("its version is {} and not {VERSION}", head.version));
        }
        let mut asked = Vec::new();
        let mut messages: Vec<Arc<RecordedMessage>> = Vec::new();
        for (at, line) in lines.enumerate() {
            let exchange: Exchange = serde_json::from_str(line)
                .map_err(|error| format!("line {} makes no sense: {error}", at + 2))?;
            if exchange.kept > messages.len() {
                return Err(format!("line {} goes on with what is not there", at + 2));
            }
            messages.truncate(exchange.kept);
            messages.extend(exchange.messages.into_iter().map(Arc::new));
            let reply = match exchange.reply {
                RecordedReply::Answer(answer) => Ok(*answer),
                RecordedReply::Failure { code, message } if code == "context_too_long" => {
                    Err(ModelError::ContextTooLong(message))
                }
                // The same was asked again, so it is answered at once.
                RecordedReply::Failure { .. } => continue,
            };
            // Asked again since the answer was lost with its worker: only the later one was heard.
            asked.pop_if(|before: &mut Asked| before.messages == messages);
            asked.push(Asked { messages: messages.clone(), reply });
        }
        let (name, next) = (name.to_owned(), Mutex::default());
        Ok(Self { name, context_tokens: head.context_tokens, asked, next })
    }

    fn answer(&self, request: &Request) -> Result<ModelAnswer, ModelError> {
        let now = RecordedMessage::all_of(request);
        let mut next = self.next.lock().expect("no code panics while it holds this lock");
        let same = |asked: &Asked| {
            asked.messages.len() == now.len()
                && asked.messages.iter().zip(&now).all(|(old, new)| old.says_the_same(new))
        };
        // Nothing of the recording is passed over but what was heard before this worker had the task.
        let found = match *next {
            Some(expected) => {
                self.asked.get(expected).filter(|asked| same(asked)).map(|_| expected)
            }
            None => self.asked.iter().position(same),
        };
        let Some(found) = found else {
            return Err(ModelError::Diverged(self.difference(next.unwrap_or_default(), &now)));
        };
        *next = Some(found + 1);
        self.asked[found].reply.clone()
    }

    /// Where a conversation leaves the recorded one.
    fn difference(&self, next: usize, now: &[RecordedMessage]) -> String {
        let Some(expected) = self.asked.get(next) else {
            return format!("the recording ends after {next} answers, and one more is wanted");
        };
        let differs =
            expected.messages.iter().zip(now).position(|(old, new)| !old.says_the_same(new));
        let Some(at) = differs else {
            let (then, now) = (expected.messages.len(), now.len());
            return format!(
                "the conversation had {then} messages at answer {}, now {now}",
                next + 1
            );
        };
        let (then, now) = (expected.messages[at].words(), now[at].words());
        let place = then.bytes().zip(now.bytes()).take_while(|(old, new)| old == new).count();
        let part = |text: &str| {
            let start = text.floor_char_boundary(place.saturating_sub(40));
            let end = text.floor_char_boundary((start + SHOWN).min(text.len()));
            text[start..end].to_owned()
        };
        format!(
            "message {} before answer {} was recorded as «{}» and is now «{}»",
            at + 1,
            next + 1,
            part(&then),
            part(&now)
        )
    }
}

#[async_trait]
impl Model for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn context_tokens(&self) -> u64 {
        self.context_tokens
    }

    /// A recording only counts pictures.
    fn sight(&self) -> Sight {
        Sight::Blind
    }

    async fn ask(&self, request: &Request) -> Result<ModelAnswer, Failure> {
        Ok(self.answer(request)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;

    fn request(texts: &[&str]) -> Request {
        Request {
            system: "".into(),
            tools: [].into(),
            messages: Arc::new(texts.iter().map(|text| Message::User((*text).into())).collect()),
            most_output: None,
            conversation: "".into(),
            pictures: Default::default(),
            live: Default::default(),
        }
    }

    fn answer(text: &str) -> String {
        format!(
            r#""answer":{{"model":"m","blocks":[{{"type":"text","text":"{text}"}}],"stop":"finished","usage":{{}},"duration_ms":1}}"#
        )
    }

    fn recording() -> Replay {
        let text = [
            r#"{"version":1,"context_tokens":1000}"#.to_owned(),
            r#"{"kept":0,"messages":[{"user":"a 1"}],"failure":{"code":"model_busy","message":""}}"#
                .to_owned(),
            format!(r#"{{"kept":0,"messages":[{{"user":"a 1"}}],{}}}"#, answer("one")),
            format!(r#"{{"kept":1,"messages":[{{"user":"b"}}],{}}}"#, answer("two")),
        ];
        Replay::read("replay/x", &text.join("\n")).unwrap()
    }

    fn text_of(answer: Result<ModelAnswer, ModelError>) -> String {
        format!("{:?}", answer.map(|answer| answer.blocks))
    }

    #[test]
    fn what_was_asked_is_answered_and_nothing_else() {
        let replay = recording();
        assert!(text_of(replay.answer(&request(&["a 22"]))).contains("one"));
        let wrong = text_of(replay.answer(&request(&["a 1", "c"])));
        assert!(wrong.contains("message 2 before answer 2") && wrong.contains("«c»"), "{wrong}");
        assert!(text_of(replay.answer(&request(&["a 1", "b"]))).contains("two"));
        let over = text_of(replay.answer(&request(&["a 1", "b", "c"])));
        assert!(over.contains("ends after 2 answers"), "{over}");
    }

    #[test]
    fn whoever_takes_over_finds_the_place() {
        assert!(text_of(recording().answer(&request(&["a 1", "b"]))).contains("two"));
    }

    fn of(exchanges: &[(&str, &str)]) -> Replay {
        let head = r#"{"version":1,"context_tokens":1000}"#.to_owned();
        let lines = exchanges.iter().map(|(messages, said)| {
            let messages: Vec<String> =
                messages.split(' ').map(|text| format!(r#"{{"user":"{text}"}}"#)).collect();
            format!(r#"{{"kept":0,"messages":[{}],{}}}"#, messages.join(","), answer(said))
        });
        let text: Vec<String> = [head].into_iter().chain(lines).collect();
        Replay::read("replay/x", &text.join("\n")).unwrap()
    }

    #[test]
    fn nothing_is_passed_over_in_the_middle() {
        let replay = of(&[("a", "one"), ("a b", "two"), ("a b c", "three")]);
        assert!(text_of(replay.answer(&request(&["a"]))).contains("one"));
        let wrong = text_of(replay.answer(&request(&["a", "b", "c"])));
        assert!(wrong.contains("had 2 messages at answer 2, now 3"), "{wrong}");
        assert!(text_of(replay.answer(&request(&["a", "b"]))).contains("two"));
        assert!(text_of(replay.answer(&request(&["a", "b"]))).contains("Diverged"));
    }

    #[test]
    fn of_two_answers_to_one_question_the_later_was_heard() {
        let replay = of(&[("a", "lost"), ("a", "heard"), ("a b", "two")]);
        assert!(text_of(replay.answer(&request(&["a"]))).contains("heard"));
        assert!(text_of(replay.answer(&request(&["a", "b"]))).contains("two"));
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        for text in ["", "{}", "{\"version\":2,\"context_tokens\":1}", "hello"] {
            assert!(Replay::read("x", text).is_err(), "{text}");
        }
        let hole = "{\"version\":1,\"context_tokens\":1}\n{\"kept\":3,\"messages\":[],\"failure\":{\"code\":\"\",\"message\":\"\"}}";
        assert!(Replay::read("x", hole).err().unwrap().contains("line 2"));
    }
}
