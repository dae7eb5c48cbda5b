//! Terminal sessions: shells on terminals that live on from call to call, each with a name.
//!
//! A command that does not end keeps nothing from going on: a call returns when its time is up, and
//! interrupts what runs, unless it was told to leave it running.

mod bash;
mod keys;
mod listen;
mod log;
mod person;
mod pty;
mod session;
mod text;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellglass_protocol::step::{OutputStream, StepStatus, ToolError, workspace_relative};
use bellglass_protocol::tool::{CloseSession, SendInput, Shell, Until, WaitFor};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until};

use super::Guest;
use super::answer::Answer;
use super::calls::Call;
use super::failure::failure;
use super::interpreters::check_variable;
use super::run_process::kill_supervised;
use listen::{Condition, Heard, listen, open_port};
pub(super) use person::open;
use session::Session;

/// Sessions at once.
const MOST_SESSIONS: usize = 16;

/// How long input is followed by silence before a call returns, unless it says otherwise.
const QUIET_AFTER_INPUT: Duration = Duration::from_millis(300);

/// How long a program may take to end after each of three ways to ask for it.
const ENDING: Duration = Duration::from_secs(1);

/// How long typed input may wait for a program that does not read.
const TYPING: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<String, Arc<Session>>>,
}

type Turn = OwnedMutexGuard<u64>;

pub(super) async fn shell(
    guest: &Guest,
    name: &str,
    shell: &Shell,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let mut condition = Condition::of(shell.wait_for.as_ref())?;
    let text = script(guest.workspace.path(), shell)?;
    let session = guest.sessions.get_or_open(guest, name)?;
    let mut at = take_turn(&session)?;
    // A shell that has just been opened is ready in a moment.
    if session.state().done.is_none() {
        match listen(&session, &mut at, &mut Condition::Nothing, deadline, call).await {
            Heard::Done => {}
            heard => return Ok(guest.sessions.answer(&session, heard)),
        }
    }
    if session.state().is_busy() {
        let running = first_line(&session.state().command);
        return Err(failure(
            "session_busy",
            format!(
                "`{running}` still runs in the session `{name}`; end it by send_input with the key \
                 ctrl-c, wait for it by wait_for, or use another session"
            ),
        ));
    }
    if let Err(error) = session.order(&shell.command, &text) {
        let mut words = format!("the command cannot be put into /tmp: {error}");
        // Somebody has cleared /tmp, and no shell that is fed from there can be fed again.
        if error.kind() == std::io::ErrorKind::NotFound {
            kill_supervised(guest, session.supervisor).await;
            guest.sessions.forget(&session);
            words.push_str(&format!(
                "; the session `{name}` was closed, and a new one begins next time"
            ));
        }
        return Err(failure("cannot_save_source", words));
    }
    let heard = listen(&session, &mut at, &mut condition, deadline, call).await;
    let left_running = shell.wait_for.is_some() && heard == Heard::TimedOut;
    let is_over = matches!(heard, Heard::TimedOut | Heard::Cancelled) && !left_running;
    // What is in the background is nothing that the session would have to let go of.
    if is_over && session.state().is_busy() {
        return Ok(interrupt(guest, &session, at, heard, call).await);
    }
    let answer = guest.sessions.answer(&session, heard);
    Ok(if condition.may_come_later() { unless_ended_first(answer, heard) } else { answer })
}

pub(super) async fn send_input(
    guest: &Guest,
    input: &SendInput,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let mut condition = match &input.wait_for {
        None => Condition::Quiet(QUIET_AFTER_INPUT),
        until => Condition::of(until.as_ref())?,
    };
    let bytes = keys::input(input.text.as_deref(), &input.keys)?;
    let session = guest.sessions.get(&input.session)?;
    let mut at = take_turn(&session)?;
    if !session.state().is_busy() {
        return Err(nothing_runs(&input.session));
    }
    session.state().last_output = Instant::now();
    let typed = tokio::time::timeout(TYPING, session.pty.write(&bytes)).await;
    if !matches!(typed, Ok(Ok(()))) {
        return Err(failure(
            "input_not_taken",
            "the program reads no input and the terminal holds no more of it; end it by ctrl-c",
        ));
    }
    let heard = listen(&session, &mut at, &mut condition, deadline, call).await;
    let answer = guest.sessions.answer(&session, heard);
    Ok(if condition.may_come_later() { unless_ended_first(answer, heard) } else { answer })
}

