//! Dialogs of pages: alerts, questions, and whether to leave. As long as one is open, its page stands
//! still, so somebody has to answer.

use std::collections::HashMap;

use serde_json::Value;

/// Dialogs that are open at once, one for each page, and those that a call is told of.
const MOST: usize = 20;
/// What is shown of what one says.
const LONGEST: usize = 300;

#[derive(Default)]
pub(super) struct Dialogs {
    /// Whether somebody works with the pages who cannot see them.
    attended: bool,
    /// Those that nobody has answered yet, by the session with their page.
    open: HashMap<String, Value>,
    /// What those said that were answered from here.
    words: Vec<String>,
}

/// What is to be sent to a page.
#[derive(Debug, PartialEq)]
pub(super) struct DialogAnswer {
    pub(super) session: String,
    pub(super) accept: bool,
}

impl Dialogs {
    /// Somebody works with the pages from now on. Returns the answers to what is open already.
    pub(super) fn attend(&mut self) -> Vec<DialogAnswer> {
        self.attended = true;
        self.words.clear();
        let open = std::mem::take(&mut self.open);
        open.iter().map(|(session, event)| self.answer(session, event)).collect()
    }

    pub(super) fn leave(&mut self) {
        self.attended = false;
    }

    pub(super) fn open(&mut self, session: &str, event: &Value) -> Option<DialogAnswer> {
        if self.attended {
            return Some(self.answer(session, event));
        }
        if self.open.len() < MOST {
            self.open.insert(session.into(), event.clone());
        }
        None
    }

    pub(super) fn close(&mut self, session: &str) {
        self.open.remove(session);
    }

    pub(super) fn take_words(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words)
    }

    fn answer(&mut self, session: &str, event: &Value) -> DialogAnswer {
        let accept = is_accepted(event);
        if self.words.len() < MOST {
            let done = if accept { "accepted" } else { "dismissed" };
            self.words.push(format!("{}, which was {done}", words(event)));
        }
        DialogAnswer { session: session.into(), accept }
    }
}

/// What only tells something is taken note of, and who opens another page wants to leave this one.
/// What asks for a decision gets none.
fn is_accepted(event: &Value) -> bool {
    matches!(event["type"].as_str(), Some("alert" | "beforeunload"))
}

/// A dialog in a few words.
pub(super) fn words(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    let message = event["message"].as_str().unwrap_or_default();
    let message = &message[..message.floor_char_boundary(LONGEST)];
    format!("the page opened a dialog ({kind}): {message:?}")
}
