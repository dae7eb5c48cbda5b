//! Starts launchers, gives one its order, and hears what becomes of the sandbox.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bellglass_protocol::launch::{GO, LaunchFailure, LaunchOrder, LaunchWord, Launched};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::NotMade;
use super::guest_binary::GuestBinary;
use super::record::{ENDING_TIME, ends_within, has_exited, reap};
use super::unrecorded::{PROGRAM, kill_all_of};
use crate::backend::{BackendError, LONGEST_NAME, SandboxName};

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
            Some(launcher) => {
                launcher.keep_elsewhere();
                Ok(launcher)
            }
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

    /// Keeps it from the processor where we run, if there are more. There is something to do for both, and the
    /// kernel would have it wait here until we are done: it takes whoever writes to a pipe for one who then sleeps.
    fn keep_elsewhere(&self) {
        let Ok(mut elsewhere) = sched_getaffinity(None) else { return };
        elsewhere.unset(sched_getcpu());
        if elsewhere.count() > 0 {
            let _ = sched_setaffinity(Pid::from_raw(self.child.id() as i32), &elsewhere);
        }
    }

    #[cfg(test)]
    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Tells it what to make. It makes a process, which builds nothing yet.
    pub(super) fn prepare(&mut self, order: &LaunchOrder) {
        let mut text = serde_json::to_vec(order).expect("an order is plain data");
        text.push(b'\n');
        self.tell(&text);
    }

    /// One that died early gives the better error when it is listened to.
    fn tell(&mut self, text: &[u8]) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(text);
        }
    }

    /// Takes back what it was told, for this reason.
    pub(super) fn abandon(self, name: &SandboxName, why: BackendError) -> NotMade {
        match Building::begin(self, name, TIME) {
            Ok(building) => building.end(why),
            Err(_) => NotMade::Gone(why),
        }
    }

    /// Has the sandbox made that it was told of. When this returns, the process builds its cage.
    pub(super) fn launch(self, name: &SandboxName) -> Result<(Launched, Building), NotMade> {
        self.launch_within(TIME, name)
    }

    pub(super) fn launch_within(
        self,
        time: Duration,
        name: &SandboxName,
    ) -> Result<(Launched, Building), NotMade> {
        let mut building = Building::begin(self, name, time)?;
        building.launcher.tell(GO);
        match building.launched() {
            Ok(launched) => Ok((launched, building)),
            Err(unheard) => Err(building.end(unheard.into())),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // It waits for that, with an order or without one.
        drop(self.child.stdin.take());
        ends_within(ENDING_TIME, &self.pidfd);
        reap(&self.pidfd);
    }
}

/// A sandbox whose cage is being built.
pub(super) struct Building {
    /// Has nothing left to do by the time that the cage stands, and ends with this.
    launcher: Launcher,
    words: ChildStdout,
    heard: Vec<u8>,
    /// The new process.
    made: Option<OwnedFd>,
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
        name: &SandboxName,
        time: Duration,
    ) -> Result<Self, BackendError> {
        let failed = || BackendError::io("hear from the launcher");
        let words = launcher.child.stdout.take();
        let words = words.ok_or_else(|| failed()(io::ErrorKind::BrokenPipe.into()))?;
        rustix::io::ioctl_fionbio(&words, true).map_err(|error| failed()(error.into()))?;
        let (heard, name) = (Vec::new(), name.to_string());
        let deadline = Instant::now() + time;
        Ok(Self { launcher, words, heard, made: None, ended: None, name, time, deadline })
    }

    fn launched(&mut self) -> Result<Launched, Unheard> {
        loop {
            // Asked before what it said is looked at: who has ended says nothing more.
            let has_ended = !self.launcher.is_there();
            let is_silent = !self.hear()?;
            match self.next_word()? {
                Some(LaunchWord::Launched(launched)) => return Ok(launched),
                // Whichever of the two fails first knows best why.
                Some(LaunchWord::Failed(failure)) => return Err(Unheard::Said(failure)),
                Some(word) => self.keep(word),
                None if has_ended || is_silent => return Err(Unheard::without_a_word()),
                None => self.wait(Some(&self.launcher.pidfd))?,
            }
        }
    }

    /// Returns when the cage stands. Leaves no process if it never will.
    pub(super) fn ready(mut self) -> Result<(), BackendError> {
        self.heard_ready().map_err(|unheard| match self.end(unheard.into()) {
            NotMade::Gone(error) | NotMade::Remains(error) => error,
        })
    }

    /// Ends both processes and takes them away: they are children of ours.
    fn end(mut self, why: BackendError) -> NotMade {
        drop(self.launcher.child.stdin.take());
        let _ = self.launcher.child.kill();
        ends_within(ENDING_TIME, &self.launcher.pidfd);
        // It may have said which process it made when nobody listened.
        while let (Ok(_), Ok(Some(word))) = (self.hear(), self.next_word()) {
            self.keep(word);
        }
        let has_ended = match &self.made {
            Some(pidfd) => take_away(pidfd),
            // What it may have made is known by nothing but its name.
            None => kill_all_of(&self.name),
        };
        if has_ended { NotMade::Gone(why) } else { NotMade::Remains(why) }
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
            // Nobody has waited for it yet, so the number is still its own.
            LaunchWord::Made { pid } => {
                let pidfd = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
                self.made = pidfd.and_then(Result::ok);
            }
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
}

impl From<Unheard> for BackendError {
    fn from(unheard: Unheard) -> Self {
        let (stage, error) = match unheard {
            Unheard::Said(LaunchFailure { stage, error }) => (stage, error),
            Unheard::Silent(error) => ("build the cage".into(), error.to_string()),
        };
        Self::Launch { stage, error }
    }
}

impl<E: Into<io::Error>> From<E> for Unheard {
    fn from(error: E) -> Self {
        Self::Silent(error.into())
    }
}

/// Ends a child of ours and waits for it, so that no corpse is left. Says whether it is gone.
fn take_away(pidfd: &OwnedFd) -> bool {
    let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
    let has_ended = ends_within(ENDING_TIME, pidfd);
    reap(pidfd);
    has_ended
}
