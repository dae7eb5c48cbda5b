//! The hands of a job: run a step in the sandbox, keep its output, record its end.

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Limits;
use bellglass_protocol::step::{OutputStream, StepOutcome};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::view::StepView;
use bellglass_protocol::wire::CallResult;
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::client::{ClientError, GuestClient, OutputSink};
use bellglass_store::StoreError;
use bellglass_store::artifacts::{ArtifactKey, Artifacts, run_apart};
use bytes::Bytes;

use crate::attachments;
use crate::capture::Capture;
use crate::checkpoints::Checkpoints;
use crate::job_log::JobLog;
use crate::live_output::LiveOutput;
use crate::outcome;
use crate::spool::{self, Spool};
use crate::stop::{StopReason, StopSwitch};

/// How much longer than a step's time limit the guest may take to say that it was reached.
pub(crate) const GUEST_GRACE: Duration = Duration::from_secs(15);

/// After how much of that it is taken to want for processor time.
const LATE: Duration = Duration::from_secs(1);

/// For how long it then gets more.
const RELIEF: Duration = Duration::from_secs(3);

/// How long to wait before a guest is asked again to end a call that it did not know yet.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Why the hands cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandsError {
    #[error("the job was told to stop: {0:?}")]
    Stopped(StopReason),
    #[error("the sandbox was lost: {0}")]
    SandboxLost(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("output could not be kept: {0}")]
    Disk(String),
}

impl HandsError {
    /// The code under which a step's record names this, if the step is over because of it.
    fn interrupts_as(&self) -> Option<&'static str> {
        match self {
            Self::SandboxLost(_) => Some("sandbox_lost"),
            Self::Disk(_) => Some("output_not_kept"),
            Self::Stopped(_) | Self::Store(_) => None,
        }
    }
}

/// The hands in one sandbox.
pub(crate) struct SandboxHands<'a> {
    pub(crate) log: JobLog,
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) artifacts: &'a Artifacts,
    pub(crate) limits: Limits,
    pub(crate) stop: StopSwitch,
    pub(crate) spools: PathBuf,
    /// Output of the job's steps that is kept in full so far.
    pub(crate) kept: u64,
    /// The step that an earlier worker started and did not see the end of.
    pub(crate) already_started: Option<u32>,
    pub(crate) checkpoints: Checkpoints<'a>,
}

