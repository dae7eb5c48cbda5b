//! Starts a program under a supervisor and holds the guest's ends of its pipes.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use bellglass_protocol::step::ToolError;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::confine::{Confinement, Stage, as_the_guest};
use super::failure::failure;
use super::reaper;
use super::supervisor::{self, Input, Named, Plan, Program, REPORT_BYTES, Report};

/// A program to run, with all that it may know.
pub(super) struct Command {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) folder: PathBuf,
    /// What it reads from standard input; otherwise it finds the end at once.
    pub(super) input: Option<Vec<u8>>,
}

/// A program that runs, or has run.
pub(super) struct Process {
    supervisor: Supervisor,
    pub(super) stdout: Receiver,
    pub(super) stderr: Receiver,
}

impl Process {
    pub(super) fn start(command: &Command, confinement: &Confinement) -> Result<Self, ToolError> {
        let stdin = match &command.input {
            Some(bytes) => input_with(bytes),
            None => nothing(),
        };
        let stdin = stdin
            .map_err(|error| failure("cannot_start", format!("no input can be made: {error}")))?;
        Self::start_with(stdin, command, confinement)
    }

    /// Starts a program that reads from this descriptor.
    pub(super) fn start_with(
        stdin: OwnedFd,
        command: &Command,
        confinement: &Confinement,
    ) -> Result<Self, ToolError> {
        let texts = Texts::of(command)?;
        Self::fork(&texts, &stdin, confinement)
            .map_err(|error| failure("cannot_start", format!("no process can be made: {error}")))
    }

    /// Starts a program whose standard input and outputs are one terminal.
    pub(super) fn start_on_terminal(
        command: &Command,
        confinement: &Confinement,
        terminal: &OwnedFd,
    ) -> Result<Supervisor, ToolError> {
        let texts = Texts::of(command)?;
        let stdio = [terminal.as_raw_fd(); 3];
        start_supervisor(&texts, stdio, Input::Terminal, confinement)
            .map_err(|error| failure("cannot_start", format!("no process can be made: {error}")))
    }

    fn fork(texts: &Texts, stdin: &OwnedFd, confinement: &Confinement) -> io::Result<Self> {
        let (outputs, theirs) = Outputs::make()?;
        let stdio = [stdin.as_raw_fd(), theirs.stdout.as_raw_fd(), theirs.stderr.as_raw_fd()];
        let supervisor = start_supervisor(texts, stdio, Input::Plain, confinement)?;
        Self::of(supervisor, outputs)
    }

    pub(super) fn of(supervisor: Supervisor, outputs: Outputs) -> io::Result<Self> {
        let stdout = Receiver::from_owned_fd(outputs.stdout)?;
        let stderr = Receiver::from_owned_fd(outputs.stderr)?;
        Ok(Self { supervisor, stdout, stderr })
    }

    /// Takes the process apart: its two outputs, and who reports its end.
    pub(super) fn split(self) -> (Receiver, Receiver, Supervisor) {
        (self.stdout, self.stderr, self.supervisor)
    }
}

/// The same ends of a program's two outputs.
pub(super) struct Outputs {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Outputs {
    /// The guest's ends and the program's.
    pub(super) fn make() -> io::Result<(Self, Self)> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let ((stdout, their_stdout), (stderr, their_stderr)) = (pipe()?, pipe()?);
        let theirs = Self { stdout: their_stdout, stderr: their_stderr };
        Ok((Self { stdout, stderr }, theirs))
    }
}

/// A command as the kernel takes it.
pub(super) struct Texts {
    pub(super) program: CString,
    pub(super) arguments: Vec<CString>,
    pub(super) environment: Vec<CString>,
    pub(super) folder: CString,
}

impl Texts {
    pub(super) fn of(command: &Command) -> Result<Self, ToolError> {
        let variables: Vec<OsString> = command.environment.iter().map(variable).collect();
        Ok(Self {
            program: c_string(command.program.as_os_str())?,
            arguments: c_strings(command.arguments.iter().map(OsString::as_os_str))?,
            environment: c_strings(variables.iter().map(OsString::as_os_str))?,
            folder: c_string(command.folder.as_os_str())?,
        })
    }
}

