//! Runs a program for a call: takes its output, ends it in time, says how it ended.
//!
//! The call is over when the program has ended and its output has, or has been silent for a moment.
//! What it left running in the background lives on and may write; nobody listens any more.

use std::time::Duration;

use bellglass_protocol::step::{OutputStream, StepStatus, ToolError};
use bellglass_protocol::wire::{DATA_CHUNK, OUTPUT_WINDOW};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use super::Guest;
use super::answer::Answer;
use super::calls::Call;
use super::kill::kill_tree;
use super::output::Output;
use super::process::{Command, Supervisor, refusal};
use super::supervisor::Report;

/// Silence after the program's end that means its output is over.
const SILENCE: Duration = Duration::from_millis(150);
/// How long background processes that keep writing are listened to in all.
const LISTENING: Duration = Duration::from_secs(1);
/// How much of what they write after the program's end is taken.
const LISTENING_BYTES: usize = OUTPUT_WINDOW;

pub(super) async fn run(
    guest: &Guest,
    call: &Call,
    command: &Command,
    deadline: Instant,
) -> Result<Answer, ToolError> {
    let process = guest.standby.start(command, &guest.confinement)?;
    let (stdout, stderr, mut supervisor) = process.split();
    let mut outputs = Outputs::new(stdout, stderr);

    let mut forced = None;
    let report = loop {
        tokio::select! {
            report = supervisor.next_report() => break report,
            () = outputs.take_some(&call.output), if outputs.are_open() => {}
            () = sleep_until(deadline), if forced.is_none() => {
                forced = Some(StepStatus::TimedOut);
                kill(guest, &supervisor).await;
            }
            () = call.cancel.cancelled(), if forced.is_none() => {
                forced = Some(StepStatus::Cancelled);
                kill(guest, &supervisor).await;
            }
        }
    };
    outputs.take_rest(&call.output).await;
    tokio::spawn(outputs.discard());
    tokio::spawn(supervisor.reap());
    Ok(ending(command, report, forced))
}

fn ending(command: &Command, report: Option<Report>, forced: Option<StepStatus>) -> Answer {
    let mut ending = Answer::of(StepStatus::Failed);
    match report {
        Some(Report::Ended(status)) => {
            ending.exit_code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            ending.signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            if ending.exit_code == Some(0) {
                ending.status = StepStatus::Succeeded;
            }
        }
        Some(Report::Refused(stage, errno)) => ending.error = Some(refusal(command, stage, errno)),
        // The supervisor itself was killed, which the tools' user can do where ids are shared.
        None => ending.signal = Some(libc::SIGKILL),
    }
    if let Some(forced) = forced {
        ending.status = forced;
    }
    ending
}

/// Ends a program and all that it started.
pub(super) async fn kill(guest: &Guest, supervisor: &Supervisor) {
    kill_supervised(guest, supervisor.pid()).await;
}

/// Ends the tree under a supervisor without holding up anything else meanwhile.
pub(super) async fn kill_supervised(guest: &Guest, pid: libc::pid_t) {
    let tool_ids = (guest.config.tool_uid, guest.config.tool_gid);
    let (done, wait) = tokio::sync::oneshot::channel();
    let killer = std::thread::Builder::new().name("killer".into()).spawn(move || {
        kill_tree(pid, tool_ids);
        let _ = done.send(());
    });
    match killer {
        Ok(_) => drop(wait.await),
        // The tree may be what has used up all processes. Then everything else waits for its end.
        Err(_) => kill_tree(pid, tool_ids),
    }
}

/// The guest's ends of a program's two outputs; each is gone once it was closed by all writers.
struct Outputs {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    /// What is read goes through here.
    buffer: Vec<u8>,
}

impl Outputs {
    fn new(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(stdout), stderr: Some(stderr), buffer: vec![0; DATA_CHUNK] }
    }

    fn are_open(&self) -> bool {
        self.stdout.is_some() || self.stderr.is_some()
    }

    /// Waits for output, and for room to keep it. May be dropped and called again.
    async fn take_some(&mut self, output: &Output) {
        output.wait_for_room().await;
        let stream = self.ready().await;
        self.take(stream, output);
    }

    /// After the program's end: takes what it had written, and waits a moment for what others
    /// write. Time in which there is no room does not count.
    async fn take_rest(&mut self, output: &Output) {
        let mut left_bytes = self.waiting_bytes() + LISTENING_BYTES;
        let mut left_time = LISTENING;
        while self.are_open() && left_bytes > 0 {
            output.wait_for_room().await;
            let asked = Instant::now();
            let Ok(stream) = timeout(SILENCE.min(left_time), self.ready()).await else { return };
            left_time = left_time.saturating_sub(asked.elapsed());
            left_bytes = left_bytes.saturating_sub(self.take(stream, output));
        }
    }

    /// Reads on so that a background process neither waits nor is killed for writing.
    async fn discard(mut self) {
        while self.are_open() {
            let stream = self.ready().await;
            self.read(stream, DATA_CHUNK);
        }
    }

    async fn ready(&self) -> OutputStream {
        async fn readable(pipe: &Option<Receiver>) {
            match pipe {
                // An error shows again when it is read from, and is handled there.
                Some(pipe) => drop(pipe.readable().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = readable(&self.stdout) => OutputStream::Stdout,
            () = readable(&self.stderr) => OutputStream::Stderr,
        }
    }

    fn take(&mut self, stream: OutputStream, output: &Output) -> usize {
        let count = self.read(stream, output.room().min(DATA_CHUNK));
        output.append(stream, &self.buffer[..count]);
        count
    }

    /// Reads into the buffer, without waiting.
    fn read(&mut self, stream: OutputStream, most: usize) -> usize {
        let pipe = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let Some(open) = pipe.as_ref() else { return 0 };
        match open.try_read(&mut self.buffer[..most]) {
            Ok(0) => *pipe = None,
            Ok(count) => return count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => *pipe = None,
        }
        0
    }

    fn waiting_bytes(&self) -> usize {
        let waiting = |pipe: &Option<Receiver>| {
            let bytes = pipe.as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok());
            bytes.unwrap_or(0) as usize
        };
        waiting(&self.stdout) + waiting(&self.stderr)
    }
}
