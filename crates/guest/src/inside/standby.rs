//! A process that waits for its program, under its supervisor: made ahead and confined, so that a command finds
//! all there that does not depend on it.
//!
//! It is used once. Where it is gone or does not suit, one is made when it is needed. It is a tool's process
//! already, so tools may end or stop it, as they may each other.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

use super::confine::{Confinement, as_the_guest};
use super::letter::Letter;
use super::probe::Attempts;
use super::process::{Command, Outputs, Process, Supervised, Texts, nothing};
use super::supervisor::{Awaited, Input, Program, Waiting};
use super::{Guest, kernel_gaps};

/// How long after a call the next one is made: the call's result goes out first.
const AFTER_A_CALL: Duration = Duration::from_millis(1);

/// Who waits, if somebody does.
pub(super) struct Standby(Mutex<Option<Spare>>);

impl Standby {
    pub(super) fn new(spare: Option<Spare>) -> Self {
        Self(Mutex::new(spare))
    }

    /// Starts a program in the process that waits, or in a new one.
    pub(super) fn start(
        &self,
        command: &Command,
        confinement: &Confinement,
    ) -> Result<Process, ToolError> {
        if command.input.is_none()
            && let Some(spare) = self.take()
            && let Some(started) = spare.start(&Texts::of(command)?)
        {
            return Ok(started);
        }
        Process::start(command, confinement)
    }

    fn is_taken(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn take(&self) -> Option<Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has one wait for the next call. Without one, calls only start later.
    fn fill(&self, confinement: &Confinement) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = Spare::make(confinement, None).ok();
        }
    }
}

/// Has one wait again, if a call took the last.
pub(super) fn fill_later(guest: &Arc<Guest>) {
    if !guest.standby.is_taken() {
        return;
    }
    let guest = Arc::downgrade(guest);
    tokio::spawn(async move {
        tokio::time::sleep(AFTER_A_CALL).await;
        if let Some(guest) = guest.upgrade() {
            guest.standby.fill(&guest.confinement);
        }
    });
}

/// A process that waits, and its supervisor. If this is dropped, they end.
pub(super) struct Spare {
    supervised: Supervised,
    outputs: Outputs,
    orders: OwnedFd,
    letter: Letter,
}

impl Spare {
    /// `look` has somebody look around first, and tell there what was found.
    pub(super) fn make(
        confinement: &Confinement,
        look: Option<(RawFd, &Attempts)>,
    ) -> io::Result<Self> {
        let letter = Letter::new()?;
        let stdin = nothing()?;
        let (outputs, theirs) = Outputs::make()?;
        let (their_orders, orders) = as_the_guest(|| Ok(pipe_with(PipeFlags::CLOEXEC)?))?;
        let stdio = [stdin.as_raw_fd(), theirs.stdout.as_raw_fd(), theirs.stderr.as_raw_fd()];
        let (named, child) = (letter.named(), letter.waiting());
        let who = match kernel_gaps::hides_the_untraceable() {
            true => Waiting::Child,
            false => Waiting::Supervisor,
        };
        let awaited = Awaited { named, child, orders: their_orders.as_raw_fd(), who, look };
        // SAFETY: all of it lives until after the call, and the letter as long as somebody waits.
        let supervised = unsafe {
            Supervised::start(Program::Awaited(awaited), stdio, Input::Plain, confinement)
        }?;
        letter.seal();
        Ok(Self { supervised, outputs, orders, letter })
    }

    /// Of those who wait there is nothing to report.
    fn waits(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut watched = [PollFd::new(&self.supervised.reports, PollFlags::IN)];
        poll(&mut watched, Some(&now)) == Ok(0)
    }

    /// Nothing if it is not there any more, or if what it is to start is too long for it.
    fn start(mut self, texts: &Texts) -> Option<Process> {
        // A tool may have stopped who waits and, where tools are the guest's own user, the supervisor. Who is not
        // used after all must notice that, too.
        self.letter.reader().into_iter().for_each(wake);
        wake(self.supervised.pid);
        if !self.waits() || !self.letter.write(texts) {
            return None;
        }
        let Self { supervised, outputs, orders, letter } = self;
        let process = Process::of(supervised.watched().ok()?, outputs).ok()?;
        // Last of all: what was ordered must not be started once more.
        let ordered = rustix::io::write(&orders, &[1]) == Ok(1);
        // Who reads it has a view of its own.
        drop(letter);
        ordered.then_some(process)
    }
}

/// Lets a process go on if it was stopped. Should one be gone, and its number somebody else's, that one of the
/// sandbox goes on, which does no harm.
fn wake(pid: Pid) {
    let _ = kill_process(pid, Signal::CONT);
}
