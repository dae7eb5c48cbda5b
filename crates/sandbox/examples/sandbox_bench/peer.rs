//! Other ways to run a command in a sandbox: a command line of the host.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::subject::Failure;

#[derive(Clone, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// `{n}` becomes a number that no other run has.
    command: Vec<String>,
    /// Whether it takes part where many start at the same moment.
    #[serde(default)]
    pub(crate) in_bursts: bool,
}

impl Peer {
    /// The time from the call to the first bytes of its output. Its process is gone afterwards.
    pub(crate) fn until_output(&self, number: usize) -> Result<Duration, Failure> {
        let began = Instant::now();
        let mut child = self.command(number).stdout(Stdio::piped()).spawn()?;
        let mut said = Vec::new();
        let mut piece = [0; 64];
        let mut stdout = child.stdout.take().expect("it was asked for");
        let count = stdout.read(&mut piece)?;
        let time = began.elapsed();
        said.extend_from_slice(&piece[..count]);
        stdout.read_to_end(&mut said)?;
        let status = child.wait()?;
        if said != b"hi\n" || !status.success() {
            let said = String::from_utf8_lossy(&said);
            return Err(format!("{} ended with {status} and said {said:?}", self.name).into());
        }
        Ok(time)
    }

    /// The time from the call to its end.
    pub(crate) fn until_end(&self, number: usize) -> Result<Duration, Failure> {
        let began = Instant::now();
        let status = self.command(number).stdout(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{} ended with {status}", self.name).into());
        }
        Ok(began.elapsed())
    }

    fn command(&self, number: usize) -> Command {
        let mut words = self.command.iter().map(|word| word.replace("{n}", &number.to_string()));
        let mut command = Command::new(words.next().unwrap_or_default());
        // What goes wrong shows in the output that is missing; some of them chatter.
        command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}
