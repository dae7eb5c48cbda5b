//! `bellglass mcp`: a sandbox of its own for an MCP client, on standard input and output.
//!
//! One message of JSON-RPC on each line. Everything else that there is to say goes to standard error.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::image_build_command;
use bellglass_protocol::request::JobRequest;
use bellglass_protocol::view::JobStatus;
use bellglass_server::Images as _;
use bellglass_server::mcp::{self, Sandboxed, ToolAnswer, ToolListing};
use bellglass_worker::{LiveSandbox, LiveSandboxes};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::interruption::Interruptions;
use super::run::save_result;
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::live_files::{sandbox_tools, use_tool};
use crate::storage_config::StorageSettings;

/// How long the worker may take to end the job before its sandbox is ended all the same.
const ENDING: Duration = Duration::from_secs(60);

/// How often a change is looked for that was not heard of.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn serve(config: &Config, flags: &cli::Mcp) -> anyhow::Result<Exit> {
    let mut interruptions = Interruptions::catch()?;
    let data = tempfile::Builder::new().prefix("bellglass-mcp-").tempdir()?;
    let (images, network) = (config.images(&flags.images)?, config.network()?);
    let (models, sandboxes) = (config.models(data.path())?, config.sandboxes());
    let storage = StorageSettings::local().open(data.path()).await?;
    let installation =
        Installation::open(storage, data.path(), &images, network, models, &sandboxes)?;
    let installation = installation.without_successor();
    let spec = JobRequest::from_json(&job(flags))?;
    let spec = spec.into_spec(&config.offer(installation.models.offer())?)?;
    installation.backends.choose(spec.isolation).await?;
    anyhow::ensure!(
        installation.images.exists(&spec.image).await,
        "there is no image named `{}`; build it with `{}`",
        spec.image,
        image_build_command(&spec.image)
    );
    let job = installation.store.schedule(spec).await?;
    let shutdown = CancellationToken::new();
    let worker = installation.worker(config.pace(1, Duration::ZERO));
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    let (over, is_over) = watch::channel(None);
    let watching = tokio::spawn(watch_job(installation.store.clone(), job, over));

    let sandbox = Waiting { live: installation.live.clone(), job, over: is_over };
    let served = tokio::select! {
        served = converse(Arc::new(sandbox)) => served,
        _ = interruptions.next() => Ok(()),
    };

    // The client is gone, so the sandbox goes; what lies in it is packed before.
    installation.store.request_cancel(job, "mcp").await?;
    let ended = tokio::time::timeout(ENDING, watching).await;
    shutdown.cancel();
    let _ = tokio::time::timeout(ENDING, worker).await;
    installation.backends.sweep(&HashSet::new()).await.context("cannot clean up")?;
    if let (Some(output), Ok(_)) = (&flags.output, ended) {
        save_result(&installation, job, output).await?;
    }
    served.map(|()| Exit::Success)
}

fn job(flags: &cli::Mcp) -> Vec<u8> {
    let network = match flags.network.as_str() {
        word @ ("none" | "registries" | "open") => json!(word),
        hosts => json!({ "allow": hosts.split(',').map(str::trim).collect::<Vec<_>>() }),
    };
    let mut body = json!({ "name": "mcp", "session": {}, "network": network });
    if let Some(image) = &flags.image {
        body["image"] = json!(image);
    }
    body.to_string().into_bytes()
}

/// Answers line by line, each call in its own time, until the client closes its end.
async fn converse(sandbox: Arc<Waiting>) -> anyhow::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let output = Arc::new(Mutex::new(tokio::io::stdout()));
    let calls = TaskTracker::new();
    while let Some(line) = lines.next_line().await.context("cannot read standard input")? {
        if line.trim().is_empty() {
            continue;
        }
        let (sandbox, output) = (sandbox.clone(), output.clone());
        calls.spawn(async move {
            let answer = match serde_json::from_str::<Value>(&line) {
                Ok(message) => mcp::answer(&message, &*sandbox).await,
                Err(_) => Some(mcp::error(Value::Null, -32700, "this line is not JSON")),
            };
            if let Some(answer) = answer {
                let mut output = output.lock().await;
                // A client that does not listen any more closes its other end soon.
                let _ = output.write_all(format!("{answer}\n").as_bytes()).await;
                let _ = output.flush().await;
            }
        });
    }
    calls.close();
    calls.wait().await;
    Ok(())
}

/// The sandbox, which may still be on its way.
struct Waiting {
    live: LiveSandboxes,
    job: JobId,
    /// Why there will be none, once that is so.
    over: watch::Receiver<Option<String>>,
}

impl Waiting {
    async fn sandbox(&self) -> Result<LiveSandbox, String> {
        let mut over = self.over.clone();
        loop {
            if let Some(sandbox) = self.live.get(self.job) {
                return Ok(sandbox);
            }
            if let Some(why) = over.borrow().clone() {
                return Err(why);
            }
            let _ = tokio::time::timeout(Duration::from_millis(20), over.changed()).await;
        }
    }
}

#[async_trait]
impl Sandboxed for Waiting {
    fn tools(&self) -> Vec<ToolListing> {
        sandbox_tools()
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<ToolAnswer, String> {
        let call = bellglass_server::tool_call(name, arguments)?;
        use_tool(&self.sandbox().await?, "mcp", call).await
    }
}

/// Tells when the job is over, and why.
async fn watch_job(
    store: Arc<dyn bellglass_store::Store>,
    job: JobId,
    over: watch::Sender<Option<String>>,
) {
    let mut changes = store.changes();
    loop {
        let outline = store.outline(job).await;
        let why = match outline {
            Ok(outline) if !outline.status.is_terminal() => None,
            Ok(outline) => Some(match (outline.status, outline.error) {
                (_, Some(error)) => error.message,
                (JobStatus::Cancelled, None) => "the sandbox was ended".into(),
                _ => "the sandbox is gone".into(),
            }),
            Err(error) => Some(error.to_string()),
        };
        if why.is_some() {
            over.send_replace(why);
            return;
        }
        let _ = tokio::time::timeout(LOOK_AGAIN, changes.recv()).await;
    }
}
