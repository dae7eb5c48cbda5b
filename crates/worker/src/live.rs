//! The sandboxes that run here now, by job: how the HTTP side reaches a running workspace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{CallId, JobId};
use bellglass_protocol::job::{JobSpec, Limits, Screen};
use bellglass_protocol::step::{OutputStream, StepOutcome};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::tunnel::{Inside, LivePlace, MAX_TUNNELS, Terminal};
use bellglass_sandbox::client::{ClientError, GuestClient, OpenTerminal, OutputSink, Tunnel};
use bellglass_store::StoreError;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::attachments;
use crate::capture::Capture;
use crate::control::{DesktopControl, Taken};
use crate::hands::{GUEST_GRACE, describe};
use crate::job_log::JobLog;
use crate::outcome;

/// A register of running sandboxes. Clones share it.
#[derive(Clone, Default)]
pub struct LiveSandboxes(Arc<RwLock<HashMap<JobId, LiveSandbox>>>);

/// A sandbox that runs here, and how many files may be on their way from and to it.
///
/// Each takes a thread of the guest and a stream of the wire, which the job itself needs too. The
/// ways are counted apart, so that readers who do not read leave room for writers.
#[derive(Clone)]
pub struct LiveSandbox {
    pub guest: GuestClient,
    log: JobLog,
    limits: Limits,
    calls: Arc<Semaphore>,
    pub reads: Arc<Semaphore>,
    pub writes: Arc<Semaphore>,
    /// Places for streams into the sandbox.
    tunnels: Arc<Semaphore>,
    /// How large the desktop is that viewers find.
    screen: Screen,
    control: DesktopControl,
    visits: Arc<Mutex<Visits>>,
}

/// Who was seen where, and when that was written down last.
type Visits = HashMap<(String, LivePlace), Instant>;

/// How long somebody who comes back to the same place is not written down again: a page that
/// connects anew after each break would fill the log.
const SAME_VISIT: Duration = Duration::from_secs(600);

/// A connection to something inside, and its place among so many.
pub type LiveTunnel = (Tunnel, OwnedSemaphorePermit);

/// A terminal for a person, and its place among so many.
pub type LiveTerminal = (OpenTerminal, OwnedSemaphorePermit);

