//! Lets the HTTP side reach the workspaces of jobs that run in this process.

use std::io;

use async_trait::async_trait;
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::workspace_relative;
use bellglass_sandbox::client::{ClientError, GuestClient};
use bellglass_server::{LiveContent, LiveError, LiveJobs};
use bellglass_worker::LiveSandboxes;
use bytes::Bytes;
use futures::stream::BoxStream;

pub(crate) struct LiveFiles(pub(crate) LiveSandboxes);

impl LiveFiles {
    fn guest(&self, job: JobId) -> Result<GuestClient, LiveError> {
        self.0.guest(job).ok_or(LiveError::NotRunning)
    }
}

#[async_trait]
impl LiveJobs for LiveFiles {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError> {
        let guest = self.guest(job)?;
        if workspace_relative(path).is_empty() {
            return Ok(LiveContent::Folder(guest.list_folder(path).await.map_err(live_error)?));
        }
        match guest.read_file(path).await {
            Ok((bytes, data)) => Ok(LiveContent::File { bytes, data }),
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
        self.guest(job)?.write_file(path, executable, data).await.map_err(live_error)
    }

    async fn delete(&self, job: JobId, path: &str) -> Result<(), LiveError> {
        self.guest(job)?.delete_file(path).await.map_err(live_error)
    }
}

fn live_error(error: ClientError) -> LiveError {
    match error {
        ClientError::Refused(error) => LiveError::Tool(error),
        other => LiveError::Broken(other.to_string()),
    }
}
