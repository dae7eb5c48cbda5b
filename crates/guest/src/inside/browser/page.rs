//! One page of the browser: opened, read, clicked, filled in, looked at.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::step::{ToolError, decode_base64};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::devtools::DevTools;
use super::outline::{Frame, Inside, Outline};
use crate::inside::answer::Answer;
use crate::inside::desktop::Looker;
use crate::inside::failure::failure;
use crate::inside::{Guest, desktop};

/// How long a page may take to come after something was clicked, before the call goes on without.
const SETTLING: Duration = Duration::from_millis(700);
/// How often a page that is to come is looked for.
const LOOKING_AGAIN: Duration = Duration::from_millis(20);
/// How long a download or another page may take to begin that a page has given way to.
const BEGINNING: Duration = Duration::from_secs(2);
/// How long a page may take for what takes no time, before it counts as stuck.
const ANSWERING: Duration = Duration::from_secs(4);
/// Frames of a page that are read.
const MOST_FRAMES: usize = 50;
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
    /// Somebody went elsewhere before it had come.
    Another,
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

    pub(super) async fn open(&self, target: &str, url: &str) -> Result<Opened, ToolError> {
        let (documents, downloads) = (self.tools.documents(), self.tools.downloads());
        let opened = self.ask("Page.navigate", json!({ "url": url })).await?;
        if let Some(words) = opened["errorText"].as_str().filter(|words| !words.is_empty()) {
            if words == "net::ERR_ABORTED" {
                let instead = self.came_instead(target, documents, downloads).await;
                return instead.ok_or_else(|| nothing_to_show(url));
            }
            return Err(failure("page_not_opened", format!("{url}: {words}")));
        }
        // Another place on the same page: nothing is loaded for it.
        if opened["loaderId"].as_str().is_none_or(str::is_empty) {
            return Ok(Opened::Page);
        }
        self.tools.wait_for_load(documents).await;
        Ok(Opened::Page)
    }

    /// What became of a page that was given up, which Chromium says of three: of what it downloads instead
    /// of showing it, just before it does; of one that somebody left for another; and of an answer without
    /// anything, in whose place nothing comes.
    async fn came_instead(&self, target: &str, documents: u64, downloads: u64) -> Option<Opened> {
        loop {
            let came = self.tools.wait_for_any(documents, target, downloads);
            match timeout(BEGINNING, came).await {
                Ok(()) => break,
                // It is asked for, and takes its time.
                Err(_) if self.tools.is_coming(target) => {}
                Err(_) => return None,
            }
        }
        if self.tools.documents() == documents {
            return Some(Opened::Download);
        }
        self.tools.wait_for_load(documents).await;
        Some(Opened::Another)
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
        Ok(Answer::text(format!("{place}\n\n{}", self.outline().await?.text())))
    }

    async fn outline(&self) -> Result<Outline, ToolError> {
        let (tree, bytes) = self.tree(json!({})).await?;
        let mut outline = Outline::of(tree, bytes);
        let known = self.ask("Page.getFrameTree", json!({})).await?;
        let mut here = Vec::new();
        collect_frames(&known["frameTree"], &mut here);
        // Those of other sites have processes of their own, and numbers of their own in them.
        let targets = self.tools.ask(None, "Target.getTargets", json!({})).await?;
        let targets = targets["targetInfos"].as_array().into_iter().flatten();
        let elsewhere = targets.filter(|target| target["type"] == "iframe");
        let elsewhere = elsewhere.map(|target| (&target["targetId"], &target["url"], false));
        let frames = here.into_iter().map(|(id, url)| (id, url, true)).chain(elsewhere);
        for (id, address, is_here) in frames.take(MOST_FRAMES) {
            // One that is gone by now, or is another page's, has no owner here.
            let owner = self.ask("DOM.getFrameOwner", json!({ "frameId": id })).await;
            let Some(owner) = owner.ok().and_then(|owner| owner["backendNodeId"].as_u64()) else {
                continue;
            };
            let tree = match is_here {
                true => self.tree(json!({ "frameId": id })).await.ok(),
                false => None,
            };
            let inside = match tree {
                Some((tree, bytes)) => outline.take_in(tree, bytes),
                None => Inside::OfAnotherSite,
            };
            let address = address.as_str().unwrap_or_default().to_owned();
            outline.add_frame(owner, Frame { address, inside });
        }
        Ok(outline)
    }

    async fn tree(&self, of: Value) -> Result<(Value, usize), ToolError> {
        self.tools.ask_and_measure(Some(self.session), "Accessibility.getFullAXTree", of).await
    }

    /// The one thing that has this name.
    pub(super) async fn find(&self, name: &str) -> Result<u64, ToolError> {
        match self.outline().await?.named(name.trim())[..] {
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
        let before = self.tools.documents();
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
        let prepared = self.call_on(&object, PREPARE_FIELD, json!([{ "value": text }])).await?;
        match prepared["how"].as_str().unwrap_or_default() {
            "done" => return Ok(()),
            "type" => {}
            why => return Err(not_filled(node, why)),
        }
        // What is chosen in the field is gone already if nothing takes its place.
        if !text.is_empty() {
            self.ask("Input.insertText", json!({ "text": text })).await?;
        }
        let arguments = json!([{ "value": text }, { "value": prepared["before"] }]);
        let holds = self.call_on(&object, LOOK_AT_FIELD, arguments).await?;
        if holds == false {
            let words = format!(
                "[{node}] does not hold what was typed into it; `read` shows what became of it"
            );
            return Err(failure("not_taken", words));
        }
        Ok(())
    }

    /// What a function gives for something on the page.
    async fn call_on(
        &self,
        object: &Value,
        function: &str,
        arguments: Value,
    ) -> Result<Value, ToolError> {
        let called = json!({
            "objectId": object, "functionDeclaration": function, "returnByValue": true,
            "arguments": arguments,
        });
        let mut answer = self.ask("Runtime.callFunctionOn", called).await?;
        Ok(answer["result"]["value"].take())
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
        looker: Looker,
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
        let answer = desktop::give_picture_of(guest, looker, place, content, fit).await?;
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

/// Makes a field ready to be typed into, or sets it where typing makes no sense. Says which, or why neither:
/// what is typed goes to whatever has the keyboard, so that must be the field.
const PREPARE_FIELD: &str = r#"function (text) {
    const done = () => {
        this.dispatchEvent(new Event('input', { bubbles: true }));
        this.dispatchEvent(new Event('change', { bubbles: true }));
        return { how: 'done' };
    };
    if (this.matches(':disabled')) return { how: 'disabled' };
    if (this instanceof HTMLSelectElement) {
        const option = [...this.options].find((o) => o.value === text || o.label.trim() === text.trim());
        if (!option || option.matches(':disabled')) return { how: 'value' };
        this.value = option.value;
        return done();
    }
    const kind = this instanceof HTMLInputElement ? this.type : '';
    if (['checkbox', 'radio'].includes(kind)) {
        const word = text.trim().toLowerCase();
        const wanted = ['true', 'yes', 'on', '1'].includes(word);
        if (!wanted && !['false', 'no', 'off', '0'].includes(word)) return { how: 'word' };
        if (this.checked !== wanted) this.click();
        return { how: this.checked === wanted ? 'done' : 'value' };
    }
    const isSet = ['range', 'color'].includes(kind);
    if (this.readOnly && !isSet) return { how: 'read-only' };
    if (isSet || ['date', 'time', 'datetime-local', 'month', 'week'].includes(kind)) {
        const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
        const before = this.value;
        set.call(this, text);
        const word = text.trim().toLowerCase();
        const took = {
            range: () => word !== '' && Number(this.value) === Number(word),
            color: () => this.value === word,
        }[kind] ?? (() => this.value !== '' || word === '');
        if (took()) return done();
        set.call(this, before);
        return { how: 'value' };
    }
    if (['file', 'submit', 'button', 'image', 'reset', 'hidden'].includes(kind)) return { how: 'kind' };
    let field = this;
    if (!field.select) {
        if (!field.isContentEditable) return { how: 'kind' };
        while (field.parentElement?.isContentEditable) field = field.parentElement;
    }
    field.focus();
    if (field.getRootNode().activeElement !== field) return { how: 'focus' };
    if (field.select) field.select();
    else document.execCommand('selectAll');
    if (text === '') document.execCommand('delete');
    return { how: 'type', before: field.value ?? null };
}"#;

/// Whether a field holds what was typed, as far as that can be told: pages may write it in another way.
const LOOK_AT_FIELD: &str = r#"function (text, before) {
    if (before === null) return true;
    const plain = (text) => text.replace(/\r\n?/g, '\n').trim();
    const now = plain(this.value);
    return now === plain(text) || (now !== '' && now !== plain(before));
}"#;

fn not_filled(node: u64, why: &str) -> ToolError {
    let words = match why {
        "disabled" => "is disabled",
        "read-only" => "can only be read",
        "value" => "does not take this value",
        "word" => "is ticked by `true` and cleared by `false`",
        "focus" => "cannot be typed into: it is hidden, or the page has the keyboard elsewhere",
        _ => "cannot be filled with this; it is no field for it",
    };
    failure("not_a_field", format!("[{node}] {words}"))
}

/// The frames within a frame, each by its id and address.
fn collect_frames<'a>(frame: &'a Value, found: &mut Vec<(&'a Value, &'a Value)>) {
    for child in frame["childFrames"].as_array().into_iter().flatten() {
        found.push((&child["frame"]["id"], &child["frame"]["url"]));
        collect_frames(child, found);
    }
}

fn unknown(node: u64) -> ToolError {
    failure("no_such_element", format!("there is no [{node}] on the page now; `read` it again"))
}

fn nothing_to_show(url: &str) -> ToolError {
    let words = format!("{url}: it answered with nothing to show; the page is the one from before");
    failure("nothing_to_show", words)
}
