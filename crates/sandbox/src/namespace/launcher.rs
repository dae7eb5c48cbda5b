//! Starts launchers, gives one its order, and hears what becomes of the sandbox.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bellglass_protocol::launch::{LaunchFailure, LaunchOrder, LaunchWord, Launched};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::guest_binary::GuestBinary;
use super::record::{ENDING_TIME, ends_within, has_exited, reap};
use super::unrecorded::{PROGRAM, kill_all_of};
use crate::backend::{BackendError, LONGEST_NAME};

/// How long building a cage may take. It is milliseconds, unless the image lies on a file system
/// that does not answer.
const TIME: Duration = Duration::from_secs(60);

/// What a launcher and its process say is a few hundred bytes.
const MOST_WORDS: usize = 64 << 10;

/// A launcher that waits for its order. To start a program costs more than all namespaces together, and
/// one that has got no order yet is nobody's: it holds nothing, and ends when its standard input does.
#[derive(Default)]
pub(super) struct WaitingLauncher(Mutex<Option<Launcher>>);

impl WaitingLauncher {
    /// The one that waits, or one that has just been started.
    pub(super) fn take(&self, guest: &GuestBinary) -> Result<Launcher, BackendError> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match waiting.filter(Launcher::is_there) {
            Some(launcher) => Ok(launcher),
            None => Launcher::start(guest),
        }
    }

    /// Has one wait again. Whoever needs one starts it if this does not.
    pub(super) fn fill(&self, guest: &GuestBinary) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_none() {
            *waiting = Launcher::start(guest).ok();
        }
    }
}

/// A fresh process of the guest's executable that makes one sandbox. It gets an order on its standard
/// input and nothing else of ours: no environment, no descriptors.
pub(super) struct Launcher {
    child: Child,
    pidfd: OwnedFd,
}

