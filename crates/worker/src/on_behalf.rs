//! What somebody outside does in a sandbox: uses a tool, puts a file there, deletes one.
//!
//! Each deed runs apart from whoever asked for it, since it goes on inside when they are gone, and
//! what was done must stand in the log. The job does not end before that is written.

use std::io;
use std::time::Instant;

use async_trait::async_trait;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::CallId;
use bellglass_protocol::step::{OutputStream, StepOutcome};
use bellglass_protocol::tool::ToolCall;
use bellglass_sandbox::client::OutputSink;
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;

use crate::attachments;
use crate::capture::Capture;
use crate::hands::{GUEST_GRACE, describe};
use crate::live::{LiveError, LiveSandbox};
use crate::outcome;
use crate::recording::Recording;

/// Calls at once, beside those of the job's mind.
pub(crate) const MOST_CALLS: usize = 8;

/// What came of a call for somebody who is not the job's mind.
pub struct Used {
    /// With all that is ever shown of a call, however little of it the log keeps.
    pub outcome: StepOutcome,
    /// What it gave beside text, each with its type. Kept by nobody else.
    pub given: Vec<(String, Bytes)>,
}

impl LiveSandbox {
    /// Runs a tool for somebody who is not the job's mind, and writes down what came of it, be it
    /// that nobody knows. The error is for that somebody.
    pub async fn use_tool(&self, by: &str, call: ToolCall) -> Result<Used, String> {
        let Ok(permit) = self.calls.clone().try_acquire_owned() else {
            return Err(format!("{MOST_CALLS} calls are under way in this sandbox; wait for one"));
        };
        let (sandbox, by) = (self.clone(), by.to_owned());
        let using = self.log.apart(async move {
            let used = sandbox.call(by, call).await;
            drop(permit);
            used
        });
        using.await.map_err(|error| error.to_string())?
    }

    async fn call(&self, by: String, call: ToolCall) -> Result<Used, String> {
        let mut heard = Heard {
            shown: Capture::new(Recording::Full),
            recorded: Capture::new(self.log.recording()),
        };
        let time = call.timeout().unwrap_or(self.limits.step_time).duration();
        let (id, began) = (CallId::unique(), Instant::now());
        let called = self.guest.call(&id, &call, time, 0, &mut heard);
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
        let Heard { shown, recorded } = heard;
        let (record, answer) = match called {
            Ok(result) => (
                outcome::of_result(&recorded, result.clone(), None),
                Ok(outcome::of_result(&shown, result, None)),
            ),
            Err(error) => {
                let (code, took) = ("sandbox_unreachable", began.elapsed());
                (outcome::of_interruption(&recorded, code, error.clone(), took), Err(error))
            }
        };
        let used = EventBody::ToolUsed { by, call, outcome: Box::new(record) };
        let written = self.log.append_soon(vec![used]).await;
        let outcome = answer?;
        written.map_err(|error| error.to_string())?;
        Ok(Used { outcome, given: given.map_err(|error| error.to_string())? })
    }

    /// Puts a file into the workspace for somebody who is not the job's mind. The permit is the
    /// deed's place among those that may be under way.
    pub async fn write_file(
        &self,
        by: &str,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), LiveError> {
        let (sandbox, by, path) = (self.clone(), by.to_owned(), path.to_owned());
        // The job's end waits for the line alone, and not for a client that sends slowly.
        let writing = tokio::spawn(async move {
            let (mut digest, mut bytes) = (Sha256::new(), 0);
            let counted = data.inspect_ok(|piece| {
                digest.update(piece);
                bytes += piece.len() as u64;
            });
            sandbox.guest.write_file(&path, executable, counted).await?;
            drop(permit);
            let sha256 = hex::encode(digest.finalize());
            let written = EventBody::FileWritten { by, path, bytes, sha256 };
            Ok(sandbox.log.append_soon(vec![written]).await?)
        });
        writing.await.map_err(|_| LiveError::Interrupted)?
    }

    /// Deletes a file or a folder for somebody who is not the job's mind.
    pub async fn delete_file(
        &self,
        by: &str,
        path: &str,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), LiveError> {
        let (sandbox, by, path) = (self.clone(), by.to_owned(), path.to_owned());
        let deleting = tokio::spawn(async move {
            sandbox.guest.delete_file(&path).await?;
            drop(permit);
            let deleted = EventBody::FileDeleted { by, path };
            Ok(sandbox.log.append_soon(vec![deleted]).await?)
        });
        deleting.await.map_err(|_| LiveError::Interrupted)?
    }
}

/// Hears a call's output for whoever asked, and for the log, which may keep less of it.
struct Heard {
    shown: Capture,
    recorded: Capture,
}

#[async_trait]
impl OutputSink for Heard {
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> io::Result<()> {
        self.shown.push(stream, &piece);
        self.recorded.push(stream, &piece);
        Ok(())
    }
}
