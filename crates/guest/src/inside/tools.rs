//! Runs one tool call to its end: programs in processes, file tools in threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::{Code, ToolCall};
use bellglass_protocol::wire::{CallResult, Language, OfferedAttachment};
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{Answer, Given};
use super::calls::Call;
use super::desktop::Looker;
use super::failure::failure;
use super::files;
use super::interpreters::{self, Prepared};
use super::{Guest, browser, desktop, kernel, ports, run_process, terminal};

/// No call takes longer, whatever it was given. Far more than any job may last.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How long a file tool may take to notice that it was stopped.
const STOPPING: Duration = Duration::from_secs(1);

/// Asks a file tool to stop. It looks often enough that nobody waits.
#[derive(Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn request(&self) {
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
    let answer = match tool.fault() {
        Some((field, why)) => Err(failure("invalid_argument", format!("`{field}` {why}"))),
        None => dispatch(&guest, &id, tool, deadline, call).await,
    };
    let answer = answer.unwrap_or_else(Answer::of_error);
    let attachments = answer.attachments.iter().map(offered).collect();
    call.keep(answer.attachments);
    CallResult {
        status: answer.status,
        exit_code: answer.exit_code,
        signal: answer.signal,
        text: answer.text,
        error: answer.error,
        duration_us: u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX),
        output_bytes: call.output.total(),
        memory_kills: kills.load(Ordering::Relaxed) - kills_before,
        note: answer.note,
        attachments,
    }
}

fn offered(given: &Given) -> OfferedAttachment {
    OfferedAttachment { media_type: given.media_type.clone(), bytes: given.content.len() as u64 }
}

async fn dispatch(
    guest: &Arc<Guest>,
    id: &CallId,
    tool: ToolCall,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    match &tool {
        ToolCall::Shell(shell) => match &shell.session {
            Some(name) => terminal::shell(guest, name, shell, deadline, call).await,
            None => {
                run_program(guest, interpreters::shell(guest, id, shell)?, deadline, call).await
            }
        },
        ToolCall::SendInput(input) => terminal::send_input(guest, input, deadline, call).await,
        ToolCall::WaitFor(wait) => terminal::wait_for(guest, wait, deadline, call).await,
        ToolCall::CloseSession(close) => terminal::close(guest, close).await,
        ToolCall::Python(code) if in_kernel(Language::Python, code) => {
            kernel::run(guest, Language::Python, code, deadline, call).await
        }
        ToolCall::TypeScript(code) if in_kernel(Language::TypeScript, code) => {
            kernel::run(guest, Language::TypeScript, code, deadline, call).await
        }
        ToolCall::Python(code) => {
            run_program(guest, interpreters::python(guest, id, code)?, deadline, call).await
        }
        ToolCall::TypeScript(code) => {
            run_program(guest, interpreters::typescript(guest, code)?, deadline, call).await
        }
        ToolCall::Screenshot(shot) => {
            desktop::computer(guest, Looker::of(id), &shot.into(), deadline, call).await
        }
        ToolCall::Computer(computer) => {
            desktop::computer(guest, Looker::of(id), computer, deadline, call).await
        }
        ToolCall::Xdot(xdot) => desktop::xdot(guest, xdot, deadline, call).await,
        ToolCall::Browser(browser) => {
            browser::browse(guest, Looker::of(id), browser, deadline, call).await
        }
        ToolCall::ListPorts(_) => run_on_thread(|_| Ok(ports::list()), deadline, call).await,
        ToolCall::WriteFile(_)
        | ToolCall::ReadFile(_)
        | ToolCall::EditFile(_)
        | ToolCall::MultiEdit(_)
        | ToolCall::CopyFile(_)
        | ToolCall::FindFiles(_)
        | ToolCall::DiffFiles(_)
        | ToolCall::MoveFile(_)
        | ToolCall::DeleteFile(_)
        | ToolCall::ListFiles(_)
        | ToolCall::SearchFiles(_) => {
            let guest = guest.clone();
            let work = move |stop: &Stop| files::run(&guest.workspace, &tool, stop);
            run_on_thread(work, deadline, call).await
        }
        // It was found to make no sense here, so this is never reached.
        ToolCall::Unknown(_) => Err(broken()),
    }
}

/// Code runs in a kernel unless it does not want to, or the image has none.
fn in_kernel(language: Language, code: &Code) -> bool {
    !code.fresh && kernel::is_here(language)
}

async fn run_program(
    guest: &Guest,
    prepared: Prepared,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    run_process::run(guest, call, &prepared.command, deadline).await
}

/// Runs what reads and writes in a thread for such work.
async fn run_on_thread(
    work: impl FnOnce(&Stop) -> Result<Answer, ToolError> + Send + 'static,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    // A timer is up to a millisecond late, and in that time short work would be done.
    if Instant::now() >= deadline {
        return Ok(Answer::of(StepStatus::TimedOut));
    }
    let stop = Stop::default();
    let stopped = stop.clone();
    let mut work = tokio::task::spawn_blocking(move || work(&stopped));
    let forced = tokio::select! {
        done = &mut work => return done.unwrap_or_else(|_| Err(broken())),
        () = sleep_until(deadline) => StepStatus::TimedOut,
        () = call.cancel.cancelled() => StepStatus::Cancelled,
    };
    stop.request();
    // What it did so far stays; the next call should not find it still at work.
    let _ = timeout(STOPPING, work).await;
    Ok(Answer::of(forced))
}

fn broken() -> ToolError {
    failure("internal_error", "the tool itself broke; try again in another way")
}
