//! The browser: the Chromium that stands on the desktop, driven by the DevTools protocol.
//!
//! A person who watches the desktop sees the same window. Downloads go into the workspace.

mod devtools;
mod dialogs;
mod outline;
mod page;
mod remarks;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::job::Screen;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::{Browse, Browser};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::Answer;
use super::calls::Call;
use super::failure::failure;
use super::interpreters::{environment, find, private_folder};
use super::process::{Command, Process};
use super::{Guest, desktop};
use devtools::DevTools;
use page::Page;

/// How long Chromium may take to answer for the first time.
const STARTING: Duration = Duration::from_secs(60);
/// How long a page may take that something opened beside the others.
const COMING: Duration = Duration::from_secs(5);
/// How long a page may take to be worked on for the first time, and to say whether it is shown. One
/// that is busy for longer is left out.
const ATTACHING: Duration = Duration::from_secs(10);
const ANSWERING: Duration = Duration::from_secs(2);

/// The browser of a sandbox, once there is one.
#[derive(Default)]
pub(super) struct Browsers {
    live: tokio::sync::Mutex<Option<Live>>,
}

struct Live {
    tools: Arc<DevTools>,
    /// The target of each page and the session with it; the one that is worked on first.
    pages: Vec<(String, String)>,
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
            Some(live) => live.work(guest, call_of).await,
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
    Ok(Live { tools, pages: Vec::new() })
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
    async fn work(&mut self, guest: &Arc<Guest>, call: &Browser) -> Result<Answer, ToolError> {
        let tools = self.tools.clone();
        let attending = tools.attend();
        let answer = self.act(guest, call).await?;
        let note = answer.note.or_else(|| attending.dialogs());
        Ok(Answer { note, ..answer })
    }

    async fn act(&mut self, guest: &Arc<Guest>, call: &Browser) -> Result<Answer, ToolError> {
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
                // It may have opened another page, which is then the one that is shown.
                let shown = self.session().await?;
                let page = Page { tools: &self.tools, session: &shown };
                if shown != session {
                    let _ = timeout(COMING, page.wait_until_there()).await;
                }
                page.read().await
            }
            Browse::Fill => {
                page.fill(node, text).await?;
                page.read().await
            }
            Browse::Back => {
                let before = self.tools.loads();
                page.evaluate("history.back()").await?;
                page.settle(before).await;
                page.read().await
            }
            Browse::Script => page.evaluate(text).await.map(Answer::text),
            Browse::Screenshot => page.screenshot(guest, call.fit).await,
            Browse::Console => {
                let remarks = self.tools.take_remarks();
                let none = remarks.is_empty();
                Ok(Answer::text(if none { "nothing was said".into() } else { remarks.join("\n") }))
            }
        }
    }

    /// The session with the page that is to be worked on: the one that people see.
    async fn session(&mut self) -> Result<String, ToolError> {
        let targets = self.tools.ask(None, "Target.getTargets", json!({})).await?;
        let targets = targets["targetInfos"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_page = |target: &&Value| target["type"] == "page";
        let ids: Vec<&str> =
            targets.iter().filter(is_page).filter_map(|page| page["targetId"].as_str()).collect();
        self.pages.retain(|(target, _)| ids.contains(&target.as_str()));
        let is_new = |id: &&&str| !self.pages.iter().any(|(target, _)| target == **id);
        for new in ids.iter().filter(is_new).map(|id| (*id).to_owned()).collect::<Vec<_>>() {
            // One that does not answer is one that nobody can work on.
            let _ = timeout(ATTACHING, self.attach(new)).await;
        }
        if self.pages.is_empty() {
            let made = json!({ "url": "about:blank" });
            let made = self.tools.ask(None, "Target.createTarget", made).await?;
            self.attach(made["targetId"].as_str().unwrap_or_default().to_owned()).await?;
        }
        // The newest first, for those that have come are in front of the others.
        let shown = self.first_that_is_shown().await.unwrap_or_default();
        let page = self.pages.remove(shown);
        self.pages.insert(0, page);
        let session = self.pages[0].1.clone();
        self.tools.work_on(&session);
        Ok(session)
    }

    /// Which of several pages is not behind another.
    async fn first_that_is_shown(&self) -> Option<usize> {
        if self.pages.len() < 2 {
            return None;
        }
        for (n, (_, session)) in self.pages.iter().enumerate() {
            let page = Page { tools: &self.tools, session };
            let asked = timeout(ANSWERING, page.evaluate("document.visibilityState")).await;
            if asked.is_ok_and(|state| state.is_ok_and(|state| state == "visible")) {
                return Some(n);
            }
        }
        None
    }

    async fn attach(&mut self, target: String) -> Result<(), ToolError> {
        let attach = json!({ "targetId": target, "flatten": true });
        let attached = self.tools.ask(None, "Target.attachToTarget", attach).await?;
        let session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "DOM", "Accessibility"] {
            self.tools.ask(Some(&session), &format!("{domain}.enable"), json!({})).await?;
        }
        self.pages.insert(0, (target, session));
        Ok(())
    }
}