pub(super) async fn wait_for(
    guest: &Guest,
    wait: &WaitFor,
    deadline: Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let Some(name) = &wait.session else {
        let Some(Until::Port(port)) = wait.until else {
            return Err(failure(
                "invalid_argument",
                "without a session only a port can be waited for",
            ));
        };
        return Ok(wait_for_port(port, deadline, call).await);
    };
    let mut condition = Condition::of(wait.until.as_ref())?;
    let session = guest.sessions.get(name)?;
    let mut at = take_turn(&session)?;
    if matches!(condition, Condition::Quiet(_)) {
        session.state().last_output = Instant::now();
    }
    let heard = listen(&session, &mut at, &mut condition, deadline, call).await;
    let answer = guest.sessions.answer(&session, heard);
    let wanted = !matches!(condition, Condition::Nothing);
    Ok(if wanted { unless_ended_first(answer, heard) } else { answer })
}

/// An answer to who waited for something that a command was to bring.
fn unless_ended_first(answer: Answer, heard: Heard) -> Answer {
    if !matches!(heard, Heard::Done | Heard::Ended) {
        return answer;
    }
    let words = "the command was over before what was waited for had happened";
    let error = Some(failure("ended_first", words));
    Answer { status: StepStatus::Failed, error, ..answer }
}

pub(super) async fn close(guest: &Guest, call: &CloseSession) -> Result<Answer, ToolError> {
    let session = guest.sessions.get(&call.session)?;
    kill_supervised(guest, session.supervisor).await;
    guest.sessions.forget(&session);
    Ok(Answer::text(format!("the session `{}` is closed", session.name)))
}

async fn wait_for_port(port: u16, deadline: Instant, call: &Call) -> Answer {
    tokio::select! {
        () = open_port(Some(port)) => Answer::text(format!("port {port} is open")),
        () = sleep_until(deadline) => {
            let error = failure("timed_out", format!("nothing listens on port {port} yet"));
            Answer { status: StepStatus::TimedOut, error: Some(error), ..Answer::default() }
        }
        () = call.cancel.cancelled() => Answer::of(StepStatus::Cancelled),
    }
}

/// Ends what runs in a session, ever less politely, so that the session can be used again.
async fn interrupt(
    guest: &Guest,
    session: &Arc<Session>,
    mut at: Turn,
    why: Heard,
    call: &Call,
) -> Answer {
    let (status, code, reason) = match why {
        Heard::Cancelled => (StepStatus::Cancelled, "cancelled", "the call was cancelled"),
        _ => (StepStatus::TimedOut, "timed_out", "the time limit was reached"),
    };
    let mut how = "interrupted by ctrl-c";
    let mut heard = Heard::TimedOut;
    for way in ["interrupted by ctrl-c", "terminated", "killed"] {
        how = way;
        match (way, session.pty.foreground()) {
            ("interrupted by ctrl-c", _) => {
                let _ = tokio::time::timeout(ENDING, session.pty.write(b"\x03")).await;
            }
            ("terminated", Some(group)) => signal(group, libc::SIGTERM),
            (_, Some(group)) => signal(group, libc::SIGKILL),
            (_, None) => {}
        }
        let until = Instant::now() + ENDING;
        heard = settle(session, &mut at, until, call).await;
        if heard != Heard::TimedOut {
            break;
        }
    }
    let name = &session.name;
    let note = if heard == Heard::TimedOut || heard == Heard::Ended {
        kill_supervised(guest, session.supervisor).await;
        guest.sessions.forget(session);
        format!("{reason}; the session `{name}` did not let go of its command and was closed")
    } else {
        session.restore();
        format!("{reason}; the command was {how}, and the session `{name}` goes on")
    };
    Answer { status, error: Some(failure(code, note)), ..Answer::default() }
}

