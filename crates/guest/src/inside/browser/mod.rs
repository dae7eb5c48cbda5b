//! The browser: the Chromium that stands on the desktop, driven by the DevTools protocol.
//!
//! A person who watches the desktop sees the same window. Downloads go into the workspace.

mod devtools;
mod outline;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::job::Screen;
use bellglass_protocol::step::{StepStatus, ToolError, decode_base64};
use bellglass_protocol::tool::{Browse, Browser};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{Answer, Given};
use super::calls::Call;
use super::failure::failure;
use super::interpreters::{environment, find, private_folder};
use super::process::{Command, Process};
use super::{Guest, desktop};
use devtools::DevTools;

/// How long Chromium may take to answer for the first time.
const STARTING: Duration = Duration::from_secs(60);
/// How long a page may take to come after something was clicked, before the call goes on without.
const SETTLING: Duration = Duration::from_millis(700);
/// The longest result of a script.
const LONGEST_RESULT: usize = 60 << 10;

/// The browser of a sandbox, once there is one.
#[derive(Default)]
pub(super) struct Browsers {
    live: tokio::sync::Mutex<Option<Live>>,
}

struct Live {
    tools: Arc<DevTools>,
    /// The page that is worked on: its target and the session with it.
    page: Option<(String, String)>,
}

pub(super) async fn browse(
    guest: &Arc<Guest>,
    call_of: &Browser,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    // Another call may use it; that one ends by its own deadline.
    let work = async {
        ready(guest).await?;
        let mut live = guest.browsers.live.lock().await;
        match live.as_mut() {
            Some(live) => live.act(call_of).await,
            None => Err(failure("no_browser", "the browser is not there")),
        }
    };
    tokio::select! {
        answer = work => answer,
        () = sleep_until(deadline) => {
            let error = Some(failure("timed_out", "the browser goes on; look at it by `read`"));
            Ok(Answer { error, ..Answer::of(StepStatus::TimedOut) })
        }
        () = call.cancel.cancelled() => Ok(Answer::of(StepStatus::Cancelled)),
    }
}

/// Sees to it that the browser runs: as a task of its own, which goes on when a call gives up.
async fn ready(guest: &Arc<Guest>) -> Result<(), ToolError> {
    let guest = guest.clone();
    let starting = tokio::spawn(async move {
        let mut live = guest.browsers.live.lock().await;
        if live.as_ref().is_none_or(|live| live.tools.is_closed()) {
            *live = Some(start(&guest).await?);
        }
        Ok(())
    });
    starting.await.unwrap_or_else(|_| Err(failure("no_browser", "starting it broke")))
}

async fn start(guest: &Arc<Guest>) -> Result<Live, ToolError> {
    let broken =
        |error: std::io::Error| failure("no_browser", format!("it cannot be started: {error}"));
    find("chromium").map_err(|_| {
        failure(
            "no_browser",
            "this sandbox's image has no browser; give the job `desktop: true`, or the image \
             `desktop`, which `bellglass image build desktop` makes",
        )
    })?;
    desktop::start(guest, Screen::default()).await?;
    let folder = private_folder().join("browser");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(broken)?;
    let (requests, answers) = (folder.join("requests"), folder.join("answers"));
    for pipe in [&requests, &answers] {
        let _ = std::fs::remove_file(pipe);
        let made = rustix::fs::mknodat(CWD, pipe, FileType::Fifo, Mode::from(0o600), 0);
        made.map_err(|error| broken(error.into()))?;
    }
    let tools = Arc::new(DevTools::open(&requests, &answers).map_err(broken)?);
    run_chromium(guest, &requests, &answers, tools.clone())?;
    let first = timeout(STARTING, tools.ask(None, "Browser.getVersion", json!({}))).await;
    first.map_err(|_| failure("no_browser", "Chromium did not answer within a minute"))??;
    let downloads = guest.workspace.path().join("downloads");
    let behaviour = json!({ "behavior": "allow", "downloadPath": downloads.to_string_lossy() });
    tools.ask(None, "Browser.setDownloadBehavior", behaviour).await?;
    Ok(Live { tools, page: None })
}

