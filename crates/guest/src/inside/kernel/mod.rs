//! Code in kernels: one Jupyter kernel for each language, started when it is first needed, in which
//! what a call defines is there for the next.
//!
//! The guest speaks the protocol itself, over sockets that no other sandbox reaches.

mod cell;
mod connection;
mod execution;
mod message;
mod notebook;
mod sharing;
mod zmtp;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::Code;
use bellglass_protocol::wire::Language;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Guest;
use super::answer::Answer;
use super::calls::Call;
use super::failure::failure;
use super::run_process::kill_supervised;
use cell::Cell;
use connection::{Identity, Kernel};
use execution::{Finish, execute};
use notebook::Notebook;
use sharing::Shared;
pub(super) use sharing::{attach, begin_anew};

/// How long a kernel may take to stop what it runs, after each of two ways to ask for it.
const INTERRUPTING: Duration = Duration::from_secs(2);

const ENDED_ITSELF: &str =
    "the code ended its kernel; the next call gets a new one, in which nothing is defined";

/// The kernels of a sandbox.
#[derive(Default)]
pub(super) struct Kernels {
    python: Seat,
    typescript: Seat,
}

/// The kernel of one language: what calls work on, one at a time, and what others may know meanwhile.
#[derive(Default)]
struct Seat {
    slot: Mutex<Slot>,
    shared: Shared,
}

#[derive(Default)]
struct Slot {
    kernel: Option<Kernel>,
    identity: Option<Identity>,
    notebook: Notebook,
    language_info: Value,
}

impl Kernels {
    fn seat(&self, language: Language) -> &Seat {
        match language {
            Language::Python => &self.python,
            Language::TypeScript => &self.typescript,
        }
    }

    fn slot(&self, language: Language) -> &Mutex<Slot> {
        &self.seat(language).slot
    }

    /// All that was run, as a notebook.
    pub(super) async fn notebook(&self, language: Language) -> Result<Bytes, ToolError> {
        let slot = self.slot(language).lock().await;
        if slot.notebook.is_empty() {
            return Err(failure("no_notebook", "nothing was run in a kernel of this language"));
        }
        let kernel = match language {
            Language::Python => {
                json!({"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"})
            }
            Language::TypeScript => {
                json!({"name": "deno", "display_name": "Deno", "language": "typescript"})
            }
        };
        Ok(slot.notebook.document(&kernel, &slot.language_info).into())
    }
}

/// Whether this image has a kernel for the language.
pub(super) fn is_here(language: Language) -> bool {
    match language {
        Language::Python => ["/usr/local/lib", "/usr/lib"].iter().any(|library| {
            let folders = std::fs::read_dir(library).into_iter().flatten().flatten();
            folders
                .filter(|folder| folder.file_name().as_encoded_bytes().starts_with(b"python3"))
                .any(|folder| {
                    let packages = ["dist-packages", "site-packages"];
                    packages.iter().any(|name| folder.path().join(name).join("ipykernel").is_dir())
                })
        }),
        Language::TypeScript => super::interpreters::find("deno").is_ok(),
    }
}

/// Starts the kernel of a language before anybody needs it.
pub(super) fn warm(guest: &Arc<Guest>, language: Language) {
    if !is_here(language) {
        return;
    }
    // Who needs it will see why it does not start.
    drop(begin(guest, language, Restart::No));
}