/// Like [`listen`], for a call that is to be over: it does not hear that it was cancelled.
async fn settle(session: &Session, at: &mut u64, until: Instant, call: &Call) -> Heard {
    let mut changes = session.subscribe();
    loop {
        {
            let state = session.state();
            let (missed, bytes) = state.log.read(*at, call.output.room());
            *at += missed + bytes.len() as u64;
            call.output.append(OutputStream::Stdout, &bytes);
            if state.ended.is_some() {
                return Heard::Ended;
            }
            if !state.is_busy() {
                // What there was no room for is not the next command's.
                *at = state.log.end();
                return Heard::Done;
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep_until(until) => return Heard::TimedOut,
        }
    }
}

fn signal(group: libc::pid_t, signal: libc::c_int) {
    // SAFETY: takes numbers only. A group that is gone already is no failure. The guest's own group
    // has no terminal, so it cannot be meant.
    unsafe { libc::kill(-group, signal) };
}

fn take_turn(session: &Arc<Session>) -> Result<Turn, ToolError> {
    session.turn.clone().try_lock_owned().map_err(|_| {
        failure("session_busy", format!("another call uses the session `{}`", session.name))
    })
}

fn nothing_runs(name: &str) -> ToolError {
    failure(
        "nothing_runs",
        format!("no command runs in the session `{name}`; start one by shell with `session`"),
    )
}

/// A command with the folder and the variables that it asks for, as bash reads it.
fn script(workspace: &Path, shell: &Shell) -> Result<String, ToolError> {
    let mut text = String::new();
    for (name, value) in &shell.env {
        check_variable(name, value)?;
        text.push_str(&format!("export {name}={}; ", bash::quoted(value)));
    }
    if let Some(cwd) = &shell.cwd {
        let folder = workspace.join(workspace_relative(cwd));
        text.push_str(&format!("cd -- {} && ", bash::quoted(&folder.to_string_lossy())));
        text.push_str(&format!("eval {}", bash::quoted(&shell.command)));
    } else {
        text.push_str(&shell.command);
    }
    Ok(text)
}

fn first_line(command: &str) -> String {
    command.trim().lines().next().unwrap_or_default().chars().take(100).collect()
}

impl Sessions {
    fn get(&self, name: &str) -> Result<Arc<Session>, ToolError> {
        let open = self.lock();
        open.get(name).filter(|session| session.state().ended.is_none()).cloned().ok_or_else(|| {
            let mut names: Vec<&str> = open.keys().map(String::as_str).collect();
            names.sort_unstable();
            let others = match names.as_slice() {
                [] => "none is open; open one by shell with `session`".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            failure("no_such_session", format!("there is no session `{name}`: {others}"))
        })
    }

    fn get_or_open(&self, guest: &Guest, name: &str) -> Result<Arc<Session>, ToolError> {
        let mut open = self.lock();
        open.retain(|_, session| session.state().ended.is_none());
        if let Some(session) = open.get(name) {
            return Ok(session.clone());
        }
        if open.len() >= MOST_SESSIONS {
            let why = format!("{MOST_SESSIONS} sessions are open; close one by close_session");
            return Err(failure("too_many_sessions", why));
        }
        let session = Session::open(guest, name)?;
        open.insert(name.into(), session.clone());
        Ok(session)
    }

    fn forget(&self, session: &Arc<Session>) {
        self.lock().retain(|_, open| !Arc::ptr_eq(open, session));
    }

    /// What a call says about the session once it has heard enough.
    fn answer(&self, session: &Arc<Session>, heard: Heard) -> Answer {
        let state = session.state();
        let name = &session.name;
        let command = first_line(&state.command);
        let running = match state.is_busy() {
            true => format!("`{command}` still runs in the session `{name}`"),
            false => format!("the session `{name}` is ready for the next command"),
        };
        let screen = state.plain.is_painting().then(|| state.screen());
        let mut answer = Answer { text: screen, ..Answer::default() };
        match heard {
            Heard::Done => {
                answer.exit_code = Some(state.status);
                if state.status != 0 {
                    answer.status = StepStatus::Failed;
                }
            }
            Heard::Happened => {
                answer.note = Some(running);
            }
            Heard::TimedOut => {
                answer.status = StepStatus::TimedOut;
                let note = format!("the time limit was reached; {running}");
                answer.error = Some(failure("timed_out", note));
            }
            Heard::Cancelled => answer.status = StepStatus::Cancelled,
            Heard::Ended => {
                let status = state.ended.unwrap_or_default();
                answer.exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
                answer.signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
                if status != 0 {
                    answer.status = StepStatus::Failed;
                }
                answer.note = Some(format!("the session `{name}` ended"));
                drop(state);
                self.forget(session);
            }
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