fn run_chromium(
    guest: &Guest,
    requests: &Path,
    answers: &Path,
    tools: Arc<DevTools>,
) -> Result<(), ToolError> {
    // The pipes are descriptors 3 and 4 of the browser; bash puts them there.
    let line = "exec chromium --remote-debugging-pipe --user-data-dir=/tmp/.browser \
                --start-maximized about:blank 3<\"$1\" 4>\"$2\"";
    let folder = guest.workspace.path().to_path_buf();
    let command = Command {
        program: find("bash")?,
        arguments: [
            "bash".into(),
            "-c".into(),
            line.into(),
            "browser".into(),
            requests.into(),
            answers.into(),
        ]
        .into(),
        environment: environment(guest, &folder, &Default::default())?,
        folder,
        input: None,
    };
    let (mut stdout, mut stderr, mut supervisor) =
        Process::start(&command, &guest.confinement)?.split();
    tokio::spawn(async move {
        let mut nowhere = (tokio::io::sink(), tokio::io::sink());
        let _ = tokio::join!(
            tokio::io::copy(&mut stdout, &mut nowhere.0),
            tokio::io::copy(&mut stderr, &mut nowhere.1)
        );
    });
    tokio::spawn(async move {
        supervisor.next_report().await;
        tools.close();
        supervisor.reap().await;
    });
    Ok(())
}

impl Live {
    async fn act(&mut self, call: &Browser) -> Result<Answer, ToolError> {
        let session = self.session().await?;
        let page = Page { tools: &self.tools, session: &session };
        let node = match (&call.name, call.action) {
            (Some(name), Browse::Click | Browse::Fill) if call.node.is_none() => {
                page.find(name).await?
            }
            _ => call.node.unwrap_or_default(),
        };
        let text = call.text.as_deref().unwrap_or_default();
        match call.action {
            Browse::Open => {
                page.open(call.url.as_deref().unwrap_or_default()).await?;
                page.read().await
            }
            Browse::Read => page.read().await,
            Browse::Click => {
                page.click(node).await?;
                page.read().await
            }
            Browse::Fill => {
                page.fill(node, text).await?;
                page.read().await
            }
            Browse::Back => {
                page.evaluate("history.back()").await?;
                page.settle(self.tools.loads()).await;
                page.read().await
            }
            Browse::Script => page.evaluate(text).await.map(Answer::text),
            Browse::Screenshot => page.screenshot().await,
            Browse::Console => {
                let remarks = self.tools.take_remarks();
                let none = remarks.is_empty();
                Ok(Answer::text(if none { "nothing was said".into() } else { remarks.join("\n") }))
            }
        }
    }

    /// The session with the page that is to be worked on: the newest one there is.
    async fn session(&mut self) -> Result<String, ToolError> {
        let targets = self.tools.ask(None, "Target.getTargets", json!({})).await?;
        let targets = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        let is_page = |target: &&Value| target["type"] == "page";
        let ids: Vec<&str> =
            targets.iter().filter(is_page).filter_map(|page| page["targetId"].as_str()).collect();
        // The browser lists the page that was shown last first.
        if let Some((target, session)) = &self.page
            && ids.first() == Some(&target.as_str())
        {
            return Ok(session.clone());
        }
        let target = match ids.first() {
            Some(target) => (*target).to_owned(),
            None => {
                let made = json!({ "url": "about:blank" });
                let made = self.tools.ask(None, "Target.createTarget", made).await?;
                made["targetId"].as_str().unwrap_or_default().to_owned()
            }
        };
        let attach = json!({ "targetId": target, "flatten": true });
        let attached = self.tools.ask(None, "Target.attachToTarget", attach).await?;
        let session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "DOM", "Accessibility"] {
            self.tools.ask(Some(&session), &format!("{domain}.enable"), json!({})).await?;
        }
        self.page = Some((target, session.clone()));
        Ok(session)
    }
}

/// One page while a call works on it.
struct Page<'a> {
    tools: &'a DevTools,
    session: &'a str,
}

