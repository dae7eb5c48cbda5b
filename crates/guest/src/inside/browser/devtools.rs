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

use super::dialogs::{DialogAnswer, Dialogs};
use super::downloads::Downloads;
use super::remarks::Remarks;
use crate::inside::failure::failure;

/// The longest message: a screenshot in base64 is one.
pub(super) const LONGEST_MESSAGE: usize = 64 << 20;
/// Requests that wait until the browser takes them.
const MESSAGES_AHEAD: usize = 16;
/// What the browser says of a page that was closed before it was asked.
const NO_SUCH_SESSION: i64 = -32001;

pub(super) struct DevTools {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Fires at every event.
    news: Notify,
    /// Whole messages, so that a call which gives up leaves none cut off.
    requests: mpsc::Sender<Vec<u8>>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Who waits for an answer and its length, and from the page of which session.
    waiting: HashMap<u64, (String, oneshot::Sender<(Value, usize)>)>,
    remarks: Remarks,
    /// The session with the page that is worked on, how many documents have come there, and the last of
    /// them that was loaded whole.
    page: String,
    documents: u64,
    loaded: u64,
    dialogs: Dialogs,
    downloads: Downloads,
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
        let (sender, queue) = mpsc::channel(MESSAGES_AHEAD);
        let shared = Arc::new(Shared::new(sender));
        tokio::spawn(read_all(answers, Arc::downgrade(&shared)));
        tokio::spawn(write_all(requests, queue));
        Ok(Self { shared })
    }

    /// Asks the browser, or a page of it, for something.
    pub(super) async fn ask(
        &self,
        session: Option<&str>,
        method: &str,
        parameters: Value,
    ) -> Result<Value, ToolError> {
        self.ask_and_measure(session, method, parameters).await.map(|(answer, _)| answer)
    }

    /// The same for answers that are kept: how many bytes they came in says what they take.
    pub(super) async fn ask_and_measure(
        &self,
        session: Option<&str>,
        method: &str,
        parameters: Value,
    ) -> Result<(Value, usize), ToolError> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut state = self.state();
            if state.gone {
                return Err(closed());
            }
            state.next += 1;
            let id = state.next;
            state.waiting.insert(id, (session.unwrap_or_default().into(), sender));
            id
        };
        let request = request(id, session, method, parameters);
        self.shared.requests.send(request).await.map_err(|_| closed())?;
        let (mut answer, bytes) = receiver.await.map_err(|_| match self.is_closed() {
            true => closed(),
            false => page_closed(),
        })?;
        match answer.get("error") {
            Some(error) if error["code"] == NO_SUCH_SESSION => Err(page_closed()),
            Some(error) => {
                let words = error["message"].as_str().unwrap_or("no reason was given");
                Err(failure("browser_refused", format!("{method}: {words}")))
            }
            None => Ok((answer["result"].take(), bytes)),
        }
    }

    /// The page whose loading is waited for from now on.
    pub(super) fn work_on(&self, session: &str) {
        self.state().page = session.into();
    }

    /// How many documents have come in the page that is worked on.
    pub(super) fn documents(&self) -> u64 {
        self.state().documents
    }

    /// Answers the dialogs of pages, until what this returns is dropped: a page stands still as long
    /// as its dialog is open. While nobody works with the pages from here, dialogs are for those who
    /// see them on the desktop.
    pub(super) fn attend(&self) -> Attending<'_> {
        let answers = self.state().dialogs.attend();
        answers.into_iter().for_each(|answer| self.shared.reply(answer));
        Attending(self)
    }

    /// Waits until a document has been loaded whole that came after so many others.
    pub(super) async fn wait_for_load(&self, after: u64) {
        self.wait_until(|state| state.loaded > after).await;
    }

    /// Waits until a document has come after so many others, or a download begun in a frame.
    pub(super) async fn wait_for_any(&self, documents: u64, frame: &str, downloads: u64) {
        self.wait_until(|state| {
            state.documents > documents || state.downloads.begun_in(frame, downloads)
        })
        .await;
    }

    /// Whether a page waits for what is to be shown next.
    pub(super) fn is_coming(&self, target: &str) -> bool {
        self.state().remarks.is_coming(target)
    }

    /// How many downloads have begun.
    pub(super) fn downloads(&self) -> u64 {
        self.state().downloads.begun()
    }

    /// Waits until no download runs any more that began after so many others.
    pub(super) async fn wait_for_downloads(&self, after: u64) {
        self.wait_until(|state| !state.downloads.run_since(after)).await;
    }

    /// What became of downloads since it was asked last.
    pub(super) fn take_downloads(&self) -> Vec<String> {
        self.state().downloads.take_words()
    }

    /// Waits until something is so, or the browser has ended.
    async fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let news = self.shared.news.notified();
            {
                let state = self.state();
                if state.gone || is_so(&state) {
                    return;
                }
            }
            news.await;
        }
    }

    /// What pages have said since it was asked last.
    pub(super) fn take_remarks(&self) -> Vec<String> {
        self.state().remarks.take()
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

/// Somebody works with the pages.
pub(super) struct Attending<'a>(&'a DevTools);