impl SandboxHands<'_> {
    /// Runs a step to its end and records it.
    pub(crate) async fn perform(&mut self, n: u32, call: ToolCall) -> Result<(), HandsError> {
        self.look_at_stop()?;
        let is_new = self.already_started.take() != Some(n);
        if is_new {
            if self.stop.is_winding_down() {
                return Err(HandsError::Stopped(StopReason::ShuttingDown));
            }
            self.log.append(vec![EventBody::StepStarted { n, call: call.clone() }]).await?;
        }
        let started = Instant::now();
        let kills_before = self.sandbox.out_of_memory_kills().await;
        let mut capture = Capture::new(self.log.recording());
        let mut events = Vec::new();
        let ended = match &call {
            // Our guest is no newer than we are; that of a worker that was may have begun it.
            ToolCall::Unknown(_) if is_new => Ok((outcome::of_unknown_call(&capture, &call), 0)),
            _ => self.run_and_keep(n, &call, &mut capture, &mut events).await,
        };
        let outcome = match ended {
            Ok((mut outcome, counted_by_guest)) => {
                let kills = self.sandbox.out_of_memory_kills().await;
                // Where no control group counts, the guest does.
                let kills = kills.saturating_sub(kills_before).max(counted_by_guest);
                outcome::note_out_of_memory(&mut outcome, kills, &self.limits);
                Ok(outcome)
            }
            Err(error) => match error.interrupts_as() {
                Some(code) => {
                    let message = error.to_string();
                    let after = started.elapsed();
                    Err((error, outcome::of_interruption(&capture, code, message, after)))
                }
                None => return Err(error),
            },
        };
        metrics::counter!("bellglass_steps_total", "tool" => call.name().to_owned()).increment(1);
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err((error, outcome)) => (outcome, Some(error)),
        };
        // Before the end of the step is written: whoever reads of it finds its files kept.
        let checkpoint = match &error {
            None if may_change_files(&call) => self.checkpoint(n).await?,
            _ => None,
        };
        events.push(EventBody::StepFinished { n, outcome: Box::new(outcome) });
        events.extend(checkpoint);
        self.log.append(events).await?;
        // Only now: until then whoever takes the job up needs it.
        spool::remove(&spool::of_step(&self.spools, self.log.job, n)).await;
        if let Some(error) = error {
            return Err(error);
        }
        // The result is safe now. A guest that cannot be told keeps it for nothing, that is all.
        let _ = self.sandbox.guest().forget_call(&CallId::of_step(n)).await;
        Ok(())
    }

    /// Keeps what the step did to the workspace. A job that is to end does not wait for it.
    pub(crate) async fn checkpoint(&mut self, n: u32) -> Result<Option<EventBody>, HandsError> {
        let guest = self.sandbox.guest();
        let reason = match self.stop.reason() {
            Some(reason) => reason,
            None => tokio::select! {
                taken = self.checkpoints.take(guest, n) => return taken,
                () = self.sandbox.gone() => return Err(gone()),
                reason = self.stop.stopped() => reason,
            },
        };
        match reason.ends_the_job() {
            true => Ok(self.checkpoints.skip(n, "the job was stopped".into())),
            // The guest keeps the result of the call for whoever takes the job up.
            false => Err(HandsError::Stopped(reason)),
        }
    }

    fn look_at_stop(&self) -> Result<(), HandsError> {
        self.stop.reason().map_or(Ok(()), |reason| Err(HandsError::Stopped(reason)))
    }

    /// Runs the call and keeps its output: the whole of it, if it is long, as an artifact. What is
    /// left of its live events goes to `events`. Also tells how many processes the guest ended for
    /// want of memory.
    async fn run_and_keep(
        &mut self,
        n: u32,
        call: &ToolCall,
        capture: &mut Capture,
        events: &mut Vec<EventBody>,
    ) -> Result<(StepOutcome, u64), HandsError> {
        let path = spool::of_step(&self.spools, self.log.job, n);
        let spool = Spool::open(path, self.limits.output.0.min(self.room()), capture)
            .map_err(|error| HandsError::Disk(error.to_string()))?;
        let live = LiveOutput::new(self.log.clone(), n, capture.recording());
        let mut keeper = Keeper { capture, spool, live };
        let result = self.run(n, call, &mut keeper).await;
        let Keeper { capture, spool, live } = keeper;
        events.extend(live.finish(n).await);

        let result = result?;
        let memory_kills = result.memory_kills;
        let offered = result.attachments.clone();
        let clipped = result.text.clone();
        let clipped = clipped.filter(|text| outcome::is_clipped(text, capture.recording()));
        let mut outcome = outcome::of_result(capture, result, self.stop.reason());
        if capture.is_cut() {
            outcome.unkept_bytes = spool.let_go();
            outcome.full_output = Some(self.store_output(n, spool).await?);
        } else if let Some(text) = clipped
            && text.len() as u64 <= self.room()
        {
            outcome.full_output = Some(self.store_text(n, text).await?);
        }
        if !offered.is_empty() {
            let (guest, room) = (self.sandbox.guest(), self.room());
            let holder = (self.log.job, self.log.generation);
            outcome.attachments =
                attachments::store(guest, self.artifacts, holder, n, &offered, room).await?;
            self.kept += outcome.attachments.iter().map(|attachment| attachment.bytes).sum::<u64>();
        }
        Ok((outcome, memory_kills))
    }

    /// Waits for something that the guest is to be done with after this time. One that is late is given a whole
    /// processor for a moment: it shares the sandbox's with the tools, and they may leave it too little to end them.
    async fn relieved_after<T>(&self, time: Duration, work: impl Future<Output = T>) -> T {
        let late = async {
            tokio::time::sleep(time + LATE).await;
            let relief = self.sandbox.relieve();
            tokio::time::sleep(RELIEF).await;
            drop(relief);
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            done = work => done,
            never = late => match never {},
        }
    }

    /// How much more may be kept in full.
    fn room(&self) -> u64 {
        self.limits.total_output.0.saturating_sub(self.kept)
    }

    async fn run(
        &self,
        n: u32,
        call: &ToolCall,
        keeper: &mut Keeper<'_>,
    ) -> Result<CallResult, HandsError> {
        let id = CallId::of_step(n);
        let guest = self.sandbox.guest();
        let time = call.timeout().unwrap_or(self.limits.step_time).duration();
        let received = keeper.spool.bytes();
        let running = guest.call(&id, call, time, received, keeper);
        let mut running = pin!(self.relieved_after(time, running));
        let overdue = tokio::time::sleep(time + GUEST_GRACE);

        let reason = tokio::select! {
            result = &mut running => return result.map_err(from_client),
            () = self.sandbox.gone() => return Err(gone()),
            () = overdue => return Err(HandsError::SandboxLost(
                "the guest did not keep the step's time limit".into(),
            )),
            reason = self.stop.stopped() => reason,
        };
        if !reason.ends_the_job() {
            // The call goes on in the sandbox, and whoever takes the job up joins it.
            return Err(HandsError::Stopped(reason));
        }
        let ended = async {
            tokio::select! {
                result = &mut running => result,
                error = end_call(guest, &id) => Err(error),
            }
        };
        tokio::select! {
            result = tokio::time::timeout(GUEST_GRACE, self.relieved_after(Duration::ZERO, ended)) => match result {
                Ok(result) => result.map_err(from_client),
                Err(_) => Err(HandsError::SandboxLost("the guest did not end a step".into())),
            },
            () = self.sandbox.gone() => Err(gone()),
        }
    }

    /// Stores the whole of an answer of which the record holds a part.
    async fn store_text(&mut self, n: u32, text: String) -> Result<String, HandsError> {
        self.kept += text.len() as u64;
        let key = ArtifactKey::step_output(self.log.job, n).written_under(self.log.generation);
        let stored = self.artifacts.put(&key, text.into()).await;
        stored.map(|()| key.as_str().to_owned()).map_err(|error| HandsError::Disk(describe(&error)))
    }

    /// Stores a long output in full. Returns the artifact's key.
    async fn store_output(&mut self, n: u32, spool: Spool) -> Result<String, HandsError> {
        self.kept += spool.bytes() - spool.let_go();
        let key = ArtifactKey::step_output(self.log.job, n).written_under(self.log.generation);
        let mut writer = self.artifacts.writer(key.clone());
        let stored = run_apart(move || {
            spool.copy_to(&mut writer).map_err(|error| error.to_string())?;
            writer.finish().map_err(|error| error.to_string())
        })
        .await
        .unwrap_or_else(|error| Err(describe(&error)));
        stored.map(|_| key.as_str().to_owned()).map_err(HandsError::Disk)
    }
}

