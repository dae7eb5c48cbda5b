//! A guest of the test's own making, and a backend that gives it the wire.
//!
//! It speaks the wire's language well enough to be let in, and then does what it likes.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::mux::{End, Mux, MuxStream, multiplex};
use bellglass_protocol::report::Probe;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::wire::{
    CallResult, Equipment, Frame, FrameCodec, PROTOCOL_VERSION, Reply, Request, WireError,
};
use bellglass_sandbox::backend::SetUp;
use bellglass_sandbox::egress::Egress;
use bellglass_sandbox::{
    Backend, BackendError, RunningSandbox, Sandbox, SandboxError, SandboxName, SandboxOrder,
    WireStream,
};
use futures::future::BoxFuture;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::DuplexStream;
use tokio_util::codec::Framed;

/// One exchange, from the guest's side. Frames are written as they are.
pub(crate) type Exchange = Framed<MuxStream, FrameCodec>;

/// What a guest does with the wire that it is given.
pub(crate) type Guest = Arc<dyn Fn(DuplexStream) -> BoxFuture<'static, ()> + Send + Sync>;

/// A guest made of a function over the bare wire.
pub(crate) fn guest<F>(behaviour: impl Fn(DuplexStream) -> F + Send + Sync + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |wire| Box::pin(behaviour(wire)))
}

/// A guest that greets as it should and leaves every other request to `answer`.
pub(crate) fn greeting<F>(
    answer: impl Fn(Request, Exchange) -> F + Send + Sync + Clone + 'static,
) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    guest(move |wire| serve(wire, answer.clone(), |_| {}))
}

/// Serves the wire. `opened` gets the means to open streams from the guest's side.
pub(crate) async fn serve<F>(
    wire: DuplexStream,
    answer: impl Fn(Request, Exchange) -> F + Send + Sync + Clone + 'static,
    opened: impl FnOnce(Mux),
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (mux, mut incoming, driver) = multiplex(wire, End::Guest);
    let driver = tokio::spawn(driver);
    opened(mux.clone());
    while let Some(stream) = incoming.recv().await {
        let answer = answer.clone();
        tokio::spawn(async move {
            let mut exchange = Framed::new(stream, FrameCodec::for_guest());
            let Some(Ok(Frame::Message(text))) = exchange.next().await else { return };
            match serde_json::from_slice(&text).unwrap() {
                Request::Hello { .. } => drop(say(&mut exchange, &welcome()).await),
                request => answer(request, exchange).await,
            }
        });
    }
    drop(mux);
    let _ = driver.await;
}

/// Answers as a guest does that means no harm: every call succeeds, the workspace is empty.
pub(crate) async fn behave(request: Request, mut exchange: Exchange) {
    let reply = match request {
        Request::Call { .. } => Reply::Done { result: success() },
        Request::Pack | Request::ListFolder { .. } => Reply::End,
        Request::Checkpoint { .. } => {
            let _ = say(&mut exchange, &Reply::Changes { since: None }).await;
            Reply::End
        }
        _ => Reply::Ok,
    };
    let _ = say(&mut exchange, &reply).await;
}

pub(crate) async fn say(exchange: &mut Exchange, reply: &Reply) -> Result<(), WireError> {
    exchange.send(Frame::message(reply)).await
}

pub(crate) fn welcome() -> Reply {
    let probe = Box::<Probe>::default();
    Reply::Welcome { protocol: PROTOCOL_VERSION, version: "fake".into(), probe }
}

pub(crate) fn success() -> CallResult {
    CallResult {
        status: StepStatus::Succeeded,
        exit_code: Some(0),
        signal: None,
        text: None,
        error: None,
        duration_us: 1,
        output_bytes: 0,
        memory_kills: 0,
        note: None,
        attachments: Vec::new(),
    }
}

/// Starts sandboxes whose guests are what the test says: the first is the first's, and so on. The
/// last one serves all that come after.
pub(crate) struct FakeBackend {
    guests: Vec<Guest>,
    started: AtomicUsize,
    pub(crate) stopped: Arc<AtomicUsize>,
    /// How many more times a sandbox cannot be stopped.
    pub(crate) unstoppable: Arc<AtomicUsize>,
}

impl FakeBackend {
    pub(crate) fn new(guests: Vec<Guest>) -> Self {
        let started = AtomicUsize::new(0);
        Self { guests, started, stopped: Arc::default(), unstoppable: Arc::default() }
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn level(&self) -> IsolationLevel {
        IsolationLevel::Namespace
    }

    async fn start(&self, _: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let n = self.started.fetch_add(1, Ordering::Relaxed);
        let guest = &self.guests[n.min(self.guests.len() - 1)];
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(guest(theirs));
        let (stopped, unstoppable) = (self.stopped.clone(), self.unstoppable.clone());
        Ok(Box::new(FakeSandbox { wire: Mutex::new(Some(ours)), stopped, unstoppable }))
    }

    async fn find(&self, _: &SandboxName) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        Ok(None)
    }

    async fn remove(&self, _: &SandboxName) -> Result<(), BackendError> {
        Ok(())
    }

    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        Ok(HashSet::new())
    }

    async fn remove_orphans(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        Ok(0)
    }

    async fn sweep(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        Ok(0)
    }
}

struct FakeSandbox {
    wire: Mutex<Option<DuplexStream>>,
    stopped: Arc<AtomicUsize>,
    unstoppable: Arc<AtomicUsize>,
}

#[async_trait]
impl RunningSandbox for FakeSandbox {
    async fn connect(&self) -> Result<Box<dyn WireStream>, BackendError> {
        let wire = self.wire.lock().unwrap().take();
        Ok(Box::new(wire.expect("the wire is taken once")))
    }

    async fn stop(&self) -> Result<(), BackendError> {
        let left = self.unstoppable.load(Ordering::Relaxed);
        if left > 0 {
            self.unstoppable.store(left - 1, Ordering::Relaxed);
            return Err(BackendError::Launch { stage: "stop".into(), error: "not yet".into() });
        }
        self.stopped.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn gone(&self) {
        std::future::pending().await
    }

    async fn out_of_memory_kills(&self) -> u64 {
        0
    }

    fn set_up(&self) -> SetUp {
        SetUp::default()
    }
}

/// Starts a sandbox and greets its guest, as the worker does.
pub(crate) async fn start(
    backend: &FakeBackend,
    egress: Option<Arc<Egress>>,
) -> Result<Sandbox, SandboxError> {
    let order = SandboxOrder {
        name: SandboxName::throwaway(),
        rootfs: "/nowhere".into(),
        limits: Limits::default(),
        nested_sandboxing: false,
        orphaned_after: None,
    };
    let sandbox = Sandbox::start(backend, &order, "base").await?;
    if let Some(egress) = egress {
        sandbox.guest().open_way_out(egress, Equipment::default()).await?;
    }
    Ok(sandbox)
}

/// Memory of this process that is its own, in bytes.
pub(crate) fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
