//! One page of the browser: opened, read, clicked, filled in, looked at.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::step::{ToolError, decode_base64};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::devtools::DevTools;
use super::outline;
use crate::inside::answer::Answer;
use crate::inside::failure::failure;
use crate::inside::{Guest, desktop};

/// How long a page may take to come after something was clicked, before the call goes on without.
const SETTLING: Duration = Duration::from_millis(700);
/// How often a page that is to come is looked for.
const LOOKING_AGAIN: Duration = Duration::from_millis(20);
/// How long a download may take to begin that a page has given way to.
const BEGINNING: Duration = Duration::from_secs(2);
/// How long a page may take for what takes no time, before it counts as stuck.
const ANSWERING: Duration = Duration::from_secs(4);
/// The longest result of a script.
const LONGEST_RESULT: usize = 60 << 10;
/// What the browser keeps for scripts goes by this name until it is given back.
const SCRIPTS: &str = "scripts";

/// One page while a call works on it.
pub(super) struct Page<'a> {
    pub(super) tools: &'a DevTools,
    pub(super) session: &'a str,
}

/// What an address led to.
pub(super) enum Opened {
    Page,
    /// The page is what it was.
    Download,
}

impl Page<'_> {
    async fn ask(&self, method: &str, parameters: Value) -> Result<Value, ToolError> {
        self.tools.ask(Some(self.session), method, parameters).await
    }

    /// Makes it tell of all that is heard here.
    pub(super) async fn enable(&self) -> Result<(), ToolError> {
        for domain in ["Page", "Runtime", "Log", "Network", "DOM", "Accessibility"] {
            self.ask(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(())
    }

    pub(super) async fn open(&self, url: &str) -> Result<Opened, ToolError> {
        let (before, downloads) = (self.tools.loads(), self.tools.downloads());
        let opened = self.ask("Page.navigate", json!({ "url": url })).await?;
        if let Some(words) = opened["errorText"].as_str().filter(|words| !words.is_empty()) {
            // Chromium says so of what it downloads instead of showing it, just before it does, and
            // of an answer without anything.
            if words == "net::ERR_ABORTED" {
                let begins = timeout(BEGINNING, self.tools.wait_for_download(downloads)).await;
                return begins.map(|()| Opened::Download).map_err(|_| nothing_to_show(url));
            }
            return Err(failure("page_not_opened", format!("{url}: {words}")));
        }
        // Another place on the same page: nothing is loaded for it.
        if opened["loaderId"].as_str().is_none_or(str::is_empty) {
            return Ok(Opened::Page);
        }
        self.tools.wait_for_load(before).await;
        Ok(Opened::Page)
    }

    /// Whether it answers: one whose script never ends does not.
    pub(super) async fn answers(&self) -> bool {
        timeout(ANSWERING, self.evaluate("0")).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Stops the script that runs. The browser does so even where the page hears nothing.
    pub(super) async fn stop_script(&self) {
        let _ = timeout(ANSWERING, self.ask("Runtime.terminateExecution", json!({}))).await;
    }

    /// Waits until a page that was just opened has come: it begins as an empty one.
    pub(super) async fn wait_until_there(&self) {
        let state = "document.readyState + ' ' + location.href";
        loop {
            // What it began as cannot be asked any more when it becomes something else.
            let state = self.evaluate(state).await.unwrap_or_default();
            if state.starts_with("complete ") && !state.ends_with(" about:blank") {
                return;
            }
            sleep_until(Instant::now() + LOOKING_AGAIN).await;
        }
    }

    /// Waits a moment for a page that may be on its way.
    pub(super) async fn settle(&self, before: u64) {
        let _ = timeout(SETTLING, self.tools.wait_for_load(before)).await;
    }

    pub(super) async fn read(&self) -> Result<Answer, ToolError> {
        let place = self.evaluate("document.title + '\\n' + location.href").await?;
        let tree = self.ask("Accessibility.getFullAXTree", json!({})).await?;
        Ok(Answer::text(format!("{place}\n\n{}", outline::outline(&tree))))
    }

    /// The one thing that has this name.
    pub(super) async fn find(&self, name: &str) -> Result<u64, ToolError> {
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

    pub(super) async fn click(&self, node: u64) -> Result<(), ToolError> {
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

    pub(super) async fn fill(&self, node: u64, text: &str) -> Result<(), ToolError> {
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

    /// The value of an expression, once it has one.
    pub(super) async fn evaluate(&self, expression: &str) -> Result<String, ToolError> {
        let asked = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
            "userGesture": true,
        });
        value(&self.ask("Runtime.evaluate", asked).await?)
    }

    /// Runs what somebody wrote, as the console of a browser does: it may wait for something
    /// outside of functions, and name anew what an earlier script named.
    pub(super) async fn run(&self, script: &str) -> Result<String, ToolError> {
        let asked = json!({
            "expression": script, "replMode": true, "userGesture": true, "objectGroup": SCRIPTS,
        });
        let ran = self.ask("Runtime.evaluate", asked).await?;
        let object = &ran["result"]["objectId"];
        if object.is_null() || ran.get("exceptionDetails").is_some() {
            return value(&ran);
        }
        // The console would show a promise as one.
        let asked = json!({
            "objectId": object, "functionDeclaration": "function () { return this; }",
            "awaitPromise": true, "returnByValue": true,
        });
        let answer = self.ask("Runtime.callFunctionOn", asked).await?;
        self.ask("Runtime.releaseObjectGroup", json!({ "objectGroup": SCRIPTS })).await?;
        value(&answer)
    }

    pub(super) async fn screenshot(
        &self,
        guest: &Arc<Guest>,
        fit: bool,
    ) -> Result<Answer, ToolError> {
        // Points of the picture are points of the screen, so the page must be there.
        self.ask("Page.bringToFront", json!({})).await?;
        let shot = self.ask("Page.captureScreenshot", json!({ "format": "png" })).await?;
        let content = decode_base64(shot["data"].as_str().unwrap_or_default());
        let content = content.map_err(|_| failure("no_picture", "the browser gave no picture"))?;
        let window = self.ask("Browser.getWindowForTarget", json!({})).await?;
        let title = self.evaluate("document.title").await?;
        let [left, top, width, height] = ["left", "top", "width", "height"]
            .map(|name| window["bounds"][name].as_i64().unwrap_or_default() as i32);
        let place = move |page| page_in_window((left, top), (width, height), page);
        let answer = desktop::give_picture_of(guest, place, content, fit).await?;
        let words = format!("{title}\n{}", answer.text.unwrap_or_default());
        Ok(Answer { text: Some(words), ..answer })
    }
}

/// What a script came to.
fn value(answer: &Value) -> Result<String, ToolError> {
    if let Some(thrown) = answer.get("exceptionDetails") {
        let words = thrown["exception"]["description"].as_str().or(thrown["text"].as_str());
        return Err(failure("exception", words.unwrap_or("the script failed")));
    }
    let mut text = match &answer["result"]["value"] {
        Value::String(text) => text.clone(),
        Value::Null if answer["result"]["subtype"] == "null" => "null".into(),
        Value::Null => answer["result"]["description"].as_str().unwrap_or("undefined").into(),
        other => other.to_string(),
    };
    if text.len() > LONGEST_RESULT {
        text.truncate(text.floor_char_boundary(LONGEST_RESULT));
        text.push_str("\n[cut]");
    }
    Ok(text)
}

/// Where a page begins on the screen: at the bottom of its window, in the middle of it.
fn page_in_window(place: (i32, i32), window: (i32, i32), page: (u32, u32)) -> (i32, i32) {
    let beside = |whole: i32, part: u32| whole.saturating_sub_unsigned(part).max(0);
    let border = beside(window.0, page.0) / 2;
    let above = (beside(window.1, page.1) - border).max(0);
    (place.0.saturating_add(border), place.1.saturating_add(above))
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

fn nothing_to_show(url: &str) -> ToolError {
    let words = format!("{url}: it answered with nothing to show; the page is the one from before");
    failure("nothing_to_show", words)
}