impl Launcher {
    pub(super) fn start(guest: &GuestBinary) -> Result<Self, BackendError> {
        let failed = || BackendError::io("start the launcher");
        let mut child = Command::new(guest.path())
            .arg0(PROGRAM)
            // Room for the name of its sandbox. By that it is found again if nobody lives to record it.
            .arg("-".repeat(LONGEST_NAME))
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed())?;
        let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::ErrorKind::NotFound.into());
        match pid.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(failed()(error))
            }
        }
    }

    fn is_there(&self) -> bool {
        !has_exited(&self.pidfd)
    }

    /// Has the sandbox made. When this returns there is a process, which builds its cage.
    pub(super) fn launch(self, order: &LaunchOrder) -> Result<(Launched, Building), BackendError> {
        self.launch_within(TIME, order)
    }

    pub(super) fn launch_within(
        mut self,
        time: Duration,
        order: &LaunchOrder,
    ) -> Result<(Launched, Building), BackendError> {
        let text = serde_json::to_vec(order).expect("an order is plain data");
        if let Some(mut stdin) = self.child.stdin.take() {
            // A launcher that died early gives the better error, below.
            let _ = stdin.write_all(&text);
        }
        let mut building = Building::begin(self, order, time)?;
        match building.launched() {
            Ok(launched) => Ok((launched, building)),
            Err(unheard) => {
                let _ = building.launcher.child.kill();
                Err(unheard.into_error(&order.name))
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // One that waits for its order finds the end of it.
        drop(self.child.stdin.take());
        ends_within(ENDING_TIME, &self.pidfd);
        reap(&self.pidfd);
    }
}

/// A sandbox whose cage is being built.
pub(super) struct Building {
    /// At its end by the time that the cage stands.
    launcher: Launcher,
    words: ChildStdout,
    heard: Vec<u8>,
    ended: Option<Result<(), LaunchFailure>>,
    name: String,
    time: Duration,
    deadline: Instant,
}

/// Why nothing good was heard.
enum Unheard {
    Said(LaunchFailure),
    Silent(io::Error),
}

impl Building {
    fn begin(
        mut launcher: Launcher,
        order: &LaunchOrder,
        time: Duration,
    ) -> Result<Self, BackendError> {
        let failed = || BackendError::io("hear from the launcher");
        let words = launcher.child.stdout.take();
        let words = words.ok_or_else(|| failed()(io::ErrorKind::BrokenPipe.into()))?;
        rustix::io::ioctl_fionbio(&words, true).map_err(|error| failed()(error.into()))?;
        let (heard, name) = (Vec::new(), order.name.clone());
        let deadline = Instant::now() + time;
        Ok(Self { launcher, words, heard, ended: None, name, time, deadline })
    }

    fn launched(&mut self) -> Result<Launched, Unheard> {
        loop {
            // Asked before what it said is looked at: who has ended says nothing more.
            let has_ended = !self.launcher.is_there();
            let is_silent = !self.hear()?;
            match self.next_word()? {
                Some(LaunchWord::Launched(launched)) => return Ok(launched),
                // The launcher tells which process is to be taken away.
                Some(LaunchWord::Failed(failure)) if failure.pid.is_some() => {
                    return Err(Unheard::Said(failure));
                }
                Some(word) => self.keep(word),
                None if has_ended || is_silent => {
                    let failure = self.ended.take().and_then(Result::err);
                    return Err(failure.map_or_else(Unheard::without_a_word, Unheard::Said));
                }
                None => self.wait(Some(&self.launcher.pidfd))?,
            }
        }
    }

    /// Returns when the cage stands.
    pub(super) fn ready(mut self) -> Result<(), BackendError> {
        self.heard_ready().map_err(|unheard| unheard.into_error(&self.name))
    }

    fn heard_ready(&mut self) -> Result<(), Unheard> {
        loop {
            if let Some(ended) = self.ended.take() {
                return ended.map_err(Unheard::Said);
            }
            let is_silent = !self.hear()?;
            match self.next_word()? {
                Some(word) => self.keep(word),
                None if is_silent => return Err(Unheard::without_a_word()),
                None => self.wait(None)?,
            }
        }
    }

    fn keep(&mut self, word: LaunchWord) {
        match word {
            LaunchWord::Launched(_) => {}
            LaunchWord::Ready => self.ended = Some(Ok(())),
            LaunchWord::Failed(failure) => self.ended = Some(Err(failure)),
        }
    }

    /// Takes what there is. Says whether anybody is left who could say more.
    fn hear(&mut self) -> io::Result<bool> {
        let room = MOST_WORDS - self.heard.len().min(MOST_WORDS);
        match self.words.by_ref().take(room as u64).read_to_end(&mut self.heard) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
            Ok(_) if self.heard.len() >= MOST_WORDS => Err(io::Error::other("it says too much")),
            Ok(_) => Ok(false),
        }
    }

    fn next_word(&mut self) -> io::Result<Option<LaunchWord>> {
        let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        serde_json::from_slice(&line).map(Some).map_err(io::Error::other)
    }

    fn wait(&self, launcher: Option<&OwnedFd>) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now()).try_into().ok();
        let mut watched = vec![PollFd::new(&self.words, PollFlags::IN)];
        // The pipe's end is not waited for: a new process that cannot be ended would hold it open.
        watched.extend(launcher.map(|launcher| PollFd::new(launcher, PollFlags::IN)));
        match poll(&mut watched, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(0) => Err(io::Error::other(format!(
                "the launcher has not answered within {} s; the image may be on a file system that \
                 does not answer",
                self.time.as_secs()
            ))),
            polled => Ok(polled.map(drop)?),
        }
    }
}

impl Unheard {
    fn without_a_word() -> Self {
        Self::Silent(io::Error::other("the launcher ended without a word"))
    }

    /// Leaves no process of the sandbox.
    fn into_error(self, name: &str) -> BackendError {
        match self {
            Self::Said(LaunchFailure { stage, error, pid }) => {
                match pid.and_then(Pid::from_raw) {
                    Some(pid) => take_away(pid),
                    // The new process may have said so, whose number nobody told.
                    None => kill_all_of(name),
                }
                BackendError::Launch { stage, error }
            }
            Self::Silent(error) => {
                // What it may have made already is known by nothing but its name.
                kill_all_of(name);
                BackendError::Launch { stage: "build the cage".into(), error: error.to_string() }
            }
        }
    }
}

impl<E: Into<io::Error>> From<E> for Unheard {
    fn from(error: E) -> Self {
        Self::Silent(error.into())
    }
}

/// Waits for a child of ours that is at its end, so that no corpse is left.
fn take_away(pid: Pid) {
    // As long as nobody has waited for it, its id is its own.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        ends_within(ENDING_TIME, &pidfd);
        reap(&pidfd);
    }
}
