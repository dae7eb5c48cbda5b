//! Our own sandboxes, as the worker uses them: started, greeted, given a tool call, destroyed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Limits;
use bellglass_protocol::step::OutputStream;
use bellglass_protocol::tool::ToolCall;
use bellglass_sandbox::client::OutputSink;
use bellglass_sandbox::egress::Egress;
use bellglass_sandbox::{NamespaceBackend, Sandbox, SandboxError, SandboxName, SandboxOrder};
use bytes::Bytes;
use serde_json::json;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct Ours {
    pub(crate) backend: Arc<NamespaceBackend>,
    rootfs: PathBuf,
}

impl Ours {
    pub(crate) fn new(folder: PathBuf, rootfs: PathBuf) -> Result<Self, Failure> {
        Ok(Self { backend: Arc::new(NamespaceBackend::new(folder)?), rootfs })
    }

    pub(crate) fn order(&self) -> SandboxOrder {
        SandboxOrder {
            name: SandboxName::throwaway(),
            rootfs: self.rootfs.clone(),
            limits: Limits::default(),
            egress: false,
            // However this process ends, its sandboxes do not stay.
            orphaned_after: Some(Duration::from_secs(60)),
        }
    }

    pub(crate) async fn start(&self) -> Result<Sandbox, SandboxError> {
        Sandbox::start(&*self.backend, &self.order(), "bench", None).await
    }

    pub(crate) async fn start_with(&self, egress: Arc<Egress>) -> Result<Sandbox, SandboxError> {
        let order = SandboxOrder { egress: true, ..self.order() };
        Sandbox::start(&*self.backend, &order, "bench", Some(egress)).await
    }

    /// The time from the call to the first command's output inside. The sandbox is gone afterwards.
    pub(crate) async fn cold(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        let sandbox = self.start().await?;
        let said = first_output(&sandbox).await;
        let time = began.elapsed();
        sandbox.destroy().await?;
        said.map(|()| time)
    }
}

/// Runs `echo hi` and returns when it was heard.
pub(crate) async fn first_output(sandbox: &Sandbox) -> Result<(), Failure> {
    let output = run(sandbox, &CallId::of_step(1), "echo hi").await?;
    if output == b"hi\n" { Ok(()) } else { Err(format!("it said {output:?}").into()) }
}

/// Runs a command line and returns what it wrote.
pub(crate) async fn run(sandbox: &Sandbox, id: &CallId, line: &str) -> Result<Vec<u8>, Failure> {
    let call: ToolCall = serde_json::from_value(json!({ "tool": "shell", "command": line }))?;
    let mut output = Output::default();
    sandbox.guest().call(id, &call, Duration::from_secs(600), 0, &mut output).await?;
    Ok(output.0)
}

#[derive(Default)]
pub(crate) struct Output(Vec<u8>);

#[async_trait]
impl OutputSink for Output {
    async fn output(&mut self, _: OutputStream, piece: Bytes) -> io::Result<()> {
        self.0.extend_from_slice(&piece);
        Ok(())
    }
}
