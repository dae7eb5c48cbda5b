//! The hands of a job: run a step in the sandbox, keep its output, record its end.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_agent::Hands;
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::{CallId, Generation, JobId};
use bellglass_protocol::job::Limits;
use bellglass_protocol::step::{OutputStream, StepOutcome, StepStatus, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::CallResult;
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::client::{ClientError, OutputSink};
use bellglass_store::artifacts::{ArtifactKey, Artifacts};
use bellglass_store::{Store, StoreError};
use bytes::Bytes;

use crate::capture::Capture;
use crate::live_output::LiveOutput;
use crate::spool::{self, Spool};
use crate::stop::{StopReason, StopSwitch};

/// How much longer than a step's time limit the guest may take to say that it was reached.
const GUEST_GRACE: Duration = Duration::from_secs(15);

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

/// Appends to one job's log under one claim.
#[derive(Clone)]
pub(crate) struct JobLog {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
}

impl JobLog {
    pub(crate) async fn append(&self, bodies: Vec<EventBody>) -> Result<(), StoreError> {
        self.store.append(self.job, self.generation, bodies).await.map(drop)
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
    /// The step that an earlier worker started and did not see the end of.
    pub(crate) already_started: Option<u32>,
}

#[async_trait]
impl Hands for SandboxHands<'_> {
    type Stop = HandsError;

    async fn perform(&mut self, n: u32, call: ToolCall) -> Result<StepStatus, HandsError> {
        if let Some(reason) = self.stop.reason() {
            return Err(HandsError::Stopped(reason));
        }
        if self.already_started.take() != Some(n) {
            self.log.append(vec![EventBody::StepStarted { n, call: call.clone() }]).await?;
        }
        let kills_before = self.sandbox.out_of_memory_kills().await;
        let mut keeper = self.keeper(n)?;
        let result = self.run(n, &call, &mut keeper).await;
        let Keeper { capture, spool, live } = keeper;
        let mut bodies = live.finish(n).await;

        let result = result.map_err(|error| match error {
            lost @ HandsError::SandboxLost(_) => (lost, StepStatus::Interrupted),
            other => (other, StepStatus::Running),
        });
        let result = match result {
            Ok(result) => result,
            Err((error, StepStatus::Interrupted)) => {
                let outcome = Box::new(interrupted(&capture, &error));
                bodies.push(EventBody::StepFinished { n, outcome });
                self.log.append(bodies).await?;
                return Err(error);
            }
            Err((error, _)) => return Err(error),
        };

        let mut outcome = outcome(&capture, result);
        if capture.is_cut() {
            outcome.full_output = self.store_output(n, spool).await?;
        }
        if outcome.status.is_failure() {
            let kills = self.sandbox.out_of_memory_kills().await.saturating_sub(kills_before);
            note_out_of_memory(&mut outcome, kills, &self.limits);
        }
        let status = outcome.status;
        metrics::counter!("bellglass_steps_total", "tool" => call.name()).increment(1);
        bodies.push(EventBody::StepFinished { n, outcome: Box::new(outcome) });
        self.log.append(bodies).await?;
        // The result is safe now. A guest that cannot be told keeps it for nothing, that is all.
        let _ = self.sandbox.guest().forget_call(&CallId::of_step(n)).await;
        Ok(status)
    }
}

impl SandboxHands<'_> {
    fn keeper(&self, n: u32) -> Result<Keeper, HandsError> {
        let mut capture = Capture::new();
        let path = spool::job_folder(&self.spools, self.log.job).join(n.to_string());
        let spool = Spool::open(path, self.limits.output.0, &mut capture)
            .map_err(|error| HandsError::Disk(error.to_string()))?;
        let live = LiveOutput::new(self.log.clone(), n);
        Ok(Keeper { capture, spool, live })
    }

    async fn run(
        &self,
        n: u32,
        call: &ToolCall,
        keeper: &mut Keeper,
    ) -> Result<CallResult, HandsError> {
        let id = CallId::of_step(n);
        let guest = self.sandbox.guest();
        let time = call.timeout().unwrap_or(self.limits.step_time).duration();
        let received = keeper.spool.bytes();
        let mut running = pin!(guest.call(&id, call, time, received, keeper));
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
        let killed = async {
            guest.cancel_call(&id).await?;
            running.await
        };
        match tokio::time::timeout(GUEST_GRACE, killed).await {
            Ok(result) => result.map_err(from_client),
            Err(_) => Err(HandsError::SandboxLost("the guest did not end a step".into())),
        }
    }

    /// Stores a long output in full. Returns the artifact's key.
    async fn store_output(&self, n: u32, spool: Spool) -> Result<Option<String>, HandsError> {
        let key = ArtifactKey::step_output(self.log.job, n);
        let mut writer = self.artifacts.writer(key.clone());
        let stored = tokio::task::spawn_blocking(move || {
            spool.copy_to(&mut writer).map_err(|error| error.to_string())?;
            writer.finish().map_err(|error| error.to_string())
        })
        .await
        .expect("the copying task does not panic");
        match stored {
            Ok(_) => Ok(Some(key.as_str().to_owned())),
            Err(error) => Err(HandsError::Disk(error)),
        }
    }
}

