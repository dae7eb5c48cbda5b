//! Our own sandboxes, as the worker uses them: started, greeted, given a tool call, destroyed.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Limits;
use bellglass_protocol::report::Start;
use bellglass_protocol::step::OutputStream;
use bellglass_protocol::tool::ToolCall;
use bellglass_sandbox::client::OutputSink;
use bellglass_sandbox::pool::PoolSize;
use bellglass_sandbox::{
    Backend as _, NamespaceBackend, Sandbox, SandboxError, SandboxName, SandboxOrder, WarmPool,
};
use bytes::Bytes;
use serde_json::json;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longer than a backend takes to have a launcher wait again, and than most engines take to tidy up.
const QUIET: Duration = Duration::from_millis(200);

pub(crate) struct Ours {
    backend: Arc<NamespaceBackend>,
    /// Where the sandboxes' records are.
    pub(crate) folder: PathBuf,
    /// Keeps one sandbox ready while warm starts are measured.
    pool: Option<WarmPool>,
    rootfs: PathBuf,
}

impl Ours {
    pub(crate) fn new(folder: PathBuf, rootfs: PathBuf) -> Result<Self, Failure> {
        let backend = Arc::new(NamespaceBackend::new(folder.clone())?);
        Ok(Self { backend, folder, pool: None, rootfs })
    }

    pub(crate) async fn open_pool(&mut self) -> Result<(), Failure> {
        let rootfs = self.rootfs.clone();
        let template = Box::new(move || Some(order(rootfs.clone())));
        let pool = WarmPool::open(self.backend.clone(), PoolSize { min: 1, max: 1 }, template);
        pool.sweep(&HashSet::new()).await?;
        self.pool = Some(pool);
        Ok(())
    }

    pub(crate) async fn close_pool(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.close().await;
        }
    }

    /// As `cold`, with a sandbox that is there already.
    pub(crate) async fn warm(&self) -> Result<Duration, Failure> {
        let pool = self.pool.as_ref().ok_or("there is no pool")?;
        let began = Instant::now();
        let sandbox = Sandbox::start(pool, &self.order(), "bench").await?;
        let said = first_output(&sandbox).await;
        let start = sandbox.report().start;
        sandbox.destroy().await?;
        match start {
            Start::Warm => Ok(said? - began),
            Start::Cold => Err("a sandbox was there and was not used".into()),
        }
    }

    /// Nothing of ours is being made when this returns, nor started: a launcher that waits is there again too. Peers
    /// have the same time to tidy up.
    pub(crate) async fn until_all_is_quiet(&self) {
        while self.pool.as_ref().is_some_and(|pool| pool.waiting() == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Kept awake meanwhile, so that nobody finds the processors asleep.
        let began = Instant::now();
        while began.elapsed() < QUIET {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn order(&self) -> SandboxOrder {
        order(self.rootfs.clone())
    }

    pub(crate) async fn start(&self) -> Result<Sandbox, SandboxError> {
        Sandbox::start(&*self.backend, &self.order(), "bench").await
    }

    /// The time from the call to the first command's output inside. The sandbox is gone afterwards.
    pub(crate) async fn cold(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        let sandbox = self.start().await?;
        let said = first_output(&sandbox).await;
        sandbox.destroy().await?;
        Ok(said? - began)
    }
}

fn order(rootfs: PathBuf) -> SandboxOrder {
    SandboxOrder {
        name: SandboxName::throwaway(),
        rootfs,
        limits: Limits::default(),
        nested_sandboxing: false,
        // However this process ends, its sandboxes do not stay.
        orphaned_after: Some(Duration::from_secs(60)),
    }
}

/// Runs `echo hi` to its end and returns when the first of it was heard, as it is for peers.
pub(crate) async fn first_output(sandbox: &Sandbox) -> Result<Instant, Failure> {
    match run(sandbox, &CallId::of_step(1), "echo hi").await? {
        Output { first: Some(heard), text } if text == b"hi\n" => Ok(heard),
        Output { text, .. } => Err(format!("it said {text:?}").into()),
    }
}

/// Runs a command line to its end and returns what it wrote.
pub(crate) async fn run(sandbox: &Sandbox, id: &CallId, line: &str) -> Result<Output, Failure> {
    let call: ToolCall = serde_json::from_value(json!({ "tool": "shell", "command": line }))?;
    let mut output = Output::default();
    sandbox.guest().call(id, &call, Duration::from_secs(600), 0, &mut output).await?;
    Ok(output)
}

#[derive(Default)]
pub(crate) struct Output {
    pub(crate) text: Vec<u8>,
    first: Option<Instant>,
}

#[async_trait]
impl OutputSink for Output {
    async fn output(&mut self, _: OutputStream, piece: Bytes) -> io::Result<()> {
        self.first.get_or_insert_with(Instant::now);
        self.text.extend_from_slice(&piece);
        Ok(())
    }
}
