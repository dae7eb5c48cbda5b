//! Lets the HTTP side reach the workspaces of jobs that run in this process.
//!
//! A job must not suffer from those who look at its files: so many may do so at once, and who
//! stands still is let go.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bellglass_agent::memory::one_line;
use bellglass_agent::{Mind as _, TaskMind};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::Budget;
use bellglass_protocol::step::workspace_relative;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::tunnel::{Inside, ListeningPort, LivePlace, Terminal};
use bellglass_sandbox::client::ClientError;
use bellglass_server::mcp::{ToolAnswer, ToolListing, ToolPicture};
use bellglass_server::{
    IDLE, LiveContent, LiveError, LiveJobs, LiveStream, LiveTerminal, Taken, end_when_idle,
    let_go_of_idle_readers,
};
use bellglass_store::{Store, StoreError};
use bellglass_worker::{Embedder, LiveSandbox, LiveSandboxes, Past, Used};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::live_streams::{HeldTunnel, terminal};

pub(crate) struct LiveFiles {
    pub(crate) live: LiveSandboxes,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) embedder: Option<Embedder>,
}

impl LiveFiles {
    fn sandbox(&self, job: JobId) -> Result<LiveSandbox, LiveError> {
        self.live.get(job).ok_or(LiveError::NotRunning)
    }
}

/// Runs a tool for somebody outside of the job.
pub(crate) async fn use_tool(
    sandbox: &LiveSandbox,
    by: &str,
    call: ToolCall,
) -> Result<ToolAnswer, String> {
    let Used { outcome, given } = sandbox.use_tool(by, call).await?;
    let failed = outcome.status.is_failure();
    let text = match outcome.output.is_empty() {
        true => "(no output)".to_owned(),
        false => outcome.output,
    };
    let pictures = given.into_iter().filter(|(media_type, _)| media_type.starts_with("image/"));
    let pictures = pictures.map(|(media_type, content)| ToolPicture { media_type, content });
    Ok(ToolAnswer { text, failed, pictures: pictures.collect() })
}

/// The tools of a sandbox, as a model is told of them.
pub(crate) fn sandbox_tools() -> Vec<ToolListing> {
    let tools = bellglass_agent::tools::definitions().into_iter();
    let ours = tools.filter(|tool| ToolCall::NAMES.contains(&tool.name.as_str()));
    ours.map(|tool| {
        let (name, description, schema) = (tool.name, tool.description, tool.parameters);
        ToolListing { name, description, schema }
    })
    .collect()
}

/// Events of a log that are read at once.
const PAGE: u32 = 1000;

#[async_trait]
impl LiveJobs for LiveFiles {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError> {
        let LiveSandbox { guest, reads, .. } = self.sandbox(job)?;
        let permit = permit(&reads)?;
        if workspace_relative(path).is_empty() {
            return Ok(LiveContent::Folder(guest.list_folder(path).await.map_err(live_error)?));
        }
        match guest.read_file(path).await {
            Ok((bytes, data)) => {
                Ok(LiveContent::File { bytes, data: let_go_of_idle_readers(data, IDLE, permit) })
            }
            Err(ClientError::Refused(error)) if error.code == "is_a_folder" => {
                Ok(LiveContent::Folder(guest.list_folder(path).await.map_err(live_error)?))
            }
            Err(error) => Err(live_error(error)),
        }
    }

