//! The browser: the Chromium that stands on the desktop, driven by the DevTools protocol.
//!
//! A person who watches the desktop sees the same window. Downloads go into the workspace.

mod devtools;
mod dialogs;
mod downloads;
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
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::answer::Answer;
use super::calls::Call;
use super::desktop::Looker;
use super::failure::failure;
use super::interpreters::{environment, find, private_folder};
use super::process::{Command, Process};
use super::run_process::kill_supervised;
use super::{Guest, desktop};
use devtools::DevTools;
use page::{Opened, Page};

/// How long Chromium may take to answer for the first time.
const STARTING: Duration = Duration::from_secs(60);
/// How long a page may take that something opened beside the others.
const COMING: Duration = Duration::from_secs(5);
/// How long a page may take to be worked on for the first time, and to say whether it is shown. One
/// that is busy for longer is left out.
const ATTACHING: Duration = Duration::from_secs(10);
const ANSWERING: Duration = Duration::from_secs(2);
/// What is left of a call's time to say that a download still runs.
const TELLING: Duration = Duration::from_millis(500);

/// The browser of a sandbox, once there is one.
#[derive(Default)]
pub(super) struct Browsers {
    live: tokio::sync::Mutex<Option<Live>>,
}

struct Live {
    tools: Arc<DevTools>,
    /// The target of each page and the session with it; the one that is worked on first.
    pages: Vec<(String, String)>,
    /// Targets that are to become such, each with what makes a session with it. That goes on after
    /// the call which began it, so that one that never answers is waited for once and not always.
    attaching: Vec<(String, JoinHandle<Result<String, ToolError>>)>,
    /// A call is at work. One that runs out of time is dropped, and leaves this behind.
    at_work: bool,
    /// A call came to no end, so a page may be stuck. Otherwise nobody looks for that.
    doubtful: bool,
}

