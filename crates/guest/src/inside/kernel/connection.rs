//! A running kernel: its process, and the connections that it is spoken to through.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Language;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::message::{Message, Signer};
use super::zmtp::{self, Kind, Receiver, Sender, Stream};
use crate::inside::Guest;
use crate::inside::failure::failure;
use crate::inside::interpreters::{environment, find, private_folder};
use crate::inside::process::{Command, Process, Supervisor};
use crate::inside::supervisor::Report;

/// How long a kernel may take to start, on a machine that has other things to do too.
const STARTING: Duration = Duration::from_secs(60);
/// How often its sockets are tried until they are there.
const BETWEEN_TRIES: Duration = Duration::from_millis(5);
/// How often a kernel is tried whose ports somebody else may have taken meanwhile.
const TRIES_OF_PORTS: u32 = 3;
/// How long an announcement may take before it is asked for again.
const ANNOUNCING: Duration = Duration::from_millis(200);
/// Messages that wait for a call to take them.
const MESSAGES_AHEAD: usize = 64;

pub(super) struct Kernel {
    pub(super) language: Language,
    pub(super) supervisor: libc::pid_t,
    pub(super) signer: Signer,
    pub(super) shell: Sender,
    pub(super) control: Sender,
    /// What comes from the kernel, whichever socket it comes from.
    pub(super) incoming: mpsc::Receiver<(Origin, Message)>,
    /// Whether a call wants what comes. Otherwise it is dropped, so that the kernel never waits.
    pub(super) listening: Arc<AtomicBool>,
    /// How the kernel ended, as `waitpid` tells it.
    pub(super) ended: watch::Receiver<Option<i32>>,
    /// What it says about the language it runs.
    pub(super) language_info: Value,
    /// Whether nothing comes any more for a request once the kernel said that it is idle.
    pub(super) says_idle_last: bool,
    _files: Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Answers to requests.
    Reply,
    /// What everybody who watches the kernel is told.
    Broadcast,
}

/// What the kernels of one language are reached by, each after the other: whoever was connected to one
/// is connected to the next.
pub(super) struct Identity {
    key: String,
    folder: PathBuf,
    place: Place,
}

impl Identity {
    fn new(language: Language) -> io::Result<Self> {
        let key = random_word()?;
        let folder = private_folder().join(format!("kernel-{}", &key[..8]));
        let place = match language {
            Language::Python => Place::Sockets(folder.join("s")),
            // Deno's kernel has no other sockets.
            Language::TypeScript => Place::Ports(free_ports()?),
        };
        Ok(Self { key, folder, place })
    }

    /// As a connection file says it.
    pub(super) fn connection(&self) -> Value {
        self.place.connection(&self.key)
    }
}

/// The folder of a kernel's sockets and connection file; it goes with the kernel.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

/// Where a kernel's sockets are.
enum Place {
    /// Unix sockets with this prefix.
    Sockets(PathBuf),
    /// These ports of the sandbox's loopback.
    Ports([u16; 5]),
}

impl Place {
    fn connection(&self, key: &str) -> Value {
        let (transport, address, ports) = match self {
            Self::Sockets(prefix) => {
                ("ipc", prefix.to_string_lossy().into_owned(), [1, 2, 3, 4, 5])
            }
            Self::Ports(ports) => ("tcp", "127.0.0.1".into(), *ports),
        };
        let [shell, iopub, stdin, control, heartbeat] = ports;
        json!({
            "transport": transport, "ip": address, "key": key, "signature_scheme": "hmac-sha256",
            "shell_port": shell, "iopub_port": iopub, "stdin_port": stdin,
            "control_port": control, "hb_port": heartbeat,
        })
    }

    async fn connect(&self, which: usize) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Sockets(prefix) => {
                let path = format!("{}-{}", prefix.display(), which + 1);
                Box::new(UnixStream::connect(path).await?)
            }
            Self::Ports(ports) => {
                let stream = TcpStream::connect(("127.0.0.1", ports[which])).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }
}

const SHELL: usize = 0;
const IOPUB: usize = 1;
const CONTROL: usize = 3;

/// Why a kernel is not there.
enum NotStarted {
    /// It could not even be tried.
    Refused(ToolError),
    /// It ended, or somebody else answered in its place.
    Ended(io::Error),
    Slow,
}

impl From<ToolError> for NotStarted {
    fn from(error: ToolError) -> Self {
        Self::Refused(error)
    }
}