/// Sees to it that there is a kernel: as a task of its own, which goes on when a call gives up.
fn begin(
    guest: &Arc<Guest>,
    language: Language,
    restart: Restart,
) -> JoinHandle<Result<(), ToolError>> {
    let guest = guest.clone();
    tokio::spawn(async move {
        let mut slot = guest.kernels.slot(language).lock().await;
        if restart == Restart::Yes {
            end(&guest, &mut slot).await;
        }
        ready(&guest, &mut slot, language).await
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Restart {
    Yes,
    No,
}

/// Runs code in the kernel of a language.
pub(super) async fn run(
    guest: &Arc<Guest>,
    language: Language,
    code: &Code,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let restart = if code.restart { Restart::Yes } else { Restart::No };
    let kernel = async {
        let begun = begin(guest, language, restart).await;
        begun.unwrap_or_else(|_| Err(failure("kernel_not_started", "starting it broke")))?;
        Ok::<_, ToolError>(guest.kernels.slot(language).lock().await)
    };
    let mut slot = tokio::select! {
        // Code that has no time left is not begun: to stop it may cost the kernel all that it knows.
        biased;
        () = sleep_until(deadline) => {
            let why = "the time limit was reached while the kernel started; try again";
            let error = Some(failure("timed_out", why));
            return Ok(Answer { error, ..Answer::of(StepStatus::TimedOut) });
        }
        () = call.cancel.cancelled() => return Ok(Answer::of(StepStatus::Cancelled)),
        slot = kernel => slot?,
    };
    let slot = &mut *slot;
    let Some(kernel) = slot.kernel.as_mut() else {
        return Err(failure("kernel_not_started", "the kernel is not there"));
    };
    kernel.listening.store(true, Ordering::Relaxed);
    let mut cell = Cell::default();
    let finish = execute(kernel, &code.code, &mut cell, deadline, call).await;
    kernel.listening.store(false, Ordering::Relaxed);
    while kernel.incoming.try_recv().is_ok() {}

    let mut answer =
        Answer { attachments: std::mem::take(&mut cell.attachments), ..Answer::default() };
    match finish {
        Finish::Done if cell.error.is_some() => {
            answer.status = StepStatus::Failed;
            answer.error = cell.error.take();
        }
        Finish::Done => {}
        Finish::Interrupted(status) => {
            answer.status = status;
            let code = if status == StepStatus::Cancelled { "cancelled" } else { "timed_out" };
            answer.error = Some(failure(
                code,
                "the code was interrupted; what it had defined until then is kept",
            ));
        }
        Finish::Stuck(status, why) => {
            answer.status = status;
            let message = format!(
                "{why}, so its kernel was ended; the next call gets a new one, in which nothing \
                 is defined"
            );
            answer.error = Some(failure("kernel_restarted", message));
            end(guest, slot).await;
        }
        Finish::Died => {
            // Its sockets may be gone before it is.
            let _ = timeout(INTERRUPTING, kernel.ended.wait_for(Option::is_some)).await;
            let status = kernel.ended.borrow().unwrap_or(libc::SIGKILL);
            answer.status = StepStatus::Failed;
            answer.exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            answer.signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            answer.error = Some(failure(
                "kernel_died",
                "the kernel ended while it ran this code; the next call gets a new one, in which \
                 nothing is defined",
            ));
            end(guest, slot).await;
        }
    }
    let mut notes: Vec<String> = cell.left_out().into_iter().collect();
    if cell.exits
        && let Some(kernel) = slot.kernel.as_mut()
    {
        // It ends by itself, after what the code wants done at its end.
        let _ = timeout_at(deadline, kernel.ended.wait_for(Option::is_some)).await;
        end(guest, slot).await;
        notes.push(ENDED_ITSELF.into());
    }
    answer.note = (!notes.is_empty()).then(|| notes.join("; "));
    slot.notebook.add(&code.code, cell.count, cell.outputs);
    Ok(answer)
}

async fn ready(guest: &Guest, slot: &mut Slot, language: Language) -> Result<(), ToolError> {
    if slot.kernel.as_ref().is_some_and(Kernel::has_ended) {
        slot.kernel = None;
    }
    if slot.kernel.is_none() {
        let kernel = Kernel::start(guest, language, &mut slot.identity).await?;
        slot.language_info = kernel.language_info.clone();
        if let Some(identity) = &slot.identity {
            guest.kernels.seat(language).shared.tell(&kernel, identity);
        }
        slot.kernel = Some(kernel);
    }
    Ok(())
}

async fn end(guest: &Guest, slot: &mut Slot) {
    if let Some(kernel) = slot.kernel.take() {
        kill_supervised(guest, kernel.supervisor).await;
    }
}