pub(super) async fn browse(
    guest: &Arc<Guest>,
    looker: Looker,
    call_of: &Browser,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    // Another call may use it; that one ends by its own deadline.
    let work = async {
        ready(guest).await?;
        let mut live = guest.browsers.live.lock().await;
        match live.as_mut() {
            Some(live) => live.work(guest, looker, call_of, deadline).await,
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
    let supervisor = run_chromium(guest, &requests, &answers, tools.clone())?;
    let downloads = guest.workspace.path().join("downloads");
    let behaviour = json!({
        "behavior": "allow", "downloadPath": downloads.to_string_lossy(), "eventsEnabled": true,
    });
    let first = timeout(STARTING, tools.ask(None, "Browser.setDownloadBehavior", behaviour)).await;
    let first = first.unwrap_or_else(|_| {
        Err(failure("no_browser", "Chromium did not answer within a minute; it was ended"))
    });
    if let Err(error) = first {
        // A second one would only hand over to it.
        if !tools.is_closed() {
            kill_supervised(guest, supervisor).await;
        }
        return Err(error);
    }
    Ok(Live { tools, pages: Vec::new(), attaching: Vec::new(), at_work: false, doubtful: false })
}

/// Starts Chromium and returns its supervisor.
fn run_chromium(
    guest: &Guest,
    requests: &Path,
    answers: &Path,
    tools: Arc<DevTools>,
) -> Result<libc::pid_t, ToolError> {
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
    let pid = supervisor.pid();
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
    Ok(pid)
}

impl Live {
    async fn work(
        &mut self,
        guest: &Arc<Guest>,
        looker: Looker,
        call: &Browser,
        deadline: Instant,
    ) -> Result<Answer, ToolError> {
        let tools = self.tools.clone();
        let attending = tools.attend();
        let downloads = tools.downloads();
        self.doubtful |= std::mem::replace(&mut self.at_work, true);
        let answer = self.act(guest, looker, call).await;
        self.at_work = false;
        let answer = answer?;
        let _ = timeout_at(deadline - TELLING, tools.wait_for_downloads(downloads)).await;
        let notes =
            [answer.note.into_iter().collect(), tools.take_downloads(), attending.dialogs()];
        let notes = notes.concat();
        let note = (!notes.is_empty()).then(|| notes.join("\n"));
        Ok(Answer { note, ..answer })
    }

    /// Does what was asked for.
    async fn act(
        &mut self,
        guest: &Arc<Guest>,
        looker: Looker,
        call: &Browser,
    ) -> Result<Answer, ToolError> {
        let session = self.session().await?;
        if !self.doubtful || call.action == Browse::Console {
            return self.act_on(&session, guest, looker, call).await;
        }
        let (session, note) = self.mend(session, call.action).await?;
        self.doubtful = false;
        let answer = self.act_on(&session, guest, looker, call).await?;
        Ok(Answer { note: note.map(Into::into).or(answer.note), ..answer })
    }

    async fn act_on(
        &mut self,
        session: &str,
        guest: &Arc<Guest>,
        looker: Looker,
        call: &Browser,
    ) -> Result<Answer, ToolError> {
        let page = Page { tools: &self.tools, session };
        let node = match (&call.name, call.action) {
            (Some(name), Browse::Click | Browse::Fill) if call.node.is_none() => {
                page.find(name).await?
            }
            _ => call.node.unwrap_or_default(),
        };
        let text = call.text.as_deref().unwrap_or_default();
        let url = call.url.as_deref().unwrap_or_default();
        match call.action {
            Browse::Open => match page.open(self.target(session), url).await? {
                Opened::Page => page.read().await,
                Opened::Another => {
                    let note = Some("another page was opened meanwhile; this is that one".into());
                    Ok(Answer { note, ..page.read().await? })
                }
                Opened::Download => {
                    Ok(Answer::text("this is a download; the page is the one from before"))
                }
            },
            Browse::Read => page.read().await,
            Browse::Click => {
                page.click(node).await?;
                // It may have opened another page, which is then the one that is shown.
                let shown = self.session().await?;
                let page = Page { tools: &self.tools, session: &shown };
                if shown != *session {
                    let _ = timeout(COMING, page.wait_until_there()).await;
                }
                page.read().await
            }
            Browse::Fill => {
                page.fill(node, text).await?;
                page.read().await
            }
            Browse::Back => {
                let before = self.tools.documents();
                page.evaluate("history.back()").await?;
                page.settle(before).await;
                page.read().await
            }
            Browse::Script => page.run(text).await.map(Answer::text),
            Browse::Screenshot => page.screenshot(guest, looker, call.fit).await,
            Browse::Console => {
                let remarks = self.tools.take_remarks();
                let none = remarks.is_empty();
                Ok(Answer::text(if none { "nothing was said".into() } else { remarks.join("\n") }))
            }
        }
    }

    /// Gets a page that answers, after a call came to no end: this one, if need be by stopping its
    /// script, or a new one in its place if another is to be opened anyway. Also says what was done.
    async fn mend(
        &mut self,
        session: String,
        action: Browse,
    ) -> Result<(String, Option<&'static str>), ToolError> {
        let page = Page { tools: &self.tools, session: &session };
        if page.answers().await {
            return Ok((session, None));
        }
        // The browser asks a page nothing while it waits for the next one.
        let silent = self.pages[0].0.clone();
        let is_coming = self.tools.is_coming(&silent);
        if !is_coming {
            page.stop_script().await;
            if page.answers().await {
                return Ok((session, Some("the page was stuck; its script was stopped")));
            }
        }
        if action != Browse::Open {
            let (code, words) = match is_coming {
                true => ("page_loading", "the next page has not come yet; look again later"),
                false => ("page_stuck", "the page is stuck and answers nothing"),
            };
            return Err(failure(code, format!("{words}; `open` makes a new one")));
        }
        let session = self.make_page().await?;
        self.tools.ask(None, "Target.closeTarget", json!({ "targetId": silent })).await?;
        Ok((session, Some("the page before did not answer; it was closed and a new one made")))
    }

    async fn make_page(&mut self) -> Result<String, ToolError> {
        let made = json!({ "url": "about:blank" });
        let made = self.tools.ask(None, "Target.createTarget", made).await?;
        let target = made["targetId"].as_str().unwrap_or_default().to_owned();
        let session = attach(self.tools.clone(), target.clone()).await?;
        self.pages.insert(0, (target, session.clone()));
        self.tools.work_on(&session);
        Ok(session)
    }

    /// The session with the page that is to be worked on: the one that people see.
    async fn session(&mut self) -> Result<String, ToolError> {
        let targets = self.tools.ask(None, "Target.getTargets", json!({})).await?;
        let targets = targets["targetInfos"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_page = |target: &&Value| target["type"] == "page";
        let ids: Vec<&str> =
            targets.iter().filter(is_page).filter_map(|page| page["targetId"].as_str()).collect();
        self.pages.retain(|(target, _)| ids.contains(&target.as_str()));
        self.attaching.retain(|(target, _)| ids.contains(&target.as_str()));
        for id in ids {
            if !self.pages.iter().any(|(target, _)| target == id) {
                self.attach_to(id).await;
            }
        }
        if self.pages.is_empty() {
            return self.make_page().await;
        }
        // The newest first, for those that have come are in front of the others.
        let shown = self.first_that_is_shown().await.unwrap_or_default();
        let page = self.pages.remove(shown);
        self.pages.insert(0, page);
        let session = self.pages[0].1.clone();
        self.tools.work_on(&session);
        Ok(session)
    }

    /// The target of the page that a session is with.
    fn target(&self, session: &str) -> &str {
        let page = self.pages.iter().find(|(_, known)| known == session);
        page.map(|(target, _)| target.as_str()).unwrap_or_default()
    }

    /// Which of several pages is not behind another.
    async fn first_that_is_shown(&self) -> Option<usize> {
        if self.pages.len() < 2 {
            return None;
        }
        // Where none of the others is shown, it is one that does not answer.
        let mut silent = None;
        for (n, (_, session)) in self.pages.iter().enumerate() {
            let page = Page { tools: &self.tools, session };
            match timeout(ANSWERING, page.evaluate("document.visibilityState")).await {
                Ok(Ok(state)) if state == "visible" => return Some(n),
                Ok(_) => {}
                Err(_) => silent = silent.or(Some(n)),
            }
        }
        silent
    }

    /// Gets a session with a target. A page without one is one that nobody can work on.
    async fn attach_to(&mut self, target: &str) {
        let known = self.attaching.iter().position(|(known, _)| known == target);
        let n = known.unwrap_or_else(|| {
            let attaching = tokio::spawn(attach(self.tools.clone(), target.to_owned()));
            self.attaching.push((target.to_owned(), attaching));
            self.attaching.len() - 1
        });
        let patience = if known.is_some() { Duration::ZERO } else { ATTACHING };
        if let Ok(attached) = timeout(patience, &mut self.attaching[n].1).await {
            let (target, _) = self.attaching.remove(n);
            if let Ok(Ok(session)) = attached {
                self.pages.insert(0, (target, session));
            }
        }
    }
}

async fn attach(tools: Arc<DevTools>, target: String) -> Result<String, ToolError> {
    let attach = json!({ "targetId": target, "flatten": true });
    let attached = tools.ask(None, "Target.attachToTarget", attach).await?;
    let session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
    Page { tools: &tools, session: &session }.enable().await?;
    Ok(session)
}