/// Where a running step's output goes.
struct Keeper {
    capture: Capture,
    spool: Spool,
    live: LiveOutput,
}

#[async_trait]
impl OutputSink for Keeper {
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> std::io::Result<()> {
        self.spool.write(stream, &piece)?;
        self.capture.push(stream, &piece);
        self.live.push(stream, &piece);
        Ok(())
    }
}

fn from_client(error: ClientError) -> HandsError {
    match error {
        ClientError::Sink(error) => HandsError::Disk(error.to_string()),
        other => HandsError::SandboxLost(describe(&other)),
    }
}

fn gone() -> HandsError {
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

/// The longest texts that are taken over from a guest's own words.
const MOST_GUEST_TEXT: usize = 64 << 10;

fn outcome(capture: &Capture, result: CallResult) -> StepOutcome {
    let mut shown = match result.text {
        Some(text) => clip(text),
        None => capture.shown(),
    };
    let error = result.error.map(|error| ToolError {
        code: error.code.chars().take(64).collect(),
        message: clip(error.message),
    });
    let mut add_line = |line: String| {
        if !shown.is_empty() && !shown.ends_with('\n') {
            shown.push('\n');
        }
        shown.push_str(&line);
    };
    if let Some(error) = &error {
        add_line(format!("[{}: {}]", error.code, error.message));
    }
    match (result.status, result.exit_code, result.signal) {
        (StepStatus::TimedOut, ..) => add_line("[killed: the time limit was reached]".into()),
        (StepStatus::Cancelled, ..) => add_line("[killed: the job was cancelled]".into()),
        (_, Some(code), _) if code != 0 => add_line(format!("[exit code {code}]")),
        (_, _, Some(signal)) => add_line(format!("[killed by signal {signal}]")),
        _ => {}
    }
    StepOutcome {
        // A guest that claims to be still running has broken its word.
        status: if result.status == StepStatus::Running {
            StepStatus::Failed
        } else {
            result.status
        },
        exit_code: result.exit_code,
        signal: result.signal,
        stdout: capture.stdout(),
        stderr: capture.stderr(),
        output: shown,
        output_bytes: capture.total(),
        dropped_bytes: capture.dropped(),
        full_output: None,
        error,
        duration_ms: result.duration_ms,
    }
}

fn interrupted(capture: &Capture, error: &HandsError) -> StepOutcome {
    let message = error.to_string();
    let result = CallResult {
        status: StepStatus::Interrupted,
        exit_code: None,
        signal: None,
        text: None,
        error: Some(ToolError { code: "sandbox_lost".into(), message }),
        duration_ms: 0,
        output_bytes: capture.total(),
    };
    outcome(capture, result)
}

fn note_out_of_memory(outcome: &mut StepOutcome, kills: u64, limits: &Limits) {
    if kills == 0 {
        return;
    }
    let message = format!(
        "{kills} processes were ended because the sandbox reached its memory limit of {}",
        limits.memory
    );
    outcome.output.push_str(&format!("\n[out_of_memory: {message}]"));
    outcome.error.get_or_insert(ToolError { code: "out_of_memory".into(), message });
}

fn clip(mut text: String) -> String {
    if text.len() > MOST_GUEST_TEXT {
        let end = (0..=MOST_GUEST_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("\n[cut]");
    }
    text
}
