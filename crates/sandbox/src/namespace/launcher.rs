//! Starts the launcher for one sandbox and reads its answer.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bellglass_protocol::launch::{LaunchFailure, LaunchOrder, Launched};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::guest_binary::GuestBinary;
use super::record::{ENDING_TIME, ends_within, reap};
use super::unrecorded::{PROGRAM, kill_all_of};
use crate::backend::BackendError;

/// How long building a cage may take. It is milliseconds, unless the image lies on a file system
/// that does not answer.
const TIME: Duration = Duration::from_secs(60);

/// A fresh process of the guest's executable that builds one cage. It gets an order on its standard
/// input and nothing else of ours: no environment, no descriptors. While it starts, others can work.
pub(super) struct Launcher {
    child: Child,
    name: String,
}

impl Launcher {
    pub(super) fn start(guest: &GuestBinary, name: &str) -> Result<Self, BackendError> {
        let child = Command::new(guest.path())
            .arg0(PROGRAM)
            // By this it is found again if nobody lives to record it.
            .arg(name)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BackendError::io("start the launcher"))?;
        Ok(Self { child, name: name.into() })
    }

    /// Has the cage built. The launcher is at its end then, and is taken away when it is dropped.
    pub(super) fn build(&mut self, order: &LaunchOrder) -> Result<Launched, BackendError> {
        self.build_within(TIME, order)
    }

    pub(super) fn build_within(
        &mut self,
        time: Duration,
        order: &LaunchOrder,
    ) -> Result<Launched, BackendError> {
        let text = serde_json::to_vec(order).expect("an order is plain data");
        if let Some(mut stdin) = self.child.stdin.take() {
            // A launcher that died early gives the better error, below.
            let _ = stdin.write_all(&text);
        }
        match answer(&mut self.child, time) {
            Ok(Answer::Launched(launched)) => Ok(launched),
            Ok(Answer::Failed(failure)) => {
                failure.pid.and_then(Pid::from_raw).into_iter().for_each(take_away);
                Err(BackendError::Launch { stage: failure.stage, error: failure.error })
            }
            Err(error) => {
                let _ = self.child.kill();
                // What it may have made already is known by nothing but its name.
                kill_all_of(&self.name);
                let stage = "build the cage".into();
                Err(BackendError::Launch { stage, error: error.to_string() })
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // One that waits for its order finds the end of it.
        drop(self.child.stdin.take());
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            take_away(pid);
        }
    }
}

enum Answer {
    Launched(Launched),
    Failed(LaunchFailure),
}

/// Takes what the launcher says, which is one line, or all there is when it has ended.
fn answer(child: &mut Child, time: Duration) -> io::Result<Answer> {
    let pid = Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    rustix::io::ioctl_fionbio(&stdout, true)?;
    let deadline = Instant::now() + time;
    let mut said = Vec::new();
    while !said.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now()).try_into().ok();
        let watched =
            &mut [PollFd::new(&stdout, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
        match poll(watched, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => {
                return Err(io::Error::other(format!(
                    "the launcher has not answered within {} s; the image may be on a file system \
                     that does not answer",
                    time.as_secs()
                )));
            }
            polled => polled?,
        };
        let has_ended = !watched[1].revents().is_empty();
        match stdout.read_to_end(&mut said) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
        // The pipe's end is not waited for: a new process that cannot be ended would hold it open.
        if has_ended {
            break;
        }
    }
    if let Ok(launched) = serde_json::from_slice(&said) {
        return Ok(Answer::Launched(launched));
    }
    let failure = serde_json::from_slice(&said)
        .map_err(|_| io::Error::other("the launcher ended without a word"))?;
    Ok(Answer::Failed(failure))
}

/// Waits for a child of ours that is at its end, so that no corpse is left.
fn take_away(pid: Pid) {
    // As long as nobody has waited for it, its id is its own.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        ends_within(ENDING_TIME, &pidfd);
        reap(&pidfd);
    }
}
