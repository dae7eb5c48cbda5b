//! Lets the HTTP side reach the workspaces of jobs that run in this process.
//!
//! A job must not suffer from those who look at its files: so many may do so at once, and who
//! stands still is let go.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::workspace_relative;
use bellglass_sandbox::client::ClientError;
use bellglass_server::{
    IDLE, LiveContent, LiveError, LiveJobs, end_when_idle, let_go_of_idle_readers,
};
use bellglass_worker::{LiveSandbox, LiveSandboxes};
use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) struct LiveFiles(pub(crate) LiveSandboxes);

impl LiveFiles {
    fn sandbox(&self, job: JobId) -> Result<LiveSandbox, LiveError> {
        self.0.get(job).ok_or(LiveError::NotRunning)
    }
}

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
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError> {
        let LiveSandbox { guest, writes, .. } = self.sandbox(job)?;
        let _permit = permit(&writes)?;
        let data = end_when_idle(data, IDLE);
        guest.write_file(path, executable, data).await.map_err(live_error)
    }

    async fn delete(&self, job: JobId, path: &str) -> Result<(), LiveError> {
        let LiveSandbox { guest, writes, .. } = self.sandbox(job)?;
        let _permit = permit(&writes)?;
        guest.delete_file(path).await.map_err(live_error)
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