    async fn write(
        &self,
        job: JobId,
        by: &str,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError> {
        let sandbox = self.sandbox(job)?;
        let permit = permit(&sandbox.writes)?;
        let data = end_when_idle(data, IDLE).boxed();
        sandbox.write_file(by, path, executable, data, permit).await.map_err(not_let_in)
    }

    async fn delete(&self, job: JobId, by: &str, path: &str) -> Result<(), LiveError> {
        let sandbox = self.sandbox(job)?;
        let permit = permit(&sandbox.writes)?;
        sandbox.delete_file(by, path, permit).await.map_err(not_let_in)
    }

    fn tools(&self) -> Vec<ToolListing> {
        sandbox_tools()
    }

    async fn use_tool(
        &self,
        job: JobId,
        by: &str,
        call: ToolCall,
    ) -> Result<ToolAnswer, LiveError> {
        use_tool(&self.sandbox(job)?, by, call).await.map_err(LiveError::Broken)
    }

    async fn connect(&self, job: JobId, to: Inside) -> Result<LiveStream, LiveError> {
        let opened = self.sandbox(job)?.connect(to).await.map_err(not_let_in)?;
        Ok(Box::new(HeldTunnel(opened)))
    }

    async fn view_desktop(&self, job: JobId, by: &str) -> Result<LiveStream, LiveError> {
        let opened = self.sandbox(job)?.view_desktop(by).await.map_err(not_let_in)?;
        Ok(Box::new(HeldTunnel(opened)))
    }

    async fn take_desktop(&self, job: JobId, by: &str) -> Result<Taken, LiveError> {
        let taken = self.sandbox(job)?.take_desktop(by).await.map_err(not_let_in)?;
        Ok(Taken(Box::new(taken)))
    }

    async fn open_terminal(
        &self,
        job: JobId,
        by: &str,
        which: Terminal,
    ) -> Result<LiveTerminal, LiveError> {
        let opened = self.sandbox(job)?.open_terminal(by, which).await.map_err(not_let_in)?;
        Ok(terminal(opened))
    }

    async fn ports(&self, job: JobId) -> Result<Vec<ListeningPort>, LiveError> {
        self.sandbox(job)?.guest.list_ports().await.map_err(live_error)
    }

    async fn note_visit(&self, job: JobId, by: &str, place: LivePlace) -> Result<(), LiveError> {
        self.sandbox(job)?.note_visit(by, place).await.map_err(not_let_in)
    }

    /// A mind that hears the log knows what the job's own mind knew then.
    async fn context(&self, job: JobId, at: Option<u64>) -> Result<Value, StoreError> {
        let mut mind = TaskMind::new(u64::MAX, Budget::default(), Vec::new());
        let past = Past::of_job(&*self.store, job).await?;
        let (mut after, last) = (0, at.unwrap_or(u64::MAX));
        loop {
            let page = past.events_after(&*self.store, job, after, PAGE).await?;
            let wanted = page.iter().take_while(|placed| placed.event.seq <= last);
            let mut heard = 0;
            for placed in wanted {
                mind.take_in(&placed.event);
                after = placed.event.seq;
                heard += 1;
            }
            if heard < page.len() || page.is_empty() {
                return Ok(mind.context().to_json());
            }
        }
    }

    fn fit_to_remember(&self, text: &str) -> String {
        one_line(text)
    }

    async fn meaning(&self, text: &str) -> Option<Vec<f32>> {
        self.embedder.as_ref()?.embed(text).await.ok()
    }
}

fn permit(room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, LiveError> {
    room.clone().try_acquire_owned().map_err(|_| LiveError::Busy)
}

fn live_error(error: ClientError) -> LiveError {
    match error {
        ClientError::Refused(error) => LiveError::Tool(error),
        other => LiveError::Broken(other.to_string()),
    }
}

fn not_let_in(error: bellglass_worker::LiveError) -> LiveError {
    match error {
        bellglass_worker::LiveError::Full => LiveError::Busy,
        bellglass_worker::LiveError::Guest(error) => live_error(error),
        bellglass_worker::LiveError::Taken(by) => LiveError::Taken(by),
        bellglass_worker::LiveError::Store(StoreError::JobEnded) => LiveError::NotRunning,
        bellglass_worker::LiveError::Store(error) => LiveError::Broken(error.to_string()),
        error @ bellglass_worker::LiveError::Interrupted => LiveError::Broken(error.to_string()),
    }
}