/// What the steps so far have in full, beside their records.
pub(crate) fn kept_by(steps: &[StepView]) -> u64 {
    let stored = steps.iter().filter(|step| step.full_output.is_some());
    let output: u64 = stored.map(|step| step.output_bytes.saturating_sub(step.unkept_bytes)).sum();
    let attachments = steps.iter().flat_map(|step| &step.attachments);
    output + attachments.map(|attachment| attachment.bytes).sum::<u64>()
}

/// Has the guest end a call. Returns only if that cannot be; else the call itself returns.
async fn end_call(guest: &GuestClient, id: &CallId) -> ClientError {
    loop {
        match guest.cancel_call(id).await {
            Ok(()) => std::future::pending().await,
            // The call may still be on its way to the guest.
            Err(ClientError::Refused(_)) => tokio::time::sleep(ASK_AGAIN).await,
            Err(error) => return error,
        }
    }
}

/// Where a running step's output goes.
struct Keeper<'a> {
    capture: &'a mut Capture,
    spool: Spool,
    live: LiveOutput,
}

#[async_trait]
impl OutputSink for Keeper<'_> {
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> std::io::Result<()> {
        self.spool.write(stream, &piece)?;
        self.capture.push(stream, &piece);
        self.live.push(stream, &piece);
        Ok(())
    }
}

pub(crate) fn from_client(error: ClientError) -> HandsError {
    match error {
        ClientError::Sink(error) => HandsError::Disk(error.to_string()),
        other => HandsError::SandboxLost(describe(&other)),
    }
}

/// Whether a call can have changed the workspace by itself.
pub(crate) fn may_change_files(call: &ToolCall) -> bool {
    !matches!(
        call,
        ToolCall::ReadFile(_)
            | ToolCall::ListFiles(_)
            | ToolCall::SearchFiles(_)
            | ToolCall::FindFiles(_)
            | ToolCall::DiffFiles(_)
    )
}

pub(crate) fn gone() -> HandsError {
    HandsError::SandboxLost("its first process ended".into())
}

/// An error with all its causes.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
