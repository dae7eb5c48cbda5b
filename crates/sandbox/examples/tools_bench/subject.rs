//! Our own tools, as the worker uses them: a sandbox with a screen, calls over its wire.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Limits;
use bellglass_protocol::step::OutputStream;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::CallResult;
use bellglass_sandbox::client::OutputSink;
use bellglass_sandbox::{NamespaceBackend, Sandbox, SandboxName, SandboxOrder};
use bytes::Bytes;
use futures::TryStreamExt as _;
use serde_json::Value;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name that our own figures have.
pub(crate) const OURS: &str = "bellglass";

/// Longer than any call here takes.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Ours {
    backend: NamespaceBackend,
    rootfs: PathBuf,
}

impl Ours {
    pub(crate) fn new(folder: PathBuf, rootfs: PathBuf) -> Result<Self, Failure> {
        Ok(Self { backend: NamespaceBackend::new(folder)?, rootfs })
    }

    pub(crate) async fn start(&self) -> Result<Hands, Failure> {
        let order = SandboxOrder {
            name: SandboxName::throwaway(),
            rootfs: self.rootfs.clone(),
            limits: Limits::default(),
            nested_sandboxing: false,
            // However this process ends, its sandboxes do not stay.
            orphaned_after: Some(Duration::from_secs(60)),
        };
        let sandbox = Sandbox::start(&self.backend, &order, "bench").await?;
        Ok(Hands { sandbox, number: AtomicU32::new(0) })
    }
}

/// One sandbox and what is done in it.
pub(crate) struct Hands {
    pub(crate) sandbox: Sandbox,
    number: AtomicU32,
}

/// What a call gave, how long it took from the request to its result here, and how long inside.
pub(crate) struct Done {
    pub(crate) time: Duration,
    pub(crate) inside: Duration,
    pub(crate) output: Vec<u8>,
    pub(crate) text: String,
    /// What it gave beside text, which counts as a part of its time.
    pub(crate) attachment: Vec<u8>,
}

impl Hands {
    /// Makes a call that must succeed.
    pub(crate) async fn call(&self, call: Value) -> Result<Done, Failure> {
        let id = CallId::of_step(self.number.fetch_add(1, Ordering::Relaxed) + 1);
        let call: ToolCall = serde_json::from_value(call)?;
        let guest = self.sandbox.guest();
        let mut output = Output::default();
        let began = Instant::now();
        let result = guest.call(&id, &call, PATIENCE, 0, &mut output).await?;
        let mut attachment = Vec::new();
        if !result.attachments.is_empty() {
            let (_, mut pieces) = guest.read_attachment(&id, 0).await?;
            while let Some(piece) = pieces.try_next().await? {
                attachment.extend_from_slice(&piece);
            }
        }
        let time = began.elapsed();
        // The worker says this too, after it has recorded the result; nobody waits for it.
        guest.forget_call(&id).await?;
        let CallResult { error, text, duration_us, exit_code, .. } = result;
        let output = output.0;
        if let Some(error) = error {
            return Err(error.message.into());
        }
        if exit_code.is_some_and(|code| code != 0) {
            return Err(String::from_utf8_lossy(&output).into());
        }
        let inside = Duration::from_micros(duration_us);
        Ok(Done { time, inside, output, text: text.unwrap_or_default(), attachment })
    }

    pub(crate) async fn destroy(self) -> Result<(), Failure> {
        Ok(self.sandbox.destroy().await?)
    }
}

#[derive(Default)]
struct Output(Vec<u8>);

#[async_trait]
impl OutputSink for Output {
    async fn output(&mut self, _: OutputStream, piece: Bytes) -> io::Result<()> {
        self.0.extend_from_slice(&piece);
        Ok(())
    }
}
