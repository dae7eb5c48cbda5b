//! A server under test: started, killed, started again; and what to ask it.

pub(crate) mod archive;
pub(crate) mod client;
pub(crate) mod hands;
pub(crate) mod host;
pub(crate) mod https;
pub(crate) mod plain_user;
pub(crate) mod screen;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use client::Client;
use plain_user::PlainUser;

/// A `bellglass serve` with a data folder of its own.
pub(crate) struct TestServer {
    options: Options,
    process: Option<Child>,
    client: Client,
    folder: TempDir,
}

/// How a server differs from the usual one.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) slots: Option<usize>,
    /// The content of `bellglass.toml`.
    pub(crate) config: &'static str,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Runs the server as an ordinary user.
    pub(crate) user: Option<PlainUser>,
}

/// Where the backends keep their sandboxes, in a data folder.
pub(crate) const SANDBOX_FOLDERS: [&str; 2] = ["sandboxes", "gvisor-sandboxes"];

/// A server's requests are made through it.
impl std::ops::Deref for TestServer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with_slots(slots: usize) -> Self {
        Self::with(Options { slots: Some(slots), ..Options::default() })
    }

    pub(crate) fn with(options: Options) -> Self {
        let folder = tempfile::Builder::new().prefix("bellglass-test-").tempdir().unwrap();
        fs::write(folder.path().join("bellglass.toml"), options.config).unwrap();
        if let Some(user) = options.user {
            user.move_in(folder.path());
        }
        let client = Client::new(String::new());
        let mut server = Self { options, process: None, client, folder };
        server.start_again();
        server
    }

    /// Starts a process on the same data folder, with the same environment.
    pub(crate) fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        let log = fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let mut child = self.command().stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.process = Some(child);
        let announced: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            panic!("the server did not start; it said {line:?}, and in its log {log}")
        });
        self.client = Client::new(announced["listening"].as_str().unwrap().to_owned());
    }

    /// The command that starts this server.
    pub(crate) fn command(&self) -> Command {
        let mut command = bellglass(self.folder.path());
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"]).arg(self.data());
        if let Some(slots) = self.options.slots {
            command.args(["--slots", &slots.to_string()]);
        }
        command.env("BELLGLASS_WARM", crate::WARM);
        command.envs(self.options.environment.iter().cloned());
        match self.options.user {
            Some(user) => user.command(self.folder.path(), &command, &images()),
            None => command,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().expect("the server runs").id() as i32
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Ends the process as an operator would.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the server runs");
        signal(process.id() as i32, Signal::TERM);
        process.wait().unwrap()
    }

    /// Lies outside of the data folder and is the current folder of commands.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What the server wrote to its own log so far.
    pub(crate) fn wrote(&self) -> String {
        fs::read_to_string(self.log()).unwrap()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// The first process of a job's sandbox, by its id on the host.
    pub(crate) fn guest_pid(&self, job: &str) -> i32 {
        self.recorded_pid(job).expect("the sandbox is recorded")
    }

    fn recorded_pid(&self, sandbox: &str) -> Option<i32> {
        Some(self.record(sandbox)?["pid"].as_i64()? as i32)
    }

    /// What is written down about a sandbox, whichever backend made it.
    fn record(&self, sandbox: &str) -> Option<Value> {
        let records = SANDBOX_FOLDERS.map(|folder| self.data().join(folder).join(sandbox));
        let record =
            records.iter().find_map(|folder| fs::read(folder.join("sandbox.json")).ok())?;
        serde_json::from_slice(&record).ok()
    }

    /// The control groups of a job's sandbox, whatever they are called.
    pub(crate) fn recorded_groups(&self, job: &str) -> Vec<PathBuf> {
        let record = self.record(job).expect("the sandbox is recorded");
        serde_json::from_value(record["groups"].clone()).unwrap()
    }

    /// The names of all sandboxes that have a folder.
    pub(crate) fn sandboxes(&self) -> Vec<String> {
        let folders = SANDBOX_FOLDERS.map(|folder| fs::read_dir(self.data().join(folder)));
        let entries = folders.into_iter().flatten().flatten().flatten();
        entries.map(|folder| folder.file_name().into_string().unwrap()).collect()
    }
}

impl Drop for TestServer {
    /// Leaves nothing behind, also where a test failed in the middle of a job.
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let folders = SANDBOX_FOLDERS.map(|folder| fs::read_dir(self.data().join(folder)));
        for sandbox in folders.into_iter().flatten().flatten().flatten() {
            let name = sandbox.file_name().into_string().unwrap();
            // One that was made ahead of its job has another name.
            if let Some(pid) = self.recorded_pid(&name) {
                host::kill_and_wait(pid);
            }
            // By its name, since the server may have died before it recorded the process.
            host::guests_of(&name).into_iter().for_each(host::kill_and_wait);
            host::control_groups_of(&name).iter().for_each(|group| drop(fs::remove_dir(group)));
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            eprintln!("--- what the server wrote ---\n{log}---");
        }
    }
}

/// A command of the program under test that knows nothing of this user's own set-up but the images.
pub(crate) fn bellglass(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellglass"));
    command.current_dir(folder);
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("BELLGLASS_")) {
        command.env_remove(name);
    }
    for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", folder).env("BELLGLASS_IMAGES", images());
    command
}

/// The folder of the images. Without an image no test here can run.
pub(crate) fn images() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let data_home = || {
        let under_home = || variable("HOME").map(|home| home.join(".local/share"));
        variable("XDG_DATA_HOME").or_else(under_home).expect("HOME is set")
    };
    let folder =
        variable("BELLGLASS_IMAGES").unwrap_or_else(|| data_home().join("bellglass/images"));
    assert!(
        folder.join("base/manifest.json").is_file(),
        "there is no sandbox image in {}: make it with `make image` or `bellglass image build`",
        folder.display()
    );
    folder
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A step that runs a command line.
pub(crate) fn shell(command: &str) -> Value {
    json!({ "tool": "shell", "command": command })
}

/// A step that runs Python code as a program of its own.
pub(crate) fn python(code: &str) -> Value {
    json!({ "tool": "python", "fresh": true, "code": code })
}

/// A step that lasts until a file named `go` is put into the workspace.
pub(crate) fn wait_for_go() -> Value {
    shell("echo waiting; until [ -e go ]; do sleep 0.02; done")
}

/// The job's `n`th step, counted from 1.
pub(crate) fn step(job: &Value, n: usize) -> &Value {
    let step = &job["steps"][n - 1];
    assert_eq!(step["n"], n, "step {n} of {job:#}");
    step
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no text `{field}` in {value:#}"))
}
