//! Runs one cell in a kernel, and stops it when its time is over or nobody wants it any more.

use std::time::Duration;

use bellglass_protocol::step::{OutputStream, StepStatus};
use bellglass_protocol::wire::{DATA_CHUNK, Language};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::INTERRUPTING;
use super::cell::Cell;
use super::connection::{Kernel, Origin, random_word};
use super::zmtp::Sender;
use crate::inside::calls::Call;
use crate::inside::kill::children_of;

/// After a kernel has said that it is done, what it printed may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(25);
/// The same where it did not say so, since it drops what nobody takes fast enough.
const LOST_WORDS: Duration = Duration::from_secs(2);
/// When nothing came for so long, nothing is on its way from code that was stopped.
const SILENCE: Duration = Duration::from_millis(100);
/// How often a kernel is to be silent for so long, where what it is asked to print never comes.
const SILENCES: u32 = 3;

/// Code that prints more often than this may be done long before all of it was told.
const MANY_WORDS: u32 = 64;

const NOT_TAKEN: &str = "the kernel did not take the code";
const NOT_STOPPED: &str = "the code could not be interrupted";
const STILL_PRINTING: &str = "the code was interrupted, but what it had printed went on coming";

/// How the execution of a cell came to its end.
pub(super) enum Finish {
    Done,
    Interrupted(StepStatus),
    /// It did not stop when it was told to, or nothing can be run after it; and why.
    Stuck(StepStatus, &'static str),
    Died,
}

pub(super) async fn execute(
    kernel: &mut Kernel,
    code: &str,
    cell: &mut Cell,
    deadline: Instant,
    call: &Call,
) -> Finish {
    let content = request(code, History::Kept);
    let (id, request) = kernel.signer.request("execute_request", &content);
    let ended = kernel.ended.wait_for(Option::is_some);
    let taken = tokio::select! {
        taken = hand_over(&mut kernel.shell, &request, deadline, &call.cancel) => taken,
        _ = ended => Err(Finish::Died),
    };
    if let Err(finish) = taken {
        return finish;
    }
    let mut watch = Watch { id, replied: false, idle: false, printed: 0 };
    let whole = async {
        let heard = watch.hear(kernel, cell, call).await;
        if matches!(heard, Finish::Done) && watch.printed >= MANY_WORDS {
            // The cell has ended: what it left running in the background may print for ever.
            let _ = timeout(LOST_WORDS, drain(kernel, Some((cell, call)))).await;
        }
        heard
    };
    let status = tokio::select! {
        heard = whole => return heard,
        () = sleep_until(deadline) => StepStatus::TimedOut,
        () = call.cancel.cancelled() => StepStatus::Cancelled,
    };
    if !stop(kernel, &mut watch, cell, call).await {
        return Finish::Stuck(status, NOT_STOPPED);
    }
    cell.error = None;
    if !timeout(INTERRUPTING, drain(kernel, None)).await.unwrap_or(false) {
        return Finish::Stuck(status, STILL_PRINTING);
    }
    Finish::Interrupted(status)
}

/// Has a kernel take a request. One that stands still takes no more than its socket holds. What is sent in part can
/// neither be taken back nor gone on with, so nothing can be run after it.
async fn hand_over(
    shell: &mut Sender,
    request: &[Bytes],
    deadline: Instant,
    cancel: &CancellationToken,
) -> Result<(), Finish> {
    tokio::select! {
        // Only a kernel that was asked can be stuck.
        biased;
        sent = shell.send(request) => sent.map_err(|_| Finish::Died),
        () = sleep_until(deadline) => Err(Finish::Stuck(StepStatus::TimedOut, NOT_TAKEN)),
        () = cancel.cancelled() => Err(Finish::Stuck(StepStatus::Cancelled, NOT_TAKEN)),
    }
}

enum History {
    Kept,
    Untouched,
}

fn request(code: &str, history: History) -> Value {
    let kept = matches!(history, History::Kept);
    json!({
        "code": code, "silent": !kept, "store_history": kept, "user_expressions": {},
        "allow_stdin": false, "stop_on_error": false,
    })
}

#[derive(Clone, Copy)]
enum Way {
    Request,
    Signal,
}

/// Interrupts what runs. Says whether the kernel has stopped it and lives.
async fn stop(kernel: &mut Kernel, watch: &mut Watch, cell: &mut Cell, call: &Call) -> bool {
    let ways: &[Way] = match kernel.language {
        Language::Python => &[Way::Request, Way::Signal],
        // A signal ends Deno. Its kernel stops code that computes when it is asked to, but never code
        // that awaits something; and whatever is run next waits for that.
        Language::TypeScript => &[Way::Request],
    };
    for way in ways {
        if !interrupt(kernel, *way).await {
            return false;
        }
        let until = Instant::now() + INTERRUPTING;
        tokio::select! {
            heard = watch.hear(kernel, cell, call) => return !matches!(heard, Finish::Died),
            () = sleep_until(until) => {}
        }
        // It has stopped; only what it had printed still comes.
        if watch.replied {
            return true;
        }
    }
    false
}

/// Says whether the kernel can be asked again: what it took in part is all that it will ever read there.
async fn interrupt(kernel: &mut Kernel, way: Way) -> bool {
    match way {
        Way::Request => {
            let (_, request) = kernel.signer.request("interrupt_request", &json!({}));
            timeout(INTERRUPTING, kernel.control.send(&request)).await.is_ok()
        }
        Way::Signal => {
            for child in children_of(kernel.supervisor) {
                // One that was stopped hears the first when it goes on.
                for signal in [libc::SIGINT, libc::SIGCONT] {
                    // SAFETY: takes numbers only. A process that is gone already is no failure.
                    unsafe { libc::kill(child, signal) };
                }
            }
            true
        }
    }
}

/// Waits until all has come that code had printed, and shows or drops it. Says whether that came to pass.
///
/// Deno's kernel tells what is printed as the output of the latest request, whichever printed it. What
/// is printed comes in its order, though: once a word comes that was printed last, all has come.
async fn drain(kernel: &mut Kernel, mut shown: Option<(&mut Cell, &Call)>) -> bool {
    if kernel.language == Language::Python {
        return true;
    }
    for _ in 0..SILENCES {
        let Ok(word) = random_word() else { return false };
        let content = request(&format!("console.log('{word}')"), History::Untouched);
        let (id, request) = kernel.signer.request("execute_request", &content);
        if kernel.shell.send(&request).await.is_err() {
            return false;
        }
        let (mut replied, mut printed) = (false, false);
        while !(replied && printed) {
            match timeout(SILENCE, kernel.incoming.recv()).await {
                Ok(None) => return false,
                Ok(Some((Origin::Reply, message))) => replied |= message.parent == id,
                Ok(Some((Origin::Broadcast, message))) => {
                    let text = message.content["text"].as_str();
                    if text.is_some_and(|text| text.contains(&word)) {
                        printed = true;
                    } else if let Some((cell, call)) = &mut shown
                        && message.kind == "stream"
                        && let Some((stream, text)) = cell.take(message)
                    {
                        show(call, stream, &text).await;
                    }
                }
                // The word was dropped, as all is that nobody took fast enough, or code prints in a
                // way of its own.
                Err(_) if replied => break,
                Err(_) => {}
            }
        }
        if printed {
            return true;
        }
    }
    // It answers and says nothing, so nothing is on its way.
    true
}

/// What was heard about a request so far. Survives that listening is cancelled.
struct Watch {
    id: String,
    replied: bool,
    idle: bool,
    /// How often it printed something.
    printed: u32,
}

impl Watch {
    async fn hear(&mut self, kernel: &mut Kernel, cell: &mut Cell, call: &Call) -> Finish {
        loop {
            let patience = match (self.replied, self.idle) {
                (true, true) => LAST_WORDS,
                (true, false) => LOST_WORDS,
                _ => Duration::MAX,
            };
            let next = tokio::select! {
                biased;
                next = timeout(patience, kernel.incoming.recv()) => Some(next),
                _ = kernel.ended.wait_for(Option::is_some) => None,
            };
            let next = match next {
                Some(Ok(next)) => next,
                Some(Err(_)) => return Finish::Done,
                // What it said before it ended may still be on its way.
                None => timeout(LAST_WORDS, kernel.incoming.recv()).await.unwrap_or(None),
            };
            let (origin, message) = match next {
                Some(next) => next,
                // Who asks for the kernel's end gets it.
                None if cell.exits => return Finish::Done,
                None => return Finish::Died,
            };
            if message.parent != self.id {
                continue;
            }
            match (origin, message.kind.as_str()) {
                (Origin::Reply, "execute_reply") => {
                    self.replied = true;
                    cell.end(&message.content);
                }
                (Origin::Broadcast, "status") => {
                    self.idle |= message.content["execution_state"] == "idle";
                }
                (Origin::Broadcast, kind) => {
                    self.printed += u32::from(kind == "stream");
                    if let Some((stream, text)) = cell.take(message) {
                        show(call, stream, &text).await;
                    }
                }
                (Origin::Reply, _) => {}
            }
            // Kernels of this kind say all before they say that they are idle.
            if self.replied && self.idle && kernel.says_idle_last {
                return Finish::Done;
            }
        }
    }
}

/// Shows text as fast as it is taken.
async fn show(call: &Call, stream: OutputStream, text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let room = call.output.wait_for_room().await.min(DATA_CHUNK).min(rest.len());
        let (piece, after) = rest.split_at(room);
        call.output.append(stream, piece);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_kernel_that_does_not_take_a_request_is_stuck() {
        let (up, wanted) = (Instant::now() - Duration::from_secs(1), CancellationToken::new());
        let (later, unwanted) =
            (Instant::now() + Duration::from_secs(600), CancellationToken::new());
        unwanted.cancel();
        let request = [Bytes::from_static(b"print(1)")];
        for (deadline, cancel, status) in
            [(up, &wanted, StepStatus::TimedOut), (later, &unwanted, StepStatus::Cancelled)]
        {
            // Which of those that are ready is taken first was once left to chance.
            for _ in 0..50 {
                let (ours, _theirs) = tokio::io::duplex(100);
                let mut shell = Sender::over(ours);
                assert!(hand_over(&mut shell, &request, deadline, cancel).await.is_ok());
            }
            let (ours, _stands_still) = tokio::io::duplex(1);
            let stuck = hand_over(&mut Sender::over(ours), &request, deadline, cancel).await;
            assert!(matches!(stuck, Err(Finish::Stuck(why, NOT_TAKEN)) if why == status));
        }
    }
}
