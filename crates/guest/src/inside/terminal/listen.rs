//! A call that listens to a session: passes its output on until what it waits for has happened.

use std::time::Duration;

use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::tool::Until;
use bellglass_protocol::wire::DATA_CHUNK;
use regex::bytes::Regex;
use tokio::time::{Instant, sleep, sleep_until};

use super::session::Session;
use crate::inside::calls::Call;
use crate::inside::failure::failure;
use crate::inside::kill::descendants_of;
use crate::inside::ports;

/// How often a port is tried, and how long a try may take.
const PORT_EVERY: Duration = Duration::from_millis(50);
/// Text that a pattern is looked for in: what came last.
const PATTERN_WINDOW: usize = 64 << 10;
/// How often it is looked for what a command has left in the background.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After whoever wrote has ended, what it wrote is still on its way.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Why listening was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The command that ran is over, and nothing is left that could bring what was waited for; the
    /// shell is ready.
    Done,
    /// What was waited for has happened.
    Happened,
    /// The shell itself is gone.
    Ended,
    TimedOut,
    Cancelled,
}

/// What is waited for, made ready.
pub(super) enum Condition {
    Nothing,
    Pattern { regex: Regex, seen: Vec<u8> },
    Port(u16),
    Quiet(Duration),
}

impl Condition {
    pub(super) fn of(until: Option<&Until>) -> Result<Self, ToolError> {
        Ok(match until {
            None | Some(Until::Exit {}) => Self::Nothing,
            Some(Until::Port(port)) => Self::Port(*port),
            Some(Until::Quiet(time)) => Self::Quiet(time.duration()),
            Some(Until::Pattern(pattern)) => {
                let regex = Regex::new(pattern).map_err(|error| {
                    failure("invalid_pattern", format!("`{pattern}` is not a pattern: {error}"))
                })?;
                Self::Pattern { regex, seen: Vec::new() }
            }
        })
    }

    /// Whether what a command leaves in the background can bring it.
    pub(super) fn may_come_later(&self) -> bool {
        matches!(self, Self::Pattern { .. } | Self::Port(_))
    }

    fn sees(&mut self, text: &[u8]) -> bool {
        let Self::Pattern { regex, seen } = self else { return false };
        seen.extend_from_slice(text);
        let found = regex.is_match(seen);
        let over = seen.len().saturating_sub(PATTERN_WINDOW);
        seen.drain(..over);
        found
    }
}

/// Passes output on from `at` until the shell is ready, or the condition holds, or time is up.
///
/// What a command starts in the background may bring what is waited for when the command is long over. It
/// is waited for as long as anything but the shell lives in the session, unless the command has failed.
pub(super) async fn listen(
    session: &Session,
    at: &mut u64,
    condition: &mut Condition,
    deadline: Instant,
    call: &Call,
) -> Heard {
    session.listen(Some(*at));
    let heard = hear(session, at, condition, deadline, call).await;
    session.listen(None);
    heard
}

async fn hear(
    session: &Session,
    at: &mut u64,
    condition: &mut Condition,
    deadline: Instant,
    call: &Call,
) -> Heard {
    let mut changes = session.subscribe();
    let port = match condition {
        Condition::Port(port) => Some(*port),
        _ => None,
    };
    let mut port_open = std::pin::pin!(open_port(port));
    let mut left_alone = std::pin::pin!(left_alone(session));
    let (mut has_run, mut is_alone) = (false, false);
    loop {
        let (missed, bytes, busy, ended, failed, last_output) = {
            let state = session.state();
            let room = call.output.room().min(DATA_CHUNK);
            let (missed, bytes) = state.log.read(*at, room);
            let (busy, ended) = (state.is_busy(), state.ended.is_some());
            (missed, bytes, busy, ended, state.status != 0, state.last_output)
        };
        has_run |= busy;
        if missed > 0 {
            let note = format!("[{missed} bytes that nobody listened to are gone]\n");
            call.output.append(OutputStream::Stdout, note.as_bytes());
            *at += missed;
        }
        if !bytes.is_empty() {
            call.output.append(OutputStream::Stdout, &bytes);
            *at += bytes.len() as u64;
            session.listen(Some(*at));
            if condition.sees(&bytes) {
                return Heard::Happened;
            }
            continue;
        }
        // What a full-screen program paints is no text that comes, but can be waited for too.
        if let Condition::Pattern { regex, .. } = &*condition {
            let painted = {
                let state = session.state();
                state.plain.is_painting().then(|| state.screen())
            };
            if painted.is_some_and(|screen| regex.is_match(screen.as_bytes())) {
                return Heard::Happened;
            }
        }
        let is_behind = session.state().log.end() > *at;
        let is_ready = !is_behind && !busy && !ended;
        // How an earlier command has ended says nothing.
        if is_ready && (!condition.may_come_later() || has_run && failed) {
            return Heard::Done;
        }
        let quiet_at = match condition {
            Condition::Quiet(time) => Some(last_output + *time),
            _ => None,
        };
        tokio::select! {
            _ = changes.changed(), if !is_behind => {}
            _ = call.output.wait_for_room(), if is_behind => {}
            () = sleep(LAST_WORDS), if ended && !is_behind => return Heard::Ended,
            () = &mut left_alone, if is_ready && !is_alone => is_alone = true,
            () = sleep(LAST_WORDS), if is_ready && is_alone => {
                // It may have been open all along.
                return match port {
                    Some(port) if ports::reach(port, PORT_EVERY).await.is_some() => Heard::Happened,
                    _ => Heard::Done,
                };
            }
            () = &mut port_open, if port.is_some() => return Heard::Happened,
            () = sleep_until(quiet_at.unwrap_or(deadline)), if quiet_at.is_some() && !is_behind => {
                if session.state().last_output == last_output {
                    return Heard::Happened;
                }
            }
            () = sleep_until(deadline) => return Heard::TimedOut,
            () = call.cancel.cancelled() => return Heard::Cancelled,
        }
    }
}

/// Returns once nothing lives in a session but its shell.
async fn left_alone(session: &Session) {
    let supervisor = session.supervisor;
    loop {
        // The table of processes may be long.
        let living = tokio::task::spawn_blocking(move || descendants_of(supervisor).len());
        if living.await.is_ok_and(|living| living <= 1) {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns once a connection to the port can be made; never without a port.
pub(super) async fn open_port(port: Option<u16>) {
    let Some(port) = port else { return std::future::pending().await };
    loop {
        if ports::reach(port, PORT_EVERY).await.is_some() {
            return;
        }
        sleep(PORT_EVERY).await;
    }
}
