//! Runs one tool call to its end: programs in processes, file tools in a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::CallResult;
use tokio::time::{Instant, sleep_until, timeout};

use super::Guest;
use super::calls::Call;
use super::failure::failure;
use super::files;
use super::interpreters::{self, Prepared};
use super::run_process::{self, Ending};

/// No call takes longer, whatever it was given. Far more than any job may last.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How long a file tool may take to notice that it was stopped.
const STOPPING: Duration = Duration::from_secs(1);

/// Asks a file tool to stop. It looks often enough that nobody waits.
#[derive(Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) async fn run(
    guest: Arc<Guest>,
    id: CallId,
    tool: ToolCall,
    limit: Duration,
    call: &Call,
) -> CallResult {
    let start = Instant::now();
    let kills = guest.memory_kills.clone();
    let kills_before = kills.load(Ordering::Relaxed);
    let deadline = start + limit.min(LONGEST);
    let (ending, text) = match tool {
        ToolCall::Shell(_) | ToolCall::Python(_) | ToolCall::TypeScript(_) => {
            (run_program(&guest, &id, &tool, deadline, call).await, None)
        }
        tool => run_file_tool(guest, tool, deadline, call).await,
    };
    CallResult {
        status: ending.status,
        exit_code: ending.exit_code,
        signal: ending.signal,
        text,
        error: ending.error,
        duration_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        output_bytes: call.output.total(),
        memory_kills: kills.load(Ordering::Relaxed) - kills_before,
    }
}

async fn run_program(
    guest: &Arc<Guest>,
    id: &CallId,
    tool: &ToolCall,
    deadline: Instant,
    call: &Call,
) -> Ending {
    match prepare(guest, id, tool) {
        Ok(prepared) => match run_process::run(guest, call, &prepared.command, deadline).await {
            Ok(ending) => ending,
            Err(error) => Ending::of_error(error),
        },
        Err(error) => Ending::of_error(error),
    }
}

fn prepare(guest: &Guest, id: &CallId, tool: &ToolCall) -> Result<Prepared, ToolError> {
    match tool {
        ToolCall::Shell(call) => interpreters::shell(guest, id, call),
        ToolCall::Python(call) => interpreters::python(guest, id, call),
        ToolCall::TypeScript(call) => interpreters::typescript(guest, call),
        other => Err(failure("not_a_program", format!("`{}` runs no program", other.name()))),
    }
}

async fn run_file_tool(
    guest: Arc<Guest>,
    tool: ToolCall,
    deadline: Instant,
    call: &Call,
) -> (Ending, Option<String>) {
    let stop = Stop::default();
    let stopped = stop.clone();
    let mut work =
        tokio::task::spawn_blocking(move || files::run(&guest.workspace, &tool, &stopped));
    let forced = tokio::select! {
        done = &mut work => return file_ending(done.unwrap_or_else(|_| Err(broken()))),
        () = sleep_until(deadline) => StepStatus::TimedOut,
        () = call.cancel.cancelled() => StepStatus::Cancelled,
    };
    stop.request();
    // What it did so far stays; the next call should not find it still at work.
    let _ = timeout(STOPPING, work).await;
    (Ending { status: forced, exit_code: None, signal: None, error: None }, None)
}

fn file_ending(done: Result<String, ToolError>) -> (Ending, Option<String>) {
    match done {
        Ok(text) => {
            let status = StepStatus::Succeeded;
            (Ending { status, exit_code: None, signal: None, error: None }, Some(text))
        }
        Err(error) => (Ending::of_error(error), None),
    }
}

fn broken() -> ToolError {
    failure("internal_error", "the tool itself broke; try again in another way")
}

impl Ending {
    fn of_error(error: ToolError) -> Self {
        Self { status: StepStatus::Failed, exit_code: None, signal: None, error: Some(error) }
    }
}