/// Why somebody does not get into a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("{MAX_TUNNELS} connections lead into this sandbox; close one")]
    Full,
    #[error(transparent)]
    Guest(#[from] ClientError),
    #[error("it could not be written down")]
    Store(#[from] StoreError),
    #[error("{0} works with the desktop")]
    Taken(String),
}

/// Files on their way at once, each way.
const MOST_TRANSFERS: usize = 16;

impl LiveSandboxes {
    /// The sandbox of a job, if it runs here.
    pub fn get(&self, job: JobId) -> Option<LiveSandbox> {
        self.0.read().expect("no code panics while it holds this lock").get(&job).cloned()
    }

    pub(crate) fn enter(&self, log: JobLog, guest: GuestClient, spec: &JobSpec) -> Presence {
        let room = || Arc::new(Semaphore::new(MOST_TRANSFERS));
        let job = log.job;
        let calls = Arc::new(Semaphore::new(MOST_CALLS));
        let (reads, writes) = (room(), room());
        let sandbox = LiveSandbox {
            guest,
            control: DesktopControl::new(log.clone()),
            log,
            limits: spec.limits,
            calls,
            reads,
            writes,
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            screen: spec.desktop.unwrap_or_default(),
            visits: Arc::default(),
        };
        let control = sandbox.control.clone();
        self.0.write().expect("no code panics while it holds this lock").insert(job, sandbox);
        metrics::gauge!("bellglass_sandboxes_running").increment(1.0);
        Presence { register: self.clone(), job, control }
    }
}

impl LiveSandbox {
    /// Runs a tool for somebody who is not the job's mind, and writes down that it did. The error is
    /// for that somebody.
    pub async fn use_tool(&self, by: &str, call: ToolCall) -> Result<Used, String> {
        let Ok(_permit) = self.calls.try_acquire() else {
            return Err(format!("{MOST_CALLS} calls are under way in this sandbox; wait for one"));
        };
        let mut keeper = Heard(Capture::new(self.log.recording()));
        let time = call.timeout().unwrap_or(self.limits.step_time).duration();
        let id = CallId::unique();
        let called = self.guest.call(&id, &call, time, 0, &mut keeper);
        let called = match tokio::time::timeout(time + GUEST_GRACE, called).await {
            Ok(called) => called.map_err(|error| describe(&error)),
            Err(_) => Err("the guest did not keep the call's time limit".into()),
        };
        let given = match &called {
            Ok(result) => attachments::take(&self.guest, &id, &result.attachments).await,
            Err(_) => Ok(Vec::new()),
        };
        // Whatever came of it, nobody asks for it again.
        let _ = self.guest.forget_call(&id).await;
        let outcome = outcome::of_result(&keeper.0, called?, None);
        let given = given.map_err(|error| error.to_string())?;
        let used = EventBody::ToolUsed { by: by.into(), call, outcome: Box::new(outcome.clone()) };
        self.log.append_soon(vec![used]).await.map_err(|error| error.to_string())?;
        Ok(Used { outcome, given })
    }
}

impl LiveSandbox {
    /// Connects to something inside. Says nothing about it in the log: a page connects many times.
    pub async fn connect(&self, to: Inside) -> Result<LiveTunnel, LiveError> {
        let place = self.place()?;
        Ok((self.guest.tunnel(to).await?, place))
    }

    /// Connects to the desktop, which is started unless it runs.
    pub async fn view_desktop(&self, by: &str) -> Result<LiveTunnel, LiveError> {
        let opened = self.connect(Inside::Desktop { screen: self.screen }).await?;
        self.note_visit(by, LivePlace::Desktop).await?;
        Ok(opened)
    }

    pub async fn open_terminal(
        &self,
        by: &str,
        terminal: Terminal,
    ) -> Result<LiveTerminal, LiveError> {
        let place = self.place()?;
        let visited = match &terminal {
            Terminal::Shell { .. } => LivePlace::Terminal,
            Terminal::Session { name } => LivePlace::Session(name.clone()),
        };
        let terminal = self.guest.open_terminal(terminal).await?;
        self.note_visit(by, visited).await?;
        Ok((terminal, place))
    }

    /// Gives the desktop to a person, until what this returns is dropped.
    pub async fn take_desktop(&self, by: &str) -> Result<Taken, LiveError> {
        self.control.take(by).await
    }

    /// Writes down that somebody opened something, unless that was said a moment ago.
    pub async fn note_visit(&self, by: &str, place: LivePlace) -> Result<(), LiveError> {
        {
            let mut visits = self.visits.lock().expect("no code panics while it holds this lock");
            visits.retain(|_, noted| noted.elapsed() < SAME_VISIT);
            if visits.insert((by.into(), place.clone()), Instant::now()).is_some() {
                return Ok(());
            }
        }
        Ok(self.log.append_soon(vec![EventBody::LiveOpened { by: by.into(), place }]).await?)
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, LiveError> {
        self.tunnels.clone().try_acquire_owned().map_err(|_| LiveError::Full)
    }
}

/// What came of a call for somebody who is not the job's mind.
pub struct Used {
    pub outcome: StepOutcome,
    /// What it gave beside text, each with its type. Kept by nobody else.
    pub given: Vec<(String, Bytes)>,
}

/// Calls at once, beside those of the job's mind.
const MOST_CALLS: usize = 8;

struct Heard(Capture);

#[async_trait]
impl OutputSink for Heard {
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> std::io::Result<()> {
        self.0.push(stream, &piece);
        Ok(())
    }
}

/// A sandbox's entry in the register; removes it when dropped.
pub(crate) struct Presence {
    register: LiveSandboxes,
    job: JobId,
    pub(crate) control: DesktopControl,
}

impl Drop for Presence {
    fn drop(&mut self) {
        metrics::gauge!("bellglass_sandboxes_running").decrement(1.0);
        if let Ok(mut register) = self.register.0.write() {
            register.remove(&self.job);
        }
    }
}