impl Attending<'_> {
    /// What dialogs said since this began, and what was answered.
    pub(super) fn dialogs(&self) -> Vec<String> {
        self.0.state().dialogs.take_words()
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.state().dialogs.leave();
    }
}

impl Shared {
    fn new(requests: mpsc::Sender<Vec<u8>>) -> Self {
        Self { state: Mutex::default(), news: Notify::new(), requests }
    }

    /// Answers a dialog. Nobody waits for what the browser says to that; and if it takes no more
    /// messages now, whoever waits for the page runs out of time and is told.
    fn reply(&self, answer: DialogAnswer) {
        let id = {
            let mut state = self.lock();
            state.next += 1;
            state.next
        };
        let parameters = json!({ "accept": answer.accept });
        let method = "Page.handleJavaScriptDialog";
        let _ = self.requests.try_send(request(id, Some(&answer.session), method, parameters));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, message: &[u8]) {
        let bytes = message.len();
        let Ok(mut message) = serde_json::from_slice::<Value>(message) else { return };
        let mut state = self.lock();
        if let Some(id) = message["id"].as_u64() {
            if let Some((_, waiting)) = state.waiting.remove(&id) {
                let _ = waiting.send((message, bytes));
            }
            return;
        }
        let event = message["params"].take();
        let session = message["sessionId"].as_str().unwrap_or_default();
        let answer = state.hear(message["method"].as_str().unwrap_or_default(), session, &event);
        drop(state);
        if let Some(answer) = answer {
            self.reply(answer);
        }
        self.news.notify_waiters();
    }
}

impl State {
    /// Notes what an event tells. Returns what a dialog is to be answered.
    fn hear(&mut self, method: &str, session: &str, event: &Value) -> Option<DialogAnswer> {
        self.remarks.hear(method, event);
        self.downloads.hear(method, event);
        match method {
            // Frames within it have documents too.
            "Page.frameNavigated" if event["frame"]["parentId"].is_null() => {
                self.documents += u64::from(session == self.page);
            }
            // That of the document before may still come when the next one is asked for.
            "Page.loadEventFired" if session == self.page => self.loaded = self.documents,
            "Page.javascriptDialogOpening" => return self.dialogs.open(session, event),
            "Page.javascriptDialogClosed" => self.dialogs.close(session),
            "Target.detachedFromTarget" => {
                let closed = event["sessionId"].as_str().unwrap_or_default();
                self.dialogs.close(closed);
                self.waiting.retain(|_, (session, _)| session != closed);
            }
            _ => {}
        }
        None
    }
}

/// A message to the browser.
fn request(id: u64, session: Option<&str>, method: &str, parameters: Value) -> Vec<u8> {
    let mut request = json!({ "id": id, "method": method, "params": parameters });
    if let Some(session) = session {
        request["sessionId"] = session.into();
    }
    let mut bytes = request.to_string().into_bytes();
    bytes.push(0);
    bytes
}

fn closed() -> ToolError {
    failure("browser_closed", "the browser has ended; `open` starts it again")
}

fn page_closed() -> ToolError {
    failure("page_closed", "the page was closed; `read` shows another")
}

