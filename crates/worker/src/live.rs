//! The sandboxes that run here now, by job: how the HTTP side reaches a running workspace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{JobSpec, Limits, Screen};
use bellglass_protocol::tunnel::{Inside, LivePlace, MAX_TUNNELS, Terminal};
use bellglass_sandbox::client::{ClientError, GuestClient, OpenTerminal, Tunnel};
use bellglass_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::control::{DesktopControl, Taken};
use crate::job_log::JobLog;
use crate::on_behalf::MOST_CALLS;

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
    pub(crate) log: JobLog,
    pub(crate) limits: Limits,
    pub(crate) calls: Arc<Semaphore>,
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
    /// This process is ending.
    #[error("it was interrupted, and nobody knows how far it came")]
    Interrupted,
}

/// Files on their way at once, each way.
const MOST_TRANSFERS: usize = 16;

impl LiveSandboxes {
    /// The sandbox of a job, if it runs here.
    pub fn get(&self, job: JobId) -> Option<LiveSandbox> {
        self.0.read().expect("no code panics while it holds this lock").get(&job).cloned()
    }

    pub(crate) fn enter(
        &self,
        log: JobLog,
        guest: GuestClient,
        spec: &JobSpec,
        control: DesktopControl,
    ) -> Presence {
        let room = || Arc::new(Semaphore::new(MOST_TRANSFERS));
        let job = log.job;
        let calls = Arc::new(Semaphore::new(MOST_CALLS));
        let (reads, writes) = (room(), room());
        let sandbox = LiveSandbox {
            guest,
            control,
            log,
            limits: spec.limits,
            calls,
            reads,
            writes,
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            screen: spec.desktop.unwrap_or_default(),
            visits: Arc::default(),
        };
        self.0.write().expect("no code panics while it holds this lock").insert(job, sandbox);
        metrics::gauge!("bellglass_sandboxes_running").increment(1.0);
        Presence { register: self.clone(), job }
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
        let opened = EventBody::LiveOpened { by: by.into(), place: place.clone() };
        let noted = self.log.append_soon(vec![opened]).await;
        if noted.is_err() {
            // What may not stand in the log is said again next time.
            let mut visits = self.visits.lock().expect("no code panics while it holds this lock");
            visits.remove(&(by.to_owned(), place));
        }
        Ok(noted?)
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, LiveError> {
        self.tunnels.clone().try_acquire_owned().map_err(|_| LiveError::Full)
    }
}

/// A sandbox's entry in the register; removes it when dropped.
pub(crate) struct Presence {
    register: LiveSandboxes,
    job: JobId,
}

impl Drop for Presence {
    fn drop(&mut self) {
        metrics::gauge!("bellglass_sandboxes_running").decrement(1.0);
        if let Ok(mut register) = self.register.0.write() {
            register.remove(&self.job);
        }
    }
}