/// `stdio` must be open until this returns.
fn start_supervisor(
    texts: &Texts,
    stdio: [RawFd; 3],
    input: Input,
    confinement: &Confinement,
) -> io::Result<Supervisor> {
    let argument_list = pointers(&texts.arguments);
    let environment_list = pointers(&texts.environment);
    let named = Named {
        program: texts.program.as_ptr(),
        arguments: argument_list.as_ptr(),
        environment: environment_list.as_ptr(),
        folder: texts.folder.as_ptr(),
    };
    // SAFETY: the strings, lists and descriptors above live until after the call.
    unsafe { Supervised::start(Program::Known(named), stdio, input, confinement) }?.watched()
}

/// A supervisor whose reports nobody has listened to yet.
pub(super) struct Supervised {
    pub(super) pid: Pid,
    pub(super) reports: OwnedFd,
}

impl Supervised {
    /// # Safety
    /// What names the program must be valid, and the descriptors open, until this returns.
    pub(super) unsafe fn start(
        program: Program<'_>,
        stdio: [RawFd; 3],
        input: Input,
        confinement: &Confinement,
    ) -> io::Result<Self> {
        let (reports, child_reports) = as_the_guest(|| Ok(pipe_with(PipeFlags::CLOEXEC)?))?;
        let plan = Plan { program, stdio, input, reports: child_reports.as_raw_fd(), confinement };
        // SAFETY: as the caller promises, and the pipe lives until after the call.
        let pid = unsafe { supervisor::start(&plan) }.map_err(io::Error::from_raw_os_error)?;
        let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(Self { pid, reports })
    }

    pub(super) fn watched(self) -> io::Result<Supervisor> {
        let reports = Receiver::from_owned_fd(self.reports)?;
        Ok(Supervisor { pid: self.pid, reports, partial: Vec::new() })
    }
}

/// The guest's view of a supervisor.
pub(super) struct Supervisor {
    pid: Pid,
    reports: Receiver,
    /// Bytes of a report that has not come whole yet.
    partial: Vec<u8>,
}

impl Supervisor {
    pub(super) fn pid(&self) -> libc::pid_t {
        self.pid.as_raw_nonzero().get()
    }

    /// The next report; nothing once the whole tree is gone. May be dropped and called again.
    pub(super) async fn next_report(&mut self) -> Option<Report> {
        loop {
            if let Some(bytes) = self.partial.first_chunk::<REPORT_BYTES>() {
                let report = Report::decode(*bytes);
                self.partial.drain(..REPORT_BYTES);
                return report;
            }
            match self.reports.read_buf(&mut self.partial).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Waits until the last process of the tree is gone, and takes the supervisor away.
    pub(super) async fn reap(mut self) {
        while self.next_report().await.is_some() {}
        reaper::reap_supervisor(self.pid).await;
    }
}

/// Why a program could not be started, in words for whoever asked for it.
pub(super) fn refusal(command: &Command, stage: Stage, errno: i32) -> ToolError {
    let reason = io::Error::from_raw_os_error(errno);
    let program = command.program.display();
    match (stage, errno) {
        (Stage::Folder, libc::ENOENT | libc::ENOTDIR) => failure(
            "folder_not_found",
            format!(
                "`{}` is not a folder; name one that exists in `cwd`",
                command.folder.display()
            ),
        ),
        (Stage::Folder, _) => {
            failure("folder_not_usable", format!("`{}`: {reason}", command.folder.display()))
        }
        (Stage::Program, libc::E2BIG) => failure(
            "arguments_too_large",
            "the command or its environment is too large; put the data into a file",
        ),
        (Stage::Program, libc::ENOENT) => failure(
            "interpreter_missing",
            format!("`{program}` is not in this sandbox's image; use an image that has it"),
        ),
        (Stage::Program | Stage::Fork, libc::EAGAIN) => failure(
            "too_many_processes",
            "the sandbox has as many processes as it may; end some of them first",
        ),
        _ => {
            failure("cannot_start", format!("`{program}` cannot be started ({stage:?}): {reason}"))
        }
    }
}

/// Input that is over at once.
pub(super) fn nothing() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, "/dev/null", flags, Mode::empty())?)
}

/// A file in memory: unlike a pipe, it needs nobody to feed it.
fn input_with(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

fn variable((name, value): &(OsString, OsString)) -> OsString {
    let mut text = name.clone();
    text.push("=");
    text.push(value);
    text
}

fn c_strings<'a>(texts: impl Iterator<Item = &'a OsStr>) -> Result<Vec<CString>, ToolError> {
    texts.map(c_string).collect()
}

fn c_string(text: &OsStr) -> Result<CString, ToolError> {
    CString::new(text.as_bytes()).map_err(|_| {
        failure("invalid_argument", "a NUL character cannot be passed to a program; remove it")
    })
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}
