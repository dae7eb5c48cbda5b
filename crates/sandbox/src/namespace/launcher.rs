//! Starts the launcher for one sandbox and reads its answer.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bellglass_protocol::launch::{LaunchFailure, LaunchOrder, Launched};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::guest_binary::GuestBinary;
use super::record::reap;
use super::unrecorded::{PROGRAM, kill_all_of};
use crate::backend::BackendError;

/// How long building a cage may take. It is milliseconds, unless the image lies on a file system
/// that does not answer.
const TIME: Duration = Duration::from_secs(60);

/// How long a process that was killed may take to end.
const ENDING_TIME: Duration = Duration::from_secs(10);

/// Builds a cage by a fresh process of the guest's executable. It gets the order on its standard
/// input and nothing else of ours: no environment, no descriptors.
pub(super) fn launch(guest: &GuestBinary, order: &LaunchOrder) -> Result<Launched, BackendError> {
    launch_within(TIME, guest, order)
}

pub(super) fn launch_within(
    time: Duration,
    guest: &GuestBinary,
    order: &LaunchOrder,
) -> Result<Launched, BackendError> {
    let mut child = Command::new(guest.path())
        .arg0(PROGRAM)
        // By this it is found again if nobody lives to record it.
        .arg(&order.name)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(BackendError::io("start the launcher"))?;
    let text = serde_json::to_vec(order).expect("an order is plain data");
    if let Some(mut stdin) = child.stdin.take() {
        // A launcher that died early gives the better error, below.
        let _ = stdin.write_all(&text);
    }
    match answer(&mut child, time) {
        Ok(Answer::Launched(launched)) => Ok(launched),
        Ok(Answer::Failed(failure)) => {
            failure.pid.and_then(Pid::from_raw).into_iter().for_each(take_away);
            Err(BackendError::Launch { stage: failure.stage, error: failure.error })
        }
        Err(error) => {
            let _ = child.kill();
            Pid::from_raw(child.id() as i32).into_iter().for_each(take_away);
            // What it may have made already is known by nothing but its name.
            kill_all_of(&order.name);
            Err(BackendError::Launch { stage: "build the cage".into(), error: error.to_string() })
        }
    }
}

enum Answer {
    Launched(Launched),
    Failed(LaunchFailure),
}

/// Waits for the launcher's end and takes what it said.
fn answer(child: &mut Child, time: Duration) -> io::Result<Answer> {
    let pid = Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::NotFound)?;
    if !ends_within(time, &pidfd_open(pid, PidfdFlags::empty())?) {
        return Err(io::Error::other(format!(
            "the launcher has not answered within {} s; the image may be on a file system that \
             does not answer",
            time.as_secs()
        )));
    }
    let status = child.wait()?;
    let said = said_by(child)?;
    if status.success() {
        return Ok(Answer::Launched(serde_json::from_slice(&said)?));
    }
    let failure = serde_json::from_slice(&said)
        .map_err(|_| io::Error::other(format!("the launcher ended with {status}")))?;
    Ok(Answer::Failed(failure))
}

/// What a launcher that has ended wrote. It fits the pipe; the pipe's end is not waited for, since
/// a new process that cannot be ended would hold it open.
fn said_by(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        rustix::io::ioctl_fionbio(&stdout, true)?;
        match stdout.read_to_end(&mut said) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(said)
}

/// Waits for a child of ours that was killed, so that no corpse is left.
fn take_away(pid: Pid) {
    // As long as nobody has waited for it, its id is its own.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        ends_within(ENDING_TIME, &pidfd);
        reap(&pidfd);
    }
}

fn ends_within(time: Duration, pidfd: &OwnedFd) -> bool {
    let timeout = time.try_into().ok();
    loop {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.is_ok_and(|count| count > 0),
        }
    }
}
