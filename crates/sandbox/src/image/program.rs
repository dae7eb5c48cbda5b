//! Runs one program of the host to its end: every line it prints is seen as it comes, and no
//! process of it outlives whoever waits for it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

/// Enough for an error message; a build prints thousands of lines.
const KEPT_LINES: usize = 80;

/// How a program ended, and what it printed last.
#[derive(Debug)]
pub(super) struct Outcome {
    pub status: ExitStatus,
    pub last_lines: Vec<String>,
}

/// A command of the host that dies with the thread that starts it, so that even a `kill -9` of
/// this process leaves none behind. It is also the leader of its own process group.
pub(super) fn host_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    // Messages are read by this program, which knows the English ones.
    command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
    command.process_group(0);
    command
}

/// Runs a command to its end. Dropping the future kills the command's whole process group.
pub(super) async fn run(mut command: Command, mut seen: impl FnMut(&str)) -> io::Result<Outcome> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut group = ProcessGroup::led_by(child.id());
    let mut last_lines = VecDeque::new();
    {
        let mut keep = |line: String| {
            seen(&line);
            if last_lines.len() == KEPT_LINES {
                last_lines.pop_front();
            }
            last_lines.push_back(line);
        };
        let mut stdout = Lines::of(child.stdout.take());
        let mut stderr = Lines::of(child.stderr.take());
        loop {
            tokio::select! {
                Some(line) = stdout.next() => keep(line?),
                Some(line) = stderr.next() => keep(line?),
                else => break,
            }
        }
    }
    let status = child.wait().await?;
    group.0 = None;
    Ok(Outcome { status, last_lines: last_lines.into() })
}

/// Lines of a stream that need not be UTF-8. Reading one is safe to cancel.
struct Lines<R> {
    reader: Option<BufReader<R>>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn of(stream: Option<R>) -> Self {
        Self { reader: stream.map(BufReader::new), line: Vec::new() }
    }

    /// The next line, or none at the end.
    async fn next(&mut self) -> Option<io::Result<String>> {
        let reader = self.reader.as_mut()?;
        // What a cancelled read has got so far stays in `line`.
        match reader.read_until(b'\n', &mut self.line).await {
            Ok(_) if self.line.is_empty() => {
                self.reader = None;
                None
            }
            Ok(_) => {
                let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
                self.line.clear();
                Some(Ok(line))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// Kills the group when dropped while the program still runs.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn led_by(leader: Option<u32>) -> Self {
        Self(leader.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // It may have ended in this very moment, which is just as well.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn lines_of_both_streams_are_seen_and_the_last_ones_kept() {
        let mut command = host_command("sh");
        command.args(["-c", "seq 100; echo problem >&2; exit 3"]);
        let mut seen = Vec::new();
        let outcome = run(command, |line| seen.push(line.to_owned())).await.unwrap();
        assert_eq!(outcome.status.code(), Some(3));
        assert_eq!((seen.len(), outcome.last_lines.len()), (101, KEPT_LINES));
        assert!(seen.iter().any(|line| line == "problem"));
    }

    #[tokio::test]
    async fn dropping_the_future_kills_grandchildren_too() {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        let mut command = host_command("sh");
        command
            .arg("-c")
            .arg("sh -c 'echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 600' \"$0\"; true");
        command.arg(&pid_file);
        let running = run(command, |_| {});
        let started = async {
            loop {
                if let Ok(text) = std::fs::read_to_string(&pid_file) {
                    return text.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let pid = tokio::select! {
            outcome = running => panic!("ended by itself: {outcome:?}"),
            pid = started => pid,
        };
        let gone = async {
            while std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    }
}