async fn write_all(mut requests: pipe::Sender, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if requests.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn read_all(mut answers: pipe::Receiver, shared: std::sync::Weak<Shared>) {
    let mut messages = Messages::default();
    loop {
        match answers.read_buf(&mut messages.buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        messages.take_in(LONGEST_MESSAGE, |message| shared.take(message));
    }
}

/// Takes messages out of bytes as they come.
#[derive(Default)]
struct Messages {
    buffer: Vec<u8>,
    searched: usize,
    /// The rest of a message that is too long is passed over.
    skipping: bool,
}

impl Messages {
    /// Of a message that is longer than `longest`, whoever waits for it hears that.
    fn take_in(&mut self, longest: usize, mut take: impl FnMut(&[u8])) {
        while let Some(end) = memchr::memchr(0, &self.buffer[self.searched..]) {
            let end = self.searched + end;
            if !std::mem::take(&mut self.skipping) {
                take(&self.buffer[..end]);
            }
            self.buffer.drain(..=end);
            self.searched = 0;
        }
        if self.buffer.len() > longest || self.skipping {
            if !std::mem::replace(&mut self.skipping, true)
                && let Some(id) = id_of(&self.buffer)
            {
                let words = format!("the answer has more than {} MiB", longest >> 20);
                take(json!({ "id": id, "error": { "message": words } }).to_string().as_bytes());
            }
            self.buffer = Vec::new();
        }
        self.searched = self.buffer.len();
    }
}

/// Which question a message answers, read from its beginning.
fn id_of(message: &[u8]) -> Option<u64> {
    let digits = message.strip_prefix(b"{\"id\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_dialog_is_answered_while_somebody_works_with_the_page() {
        let (requests, mut queue) = mpsc::channel(4);
        let tools = DevTools { shared: Arc::new(Shared::new(requests)) };
        let mut answered = || {
            let message = queue.try_recv().ok()?;
            let message: Value = serde_json::from_slice(&message[..message.len() - 1]).unwrap();
            Some((message["sessionId"].clone(), message["params"]["accept"].clone()))
        };
        let opening = |kind: &str, session: &str| {
            let params = json!({ "type": kind, "message": "Sure?" });
            let method = "Page.javascriptDialogOpening";
            let event = json!({ "method": method, "params": params, "sessionId": session });
            tools.shared.take(event.to_string().as_bytes());
        };
        // Nobody works with it: it is for those who see it.
        opening("confirm", "a");
        assert_eq!(answered(), None);
        let attending = tools.attend();
        assert_eq!(answered(), Some(("a".into(), false.into())));
        opening("beforeunload", "b");
        assert_eq!(answered(), Some(("b".into(), true.into())));
        let words = attending.dialogs();
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words[0].contains("confirm") && words[0].contains("\"Sure?\""), "{words:?}");
        assert!(attending.dialogs().is_empty());
        drop(attending);
        opening("alert", "a");
        assert_eq!(answered(), None);
        assert_eq!(tools.take_remarks().len(), 3);
        // Somebody closed it on the desktop.
        let closed = r#"{"method":"Page.javascriptDialogClosed","sessionId":"a"}"#;
        tools.shared.take(closed.as_bytes());
        drop(tools.attend());
        assert_eq!(answered(), None);
    }

    #[tokio::test]
    async fn an_answer_is_measured_as_it_came() {
        let (requests, _queue) = mpsc::channel(4);
        let tools = DevTools { shared: Arc::new(Shared::new(requests)) };
        let answer = br#"{"id":1, "result": {"nodes": []}}"#;
        let answering = async { tools.shared.take(answer) };
        let (asked, ()) = tokio::join!(tools.ask_and_measure(None, "x", json!({})), answering);
        assert_eq!(asked.unwrap(), (json!({ "nodes": [] }), answer.len()));
    }

    #[test]
    fn a_message_that_is_too_long_fails_its_question_and_no_other() {
        let mut messages = Messages::default();
        let mut taken = Vec::new();
        let long = format!("{{\"id\":7,\"result\":\"{}\"}}\0", "x".repeat(5_000));
        let stream = format!("{{\"id\":6}}\0{long}{{\"id\":8}}\0{{\"id\":9}}\0");
        for piece in stream.as_bytes().chunks(300) {
            messages.buffer.extend_from_slice(piece);
            messages.take_in(1_000, |message| {
                taken.push(serde_json::from_slice::<Value>(message).unwrap());
            });
            assert!(messages.buffer.len() <= 1_000);
        }
        let ids: Vec<_> = taken.iter().map(|message| message["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, [6, 7, 8, 9]);
        assert!(taken[1]["error"]["message"].is_string() && taken[2]["error"].is_null());
    }

    #[tokio::test]
    async fn only_the_page_that_is_worked_on_counts_and_one_that_closes_answers_nobody() {
        let (requests, _queue) = mpsc::channel(4);
        let tools = DevTools { shared: Arc::new(Shared::new(requests)) };
        tools.work_on("a");
        let tell = |method: &str, session: &str, params: Value| {
            let event = json!({ "method": method, "params": params, "sessionId": session });
            tools.shared.take(event.to_string().as_bytes());
        };
        tell("Page.frameNavigated", "b", json!({ "frame": { "id": "y" } }));
        tell("Page.frameNavigated", "a", json!({ "frame": { "id": "z", "parentId": "x" } }));
        assert_eq!(tools.documents(), 0);
        tell("Page.frameNavigated", "a", json!({ "frame": { "id": "x" } }));
        tell("Page.loadEventFired", "b", json!({}));
        assert_eq!((tools.documents(), tools.state().loaded), (1, 0));
        // The page from before is loaded when the next one has not come yet.
        tell("Page.loadEventFired", "a", json!({}));
        assert!(timeout(Duration::ZERO, tools.wait_for_load(1)).await.is_err());
        tell("Page.frameNavigated", "a", json!({ "frame": { "id": "x" } }));
        assert!(timeout(Duration::ZERO, tools.wait_for_load(1)).await.is_err());
        tell("Page.loadEventFired", "a", json!({}));
        tools.wait_for_load(1).await;
        let closing = async {
            let method = "Target.detachedFromTarget";
            let event = json!({ "method": method, "params": { "sessionId": "a" } });
            tools.shared.take(event.to_string().as_bytes());
        };
        let (asked, ()) =
            tokio::join!(tools.ask(Some("a"), "Runtime.evaluate", json!({})), closing);
        assert_eq!(asked.unwrap_err().code, "page_closed");
    }
}
