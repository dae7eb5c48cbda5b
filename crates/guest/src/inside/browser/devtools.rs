//! The DevTools protocol over two pipes: requests with answers, and events that are noted down.
//!
//! No port is opened and no HTTP is spoken: Chromium reads requests from one pipe and writes to the
//! other. What comes is bounded, for pages may make the browser say anything.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellglass_protocol::step::ToolError;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::inside::failure::failure;

/// The longest message: a screenshot in base64 is one.
const LONGEST_MESSAGE: usize = 64 << 20;
/// Requests that wait until the browser takes them.
const MESSAGES_AHEAD: usize = 16;
/// Remarks of pages that are kept until somebody asks for them.
const MOST_REMARKS: usize = 200;
const LONGEST_REMARK: usize = 1000;

pub(super) struct DevTools {
    /// Whole messages, so that a call which gives up leaves none cut off.
    requests: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Fires at every event.
    news: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    remarks: Vec<String>,
    /// How many pages have been loaded whole.
    loads: u64,
    gone: bool,
}

impl DevTools {
    /// Opens the two pipes, which must exist.
    pub(super) fn open(requests: &Path, answers: &Path) -> io::Result<Self> {
        // Both directions are opened, so that this waits for nobody on the other end.
        let options = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        let requests = options().open_sender(requests)?;
        let answers = options().open_receiver(answers)?;
        let shared = Arc::new(Shared::default());
        tokio::spawn(read_all(answers, Arc::downgrade(&shared)));
        let (sender, queue) = mpsc::channel(MESSAGES_AHEAD);
        tokio::spawn(write_all(requests, queue));
        Ok(Self { requests: sender, shared })
    }

    /// Asks the browser, or a page of it, for something.
    pub(super) async fn ask(
        &self,
        session: Option<&str>,
        method: &str,
        parameters: Value,
    ) -> Result<Value, ToolError> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut state = self.state();
            if state.gone {
                return Err(closed());
            }
            state.next += 1;
            let id = state.next;
            state.waiting.insert(id, sender);
            id
        };
        let mut request = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = session {
            request["sessionId"] = session.into();
        }
        let mut bytes = request.to_string().into_bytes();
        bytes.push(0);
        self.requests.send(bytes).await.map_err(|_| closed())?;
        let answer = receiver.await.map_err(|_| closed())?;
        match answer.get("error") {
            Some(error) => {
                let words = error["message"].as_str().unwrap_or("no reason was given");
                Err(failure("browser_refused", format!("{method}: {words}")))
            }
            None => Ok(answer["result"].clone()),
        }
    }

    pub(super) fn loads(&self) -> u64 {
        self.state().loads
    }

    /// Waits until more pages than these have been loaded.
    pub(super) async fn wait_for_load(&self, more_than: u64) {
        loop {
            let news = self.shared.news.notified();
            if self.loads() > more_than || self.state().gone {
                return;
            }
            news.await;
        }
    }

    /// What pages have said since it was asked last.
    pub(super) fn take_remarks(&self) -> Vec<String> {
        std::mem::take(&mut self.state().remarks)
    }

    /// The browser has ended: whoever waits is told.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.gone = true;
        state.waiting.clear();
        drop(state);
        self.shared.news.notify_waiters();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().gone
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, message: &[u8]) {
        let Ok(mut message) = serde_json::from_slice::<Value>(message) else { return };
        let mut state = self.lock();
        if let Some(waiting) = message["id"].as_u64().and_then(|id| state.waiting.remove(&id)) {
            let _ = waiting.send(message);
            return;
        }
        let event = message["params"].take();
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => state.loads += 1,
            method => {
                if let Some(mut remark) = remark(method, &event)
                    && state.remarks.len() < MOST_REMARKS
                {
                    remark.truncate(remark.floor_char_boundary(LONGEST_REMARK));
                    state.remarks.push(remark);
                }
            }
        }
        drop(state);
        self.news.notify_waiters();
    }
}

fn closed() -> ToolError {
    failure("browser_closed", "the browser has ended; `open` starts it again")
}

/// What an event means to whoever looks for what is wrong with a page.
fn remark(method: &str, event: &Value) -> Option<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(match method {
        "Runtime.consoleAPICalled" => {
            let arguments = event["args"].as_array().into_iter().flatten();
            let words: Vec<String> = arguments
                .map(|argument| match &argument["value"] {
                    Value::Null => word(&argument["description"]),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .collect();
            format!("console {}: {}", word(&event["type"]), words.join(" "))
        }
        "Runtime.exceptionThrown" => {
            let details = &event["exceptionDetails"];
            let described = word(&details["exception"]["description"]);
            let text = if described.is_empty() { word(&details["text"]) } else { described };
            format!("exception: {text}")
        }
        "Log.entryAdded" => {
            let entry = &event["entry"];
            let (level, text, url) =
                (word(&entry["level"]), word(&entry["text"]), word(&entry["url"]));
            format!("log {level}: {text} {url}")
        }
        "Network.loadingFailed" => format!("network: {}", word(&event["errorText"])),
        "Network.responseReceived" if event["response"]["status"].as_u64()? >= 400 => {
            let response = &event["response"];
            format!("network: {} for {}", response["status"], word(&response["url"]))
        }
        _ => return None,
    })
}

async fn write_all(mut requests: pipe::Sender, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if requests.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn read_all(mut answers: pipe::Receiver, shared: std::sync::Weak<Shared>) {
    let mut buffer = Vec::new();
    let mut searched = 0;
    loop {
        match answers.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        while let Some(end) = memchr::memchr(0, &buffer[searched..]).map(|at| searched + at) {
            shared.take(&buffer[..end]);
            buffer.drain(..=end);
            searched = 0;
        }
        searched = buffer.len();
        if buffer.len() > LONGEST_MESSAGE {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_on_a_page_is_noted_and_the_rest_is_not() {
        let shared = Shared::default();
        for message in [
            r#"{"method":"Runtime.consoleAPICalled","params":{"type":"error","args":[{"value":"no"},{"value":3}]}}"#,
            r#"{"method":"Network.responseReceived","params":{"response":{"status":200,"url":"a"}}}"#,
            r#"{"method":"Network.responseReceived","params":{"response":{"status":404,"url":"b"}}}"#,
            r#"{"method":"Page.loadEventFired","params":{}}"#,
            "not JSON",
        ] {
            shared.take(message.as_bytes());
        }
        let state = shared.lock();
        assert_eq!(state.remarks, ["console error: no 3", "network: 404 for b"]);
        assert_eq!(state.loads, 1);
    }
}
