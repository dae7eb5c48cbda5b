//! Others that do the same: commands that are started for each run, and programs that stay and speak.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use bellglass_sandbox::client::{ServiceInput, ServiceOutput};
use serde::Deserialize;
use serde_json::Value;

use crate::subject::{Failure, Hands};

#[derive(Clone, Deserialize)]
pub(crate) struct Command {
    pub(crate) name: String,
    command: Vec<String>,
    /// Where it runs; here unless it says.
    folder: Option<std::path::PathBuf>,
    #[serde(default)]
    environment: std::collections::BTreeMap<String, String>,
}

impl Command {
    /// The time from the call to its end, and what it wrote.
    pub(crate) fn run(&self) -> Result<(Duration, Vec<u8>), Failure> {
        let mut command = self.command()?;
        let began = Instant::now();
        let done = command.stdin(Stdio::null()).output()?;
        let time = began.elapsed();
        if !done.status.success() {
            let words = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{} ended with {}: {words}", self.name, done.status).into());
        }
        Ok((time, done.stdout))
    }

    fn command(&self) -> Result<std::process::Command, Failure> {
        let (program, arguments) = self.command.split_first().ok_or("a command without words")?;
        let mut command = std::process::Command::new(program);
        command.args(arguments).envs(&self.environment);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        Ok(command)
    }
}

/// A program that does a thing for each line and answers by a line: an object of milliseconds, or of
/// an `error`. It says `{}` when it is ready.
pub(crate) struct Speaker {
    pub(crate) name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Speaker {
    pub(crate) fn start(of: &Command) -> Result<Self, Failure> {
        let mut command = of.command()?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut speaker = Self { name: of.name.clone(), child, input, output };
        speaker.answer()?;
        Ok(speaker)
    }

    pub(crate) fn ask(&mut self, wish: &str) -> Result<Value, Failure> {
        writeln!(self.input, "{wish}")?;
        self.input.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        understood(&self.name, &line)
    }

    /// It ends when its input does.
    pub(crate) fn end(self) -> Result<(), Failure> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait()?;
        Ok(())
    }
}

/// The same in our own sandbox, where it finds the same programs as our tools do.
pub(crate) struct InsideSpeaker {
    name: String,
    input: ServiceInput,
    output: ServiceOutput,
    heard: Vec<u8>,
}

impl InsideSpeaker {
    pub(crate) async fn start(
        hands: &Hands,
        name: &str,
        command: &[String],
    ) -> Result<Self, Failure> {
        let service = hands.sandbox.guest().start_service(command, &Default::default()).await?;
        let (input, output) = (service.input, service.output);
        let mut speaker = Self { name: name.into(), input, output, heard: Vec::new() };
        speaker.answer().await?;
        Ok(speaker)
    }

    pub(crate) async fn ask(&mut self, wish: &str) -> Result<Value, Failure> {
        self.input.write(format!("{wish}\n").as_bytes()).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Value, Failure> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return understood(&self.name, &String::from_utf8_lossy(&line));
            }
            match self.output.read().await? {
                Some((bellglass_protocol::step::OutputStream::Stdout, piece)) => {
                    self.heard.extend_from_slice(&piece);
                }
                // What it grumbles about is of use only if it does not answer.
                Some((_, piece)) => eprint!("{}", String::from_utf8_lossy(&piece)),
                None => return Err(format!("{} ended", self.name).into()),
            }
        }
    }
}

fn understood(name: &str, line: &str) -> Result<Value, Failure> {
    let answer: Value =
        serde_json::from_str(line).map_err(|error| format!("{name} said {line:?}: {error}"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(format!("{name}: {error}").into()),
        None => Ok(answer),
    }
}

/// A figure of an answer, in milliseconds.
pub(crate) fn figure(answer: &Value, field: &str) -> Result<f64, Failure> {
    answer[field].as_f64().ok_or_else(|| format!("no `{field}` in {answer}").into())
}