impl Page<'_> {
    async fn ask(&self, method: &str, parameters: Value) -> Result<Value, ToolError> {
        self.tools.ask(Some(self.session), method, parameters).await
    }

    async fn open(&self, url: &str) -> Result<(), ToolError> {
        let before = self.tools.loads();
        let opened = self.ask("Page.navigate", json!({ "url": url })).await?;
        if let Some(words) = opened["errorText"].as_str().filter(|words| !words.is_empty()) {
            // Chromium says so of what it downloads instead of showing it.
            if words == "net::ERR_ABORTED" {
                return Ok(());
            }
            return Err(failure("page_not_opened", format!("{url}: {words}")));
        }
        self.tools.wait_for_load(before).await;
        Ok(())
    }

    /// Waits a moment for a page that may be on its way.
    async fn settle(&self, before: u64) {
        let _ = timeout(SETTLING, self.tools.wait_for_load(before)).await;
    }

    async fn read(&self) -> Result<Answer, ToolError> {
        let place = self.evaluate("document.title + '\\n' + location.href").await?;
        let tree = self.ask("Accessibility.getFullAXTree", json!({})).await?;
        Ok(Answer::text(format!("{place}\n\n{}", outline::outline(&tree))))
    }

    /// The one thing that has this name.
    async fn find(&self, name: &str) -> Result<u64, ToolError> {
        let tree = self.ask("Accessibility.getFullAXTree", json!({})).await?;
        match outline::named(&tree, name.trim())[..] {
            [node] => Ok(node),
            [] => {
                let words =
                    format!("nothing on the page is named `{name}`; `read` shows the names");
                Err(failure("no_such_element", words))
            }
            ref nodes => {
                let words =
                    format!("several things are named `{name}`: use one of {nodes:?} as `ref`");
                Err(failure("not_unique", words))
            }
        }
    }

    async fn click(&self, node: u64) -> Result<(), ToolError> {
        let before = self.tools.loads();
        let known = json!({ "backendNodeId": node });
        self.ask("DOM.scrollIntoViewIfNeeded", known.clone()).await.map_err(|_| unknown(node))?;
        let quads = self.ask("DOM.getContentQuads", known).await.map_err(|_| unknown(node))?;
        let corners: Vec<f64> =
            quads["quads"][0].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let [x1, y1, _, _, x2, y2, ..] = corners[..] else {
            return Err(failure("not_shown", format!("[{node}] cannot be seen on the page")));
        };
        let (x, y) = ((x1 + x2) / 2.0, (y1 + y2) / 2.0);
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
            self.ask("Input.dispatchMouseEvent", event).await?;
        }
        self.settle(before).await;
        Ok(())
    }

    async fn fill(&self, node: u64, text: &str) -> Result<(), ToolError> {
        let resolved = self.ask("DOM.resolveNode", json!({ "backendNodeId": node })).await;
        let object = resolved.map_err(|_| unknown(node))?["object"]["objectId"].clone();
        let called = json!({
            "objectId": object, "functionDeclaration": PREPARE_FIELD, "returnByValue": true,
            "arguments": [{ "value": text }],
        });
        let how = self.ask("Runtime.callFunctionOn", called).await?;
        match how["result"]["value"].as_str() {
            Some("type") => {
                self.ask("Input.insertText", json!({ "text": text })).await?;
            }
            Some("done") => {}
            _ => {
                let words = format!("[{node}] cannot be filled with this; it is no field for it");
                return Err(failure("not_a_field", words));
            }
        }
        Ok(())
    }

    async fn evaluate(&self, script: &str) -> Result<String, ToolError> {
        let asked = json!({ "expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let answer = self.ask("Runtime.evaluate", asked).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            let words = thrown["exception"]["description"].as_str().or(thrown["text"].as_str());
            return Err(failure("exception", words.unwrap_or("the script failed")));
        }
        let mut text = match &answer["result"]["value"] {
            Value::String(text) => text.clone(),
            Value::Null => answer["result"]["description"].as_str().unwrap_or("undefined").into(),
            other => other.to_string(),
        };
        if text.len() > LONGEST_RESULT {
            text.truncate(text.floor_char_boundary(LONGEST_RESULT));
            text.push_str("\n[cut]");
        }
        Ok(text)
    }

    async fn screenshot(&self) -> Result<Answer, ToolError> {
        let shot = self.ask("Page.captureScreenshot", json!({ "format": "png" })).await?;
        let content = decode_base64(shot["data"].as_str().unwrap_or_default());
        let content = content.map_err(|_| failure("no_picture", "the browser gave no picture"))?;
        let words = self.evaluate("`${document.title}, ${innerWidth}x${innerHeight}`").await?;
        let attachments = vec![Given { media_type: "image/png".into(), content: content.into() }];
        Ok(Answer { attachments, ..Answer::text(words) })
    }
}

/// Makes a field ready to be typed into, or sets it where typing makes no sense.
const PREPARE_FIELD: &str = r#"function (text) {
    const changed = () => {
        this.dispatchEvent(new Event('input', { bubbles: true }));
        this.dispatchEvent(new Event('change', { bubbles: true }));
    };
    if (this instanceof HTMLSelectElement) {
        const option = [...this.options].find((o) => o.value === text || o.label.trim() === text.trim());
        if (!option) return 'refused';
        this.value = option.value;
        changed();
        return 'done';
    }
    if (this instanceof HTMLInputElement) {
        if (['checkbox', 'radio'].includes(this.type)) {
            if (this.checked !== (text === 'true')) this.click();
            return 'done';
        }
        if (['date', 'time', 'datetime-local', 'month', 'week', 'range', 'color'].includes(this.type)) {
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
            set.call(this, text);
            if (this.value === '') return 'refused';
            changed();
            return 'done';
        }
        if (['file', 'submit', 'button', 'image', 'reset', 'hidden'].includes(this.type)) return 'refused';
    }
    this.focus();
    if (this.select) { this.select(); return 'type'; }
    if (this.isContentEditable) { document.execCommand('selectAll'); return 'type'; }
    return 'refused';
}"#;

fn unknown(node: u64) -> ToolError {
    failure("no_such_element", format!("there is no [{node}] on the page now; `read` it again"))
}
