//! The command lines of shell, Python and TypeScript, and the environment that tools find.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use bellglass_protocol::cage::GUEST_FOLDER;
use bellglass_protocol::id::CallId;
use bellglass_protocol::step::{ToolError, workspace_relative};
use bellglass_protocol::tool::{Code, Shell};

use super::Guest;
use super::failure::failure;
use super::process::Command;

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The kernel takes at most 128 KiB in one argument; longer commands go through a file.
const LONGEST_ARGUMENT: usize = 120 << 10;

/// Runs a source file as if it had been given to `-c`: modules are found in the current folder and
/// nothing of this is left in the module's names. Its own two frames are cut out of tracebacks,
/// which show the source's lines because the source is a file.
const PYTHON_START: &str = r#"(lambda s: (setattr(s, "excepthook", (lambda show: lambda kind, value, trace: (lambda rest: show(kind, value.with_traceback(rest), rest))(trace and trace.tb_next and trace.tb_next.tb_next))(s.excepthook)), exec(compile(open(s.argv[1], "rb").read(), s.argv.pop(1), "exec"), globals())))(__import__("sys"))"#;

/// A command, and a file that it needs while it runs.
pub(super) struct Prepared {
    pub(super) command: Command,
    _source: Option<SourceFile>,
}

pub(super) fn shell(guest: &Guest, id: &CallId, call: &Shell) -> Result<Prepared, ToolError> {
    let program = find("bash")?;
    let folder = match &call.cwd {
        None => guest.workspace.path().into(),
        // A shell can go anywhere, so an absolute path is as good: the sandbox is the boundary.
        Some(cwd) => guest.workspace.path().join(workspace_relative(cwd)),
    };
    let (line, source) = if call.command.len() <= LONGEST_ARGUMENT {
        (call.command.clone(), None)
    } else {
        let source = SourceFile::write(id, "sh", &call.command)?;
        (format!(". {}", source.path.display()), Some(source))
    };
    let arguments = ["bash".into(), "-c".into(), line.into()].into();
    let environment = environment(guest, &folder, &call.env)?;
    Ok(Prepared {
        command: Command { program, arguments, environment, folder, input: None },
        _source: source,
    })
}

pub(super) fn python(guest: &Guest, id: &CallId, call: &Code) -> Result<Prepared, ToolError> {
    let program = find("python3")?;
    let source = SourceFile::write(id, "py", &call.code)?;
    let arguments =
        ["python3".into(), "-c".into(), PYTHON_START.into(), source.path.clone().into()].into();
    let folder = guest.workspace.path().to_path_buf();
    let environment = environment(guest, &folder, &BTreeMap::new())?;
    Ok(Prepared {
        command: Command { program, arguments, environment, folder, input: None },
        _source: Some(source),
    })
}

pub(super) fn typescript(guest: &Guest, call: &Code) -> Result<Prepared, ToolError> {
    let program = find("deno")?;
    // The sandbox is the permission system; Deno's own would only ask questions. Source that comes
    // through standard input is a module of the current folder, so imports are found there.
    let arguments = ["deno", "run", "--quiet", "--allow-all", "--no-prompt", "--ext=ts", "-"];
    let folder = guest.workspace.path().to_path_buf();
    let command = Command {
        program,
        arguments: arguments.map(OsString::from).into(),
        environment: environment(guest, &folder, &BTreeMap::new())?,
        folder,
        input: Some(call.code.clone().into_bytes()),
    };
    Ok(Prepared { command, _source: None })
}

/// A program by its name, as a shell would find it, in the workspace.
pub(super) fn program(
    guest: &Guest,
    command: &[String],
    more: &BTreeMap<String, String>,
) -> Result<Command, ToolError> {
    let shell = find("bash")?;
    let mut arguments: Vec<OsString> =
        ["bash", "-c", "exec \"$@\"", "bash"].map(OsString::from).into();
    arguments.extend(command.iter().map(OsString::from));
    let folder = guest.workspace.path().to_path_buf();
    let environment = environment(guest, &folder, more)?;
    Ok(Command { program: shell, arguments, environment, folder, input: None })
}

/// Everything that a tool process finds in its environment. Nothing comes from outside.
pub(super) fn environment(
    guest: &Guest,
    folder: &Path,
    more: &BTreeMap<String, String>,
) -> Result<Vec<(OsString, OsString)>, ToolError> {
    let mut variables: BTreeMap<OsString, OsString> = [
        ("PATH", SEARCH_PATH),
        ("HOME", guest.config.home.as_str()),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        // Of this locale only the letters differ from the standard one, and to load all of it would
        // cost every program a third of a millisecond.
        ("LC_CTYPE", "C.UTF-8"),
        ("SHELL", "/bin/bash"),
        ("TERM", "dumb"),
        ("NO_COLOR", "1"),
        // Nobody is there to press a key.
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("DEBIAN_FRONTEND", "noninteractive"),
        // Output is watched as it comes.
        ("PYTHONUNBUFFERED", "1"),
        // These would reach for a network that is not there.
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("DENO_NO_UPDATE_CHECK", "1"),
    ]
    .into_iter()
    .map(|(name, value)| (name.into(), value.into()))
    .collect();
    variables.insert("PWD".into(), folder.into());
    if let Some(display) = guest.desktop.name() {
        variables.insert("DISPLAY".into(), display.into());
    }
    for (name, value) in guest.way_out.environment() {
        variables.insert(name.into(), value.into());
    }
    for (name, value) in more {
        check_variable(name, value)?;
        variables.insert(name.into(), value.into());
    }
    Ok(variables.into_iter().collect())
}

pub(super) fn check_variable(name: &str, value: &str) -> Result<(), ToolError> {
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return Err(failure(
            "invalid_environment",
            format!("`{name}` cannot be an environment variable; use letters, digits and `_`"),
        ));
    }
    Ok(())
}

pub(super) fn find(program: &str) -> Result<PathBuf, ToolError> {
    SEARCH_PATH
        .split(':')
        .map(|folder| Path::new(folder).join(program))
        .find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            failure(
                "interpreter_missing",
                format!("`{program}` is not in this sandbox's image; use an image that has it"),
            )
        })
}

/// A source text in a file outside of the workspace, deleted with the call.
struct SourceFile {
    path: PathBuf,
}

impl SourceFile {
    fn write(id: &CallId, extension: &str, text: &str) -> Result<Self, ToolError> {
        Self::try_write(id, extension, text).map_err(|error| {
            failure("cannot_save_source", format!("the source cannot be put into /tmp: {error}"))
        })
    }

    fn try_write(id: &CallId, extension: &str, text: &str) -> io::Result<Self> {
        let folder = private_folder();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let name: String =
            id.as_str().chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
        let path = folder.join(format!("{name}.{extension}"));
        // A tool may have put something there, such as a symlink, which must not be followed.
        let _ = fs::remove_file(&path);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        Ok(Self { path })
    }
}

impl Drop for SourceFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // It stays where another call uses it.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// A sandbox has one guest; a process that runs tests has many, whose calls have the same names.
pub(super) fn private_folder() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    match std::process::id() {
        1 => PathBuf::from(GUEST_FOLDER),
        pid => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            std::env::temp_dir().join(format!(".bellglass-{pid}-{number}"))
        }
    }
}