impl Kernel {
    /// Starts a kernel and returns once it answers. One that does not start takes its identity with it,
    /// since somebody else may have its ports by now; so it is tried again with others.
    pub(super) async fn start(
        guest: &Guest,
        language: Language,
        identity: &mut Option<Identity>,
    ) -> Result<Self, ToolError> {
        let mut tries = match language {
            Language::Python => 1,
            Language::TypeScript => TRIES_OF_PORTS,
        };
        loop {
            tries -= 1;
            let why = match Self::try_start(guest, language, identity).await {
                Ok(kernel) => return Ok(kernel),
                Err(NotStarted::Refused(error)) => return Err(error),
                Err(NotStarted::Ended(_)) if tries > 0 => continue,
                Err(NotStarted::Ended(error)) => error.to_string(),
                Err(NotStarted::Slow) => "it did not answer within a minute".into(),
            };
            return Err(failure("kernel_not_started", format!("the kernel is not there: {why}")));
        }
    }

    async fn try_start(
        guest: &Guest,
        language: Language,
        identity: &mut Option<Identity>,
    ) -> Result<Self, NotStarted> {
        let broken = |error: io::Error| {
            failure("kernel_not_started", format!("the kernel could not be started: {error}"))
        };
        let known = match identity.take() {
            Some(identity) => identity,
            None => Identity::new(language).map_err(broken)?,
        };
        let Identity { key, folder, place } = &known;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(broken)?;
        let files = Files(folder.clone());
        let file = folder.join("connection.json");
        write_private(&file, &known.connection().to_string()).map_err(broken)?;
        let command = command(guest, language, &file)?;
        let process = Process::start(&command, &guest.confinement)?;
        let (stdout, stderr, supervisor) = process.split();
        // A kernel says what it has to say in messages; what is printed past them is of no use.
        tokio::spawn(discard(stdout));
        tokio::spawn(discard(stderr));
        let pid = supervisor.pid();
        let (told, ended) = watch::channel(None);
        tokio::spawn(see_end(supervisor, told));

        // Whoever has a port of its own in the kernel's place may take a connection and say nothing.
        let mut ending = ended.clone();
        let opened = async {
            tokio::select! {
                opened = open(place, key.clone(), ended.clone()) => opened,
                _ = ending.wait_for(Option::is_some) => Err(io::Error::other("it ended at once")),
            }
        };
        let opened = match timeout(STARTING, opened).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(NotStarted::Ended(error)),
            Err(_) => Err(NotStarted::Slow),
        };
        let mut opened = match opened {
            Ok(opened) => opened,
            Err(why) => {
                crate::inside::run_process::kill_supervised(guest, pid).await;
                return Err(why);
            }
        };
        let about = std::mem::take(&mut opened.about);
        *identity = Some(known);
        Ok(Self {
            language,
            supervisor: pid,
            signer: opened.signer,
            shell: opened.shell,
            control: opened.control,
            incoming: opened.incoming,
            listening: opened.listening,
            ended,
            says_idle_last: match language {
                Language::Python => true,
                Language::TypeScript => deno_says_idle_last(&about.version),
            },
            language_info: about.language_info,
            _files: files,
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }
}

struct Opened {
    signer: Signer,
    shell: Sender,
    control: Sender,
    incoming: mpsc::Receiver<(Origin, Message)>,
    listening: Arc<AtomicBool>,
    about: About,
}

/// What a kernel says about itself.
#[derive(Default)]
struct About {
    language_info: Value,
    version: String,
}

/// Connects to a kernel that is starting, and waits until it announces what it does.
async fn open(
    place: &Place,
    key: String,
    ended: watch::Receiver<Option<i32>>,
) -> io::Result<Opened> {
    let (shell, replies) = reach(place, SHELL, Kind::Dealer).await?;
    let (control, _control_replies) = reach(place, CONTROL, Kind::Dealer).await?;
    let (iopub, broadcasts) = reach(place, IOPUB, Kind::Subscriber).await?;
    let (sender, incoming) = mpsc::channel(MESSAGES_AHEAD);
    let listening = Arc::new(AtomicBool::new(true));
    for (origin, receiver) in [(Origin::Reply, replies), (Origin::Broadcast, broadcasts)] {
        let reader = Signer::new(key.clone());
        tokio::spawn(forward(origin, receiver, reader, listening.clone(), sender.clone()));
    }
    // The other directions must stay open as long as these connections are used.
    tokio::spawn(async move {
        let _open = (iopub, _control_replies);
        let mut ended = ended;
        let _ = ended.wait_for(Option::is_some).await;
    });
    let signer = Signer::new(key);
    let about = About::default();
    let mut opened = Opened { signer, shell, control, incoming, listening, about };
    opened.about = announced(&mut opened).await?;
    opened.listening.store(false, Ordering::Relaxed);
    Ok(opened)
}

/// Asks what the kernel is until both the answer and a broadcast came: from then on none is missed.
async fn announced(opened: &mut Opened) -> io::Result<About> {
    let (mut info, mut broadcast) = (None, false);
    loop {
        let (_, request) = opened.signer.request("kernel_info_request", &json!({}));
        opened.shell.send(&request).await?;
        let until = Instant::now() + ANNOUNCING;
        while let Ok(message) = tokio::time::timeout_at(until, opened.incoming.recv()).await {
            match message.ok_or(io::ErrorKind::UnexpectedEof)? {
                (Origin::Reply, message) if message.kind == "kernel_info_reply" => {
                    let version = message.content["implementation_version"].as_str();
                    info = Some(About {
                        language_info: message.content["language_info"].clone(),
                        version: version.unwrap_or_default().into(),
                    });
                }
                (Origin::Broadcast, _) => broadcast = true,
                _ => {}
            }
            if broadcast && let Some(info) = info.take() {
                return Ok(info);
            }
        }
    }
}

async fn reach(place: &Place, which: usize, kind: Kind) -> io::Result<(Sender, Receiver)> {
    loop {
        match place.connect(which).await {
            Ok(stream) => return zmtp::connect(stream, kind).await,
            Err(_) => sleep(BETWEEN_TRIES).await,
        }
    }
}

async fn forward(
    origin: Origin,
    mut from: Receiver,
    reader: Signer,
    listening: Arc<AtomicBool>,
    to: mpsc::Sender<(Origin, Message)>,
) {
    while let Ok(parts) = from.receive().await {
        if listening.load(Ordering::Relaxed)
            && let Some(message) = reader.read(&parts)
            && to.send((origin, message)).await.is_err()
        {
            return;
        }
    }
}

async fn see_end(mut supervisor: Supervisor, told: watch::Sender<Option<i32>>) {
    let status = match supervisor.next_report().await {
        Some(Report::Ended(status)) => status,
        Some(Report::Refused(..)) => 127 << 8,
        None => libc::SIGKILL,
    };
    told.send_replace(Some(status));
    supervisor.reap().await;
}

async fn discard(mut output: tokio::net::unix::pipe::Receiver) {
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
}

fn command(guest: &Guest, language: Language, connection: &Path) -> Result<Command, ToolError> {
    let folder = guest.workspace.path().to_path_buf();
    let mut environment = environment(guest, &folder, &Default::default())?;
    let (program, mut arguments) = match language {
        Language::Python => (find("python3")?, vec!["python3", "-m", "ipykernel_launcher", "-f"]),
        Language::TypeScript => (find("deno")?, vec!["deno", "jupyter", "--kernel", "--conn"]),
    };
    // Both would write beside what the job makes.
    environment.push(("IPYTHONDIR".into(), "/tmp/.ipython".into()));
    environment.push(("MPLCONFIGDIR".into(), "/tmp/.matplotlib".into()));
    let connection = connection.to_string_lossy();
    arguments.push(&connection);
    let arguments = arguments.into_iter().map(Into::into).collect();
    Ok(Command { program, arguments, environment, folder, input: None })
}

/// Deno's kernel says that it is idle before its last results in some versions after 2.8.1.
fn deno_says_idle_last(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().ok());
    let mut number = || numbers.next().flatten();
    match (number(), number(), number()) {
        (Some(major), Some(minor), Some(patch)) => (major, minor, patch) <= (2, 8, 1),
        _ => false,
    }
}

/// Ports that nobody listens on now. Whoever takes one meanwhile is met when the kernel starts.
fn free_ports() -> io::Result<[u16; 5]> {
    let listener = || std::net::TcpListener::bind(("127.0.0.1", 0));
    let listeners = [listener()?, listener()?, listener()?, listener()?, listener()?];
    let mut ports = [0; 5];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

pub(super) fn random_word() -> io::Result<String> {
    let mut bytes = [0u8; 24];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_versions_are_taken_at_their_word() {
        for (version, trusted) in
            [("2.8.1", true), ("2.7.14", true), ("2.8.2", false), ("2.9.0", false), ("", false)]
        {
            assert_eq!(deno_says_idle_last(version), trusted, "{version}");
        }
    }
}
