//! A guest in this process with a workspace of its own, and a small worker that talks to it over
//! the real wire.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bellglass_guest::inside::Placer;
use bellglass_protocol::id::CallId;
use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::mux::{End, Mux, MuxStream, multiplex};
use bellglass_protocol::step::{OutputStream, StepStatus, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::{
    CallResult, Frame, FrameCodec, PROTOCOL_VERSION, Receipt, Reply, Request,
};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::codec::Framed;

/// Long enough for a loaded machine; a test that needs it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct TestGuest {
    folder: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for TestGuest {
    /// Ends the guest, which then clears away what it keeps elsewhere, and all that its calls have left
    /// running: nobody else would, since it is no first process here.
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        let home = format!("HOME={}", self.folder.path().display());
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE && kill_all_with(home.as_bytes()) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Kills all processes that have this variable, and says how many there were.
fn kill_all_with(variable: &[u8]) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let has_it = environment.split(|byte| *byte == 0).any(|one| one == variable);
        if let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|_| has_it) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            killed += 1;
        }
    }
    killed
}

/// Ends a test that would show nothing without root; `make test` leaves it out for others.
#[track_caller]
pub fn assert_root(only_root: &str) {
    assert!(rustix::process::geteuid().is_root(), "only root {only_root}");
}

pub async fn connect(socket: &Path) -> Client {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mux, _, driver) = multiplex(stream, End::Worker);
    let driver = tokio::spawn(async move { drop(driver.await) });
    Client { mux, driver }
}

/// A guest that greets has looked around: it makes a file in the workspace for that, and could not take
/// it away again if a test closed the workspace meanwhile.
fn until_it_has_looked_around(socket: &Path) {
    let socket = socket.to_path_buf();
    let greeting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let request = Request::Hello { protocol: PROTOCOL_VERSION };
            connect(&socket).await.reply(&request).await
        })
    });
    let reply = greeting.join().unwrap();
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
}

impl TestGuest {
    pub fn start() -> Self {
        Self::start_with(|| {})
    }

    /// Runs the guest on a thread of its own, as in a sandbox; `first` runs on it before all else.
    pub fn start_with(first: impl FnOnce() + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        let socket = folder.path().join("wire");
        let config = GuestConfig {
            workspace: folder.path().join("workspace").to_str().unwrap().into(),
            tool_uid: rustix::process::geteuid().as_raw(),
            tool_gid: rustix::process::getegid().as_raw(),
            home: folder.path().to_str().unwrap().into(),
            open_files: 512,
            processes: None,
            nested_sandboxing: false,
            memory: None,
            processors: None,
            orphaned_after_seconds: None,
        };
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            first();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                tokio::select! {
                    served = bellglass_guest::inside::serve(listener, config, Placer::start().unwrap()) => served.unwrap(),
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        until_it_has_looked_around(&socket);
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// The folder around the workspace, which tools must not reach.
    pub fn outside(&self) -> &Path {
        self.folder.path()
    }

    pub async fn connect(&self) -> Client {
        connect(&self.folder.path().join("wire")).await
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.workspace().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.workspace().join(path)).unwrap()
    }
}

pub struct Client {
    mux: Mux,
    driver: tokio::task::JoinHandle<()>,
}

pub struct Finished {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub result: CallResult,
}

impl Finished {
    pub fn stdout(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn text(&self) -> &str {
        match &self.result.text {
            Some(text) => text,
            None => panic!("no text but {:?}", self.result),
        }
    }

    pub fn code(&self) -> &str {
        match &self.result.error {
            Some(error) => &error.code,
            None => panic!("no error but {:?}", self.result),
        }
    }
}

impl Client {
    /// Breaks the connection as a worker that dies does.
    pub fn die(self) {
        self.driver.abort();
    }

    pub async fn open(&self) -> Exchange {
        let stream = tokio::time::timeout(PATIENCE, self.mux.open()).await.unwrap().unwrap();
        Exchange { wire: Framed::new(stream, FrameCodec::for_worker()) }
    }

    pub async fn ask(&self, request: &Request) -> Exchange {
        let mut exchange = self.open().await;
        exchange.send(request).await;
        exchange
    }

    /// Asks for something that is answered by one reply.
    pub async fn reply(&self, request: &Request) -> Reply {
        self.ask(request).await.reply().await
    }

    pub async fn begin(&self, step: u32, call: Value, timeout: Duration) -> Exchange {
        self.ask(&call_request(step, call, timeout, 0)).await
    }

    pub async fn call(&self, step: u32, call: Value) -> Finished {
        self.begin(step, call, PATIENCE).await.finish().await
    }

    pub async fn shell(&self, step: u32, command: &str) -> Finished {
        self.call(step, json!({"tool": "shell", "command": command})).await
    }
}

pub fn call_request(step: u32, call: Value, timeout: Duration, received: u64) -> Request {
    let call: ToolCall = serde_json::from_value(call).unwrap();
    let timeout_ms = timeout.as_millis() as u64;
    Request::Call { id: CallId::of_step(step), call, timeout_ms, received }
}

pub struct Exchange {
    pub wire: Framed<MuxStream, FrameCodec>,
}

impl Exchange {
    pub async fn send<T: serde::Serialize>(&mut self, message: &T) {
        self.wire.send(Frame::message(message)).await.unwrap();
    }

    pub async fn data(&mut self, bytes: &[u8]) {
        self.wire.send(Frame::Data(bytes.to_vec().into())).await.unwrap();
    }

    pub async fn confirm(&mut self, bytes: u64) {
        self.send(&Receipt::Received { bytes }).await;
    }

    /// The next frame; nothing at the end of the exchange.
    pub async fn frame(&mut self) -> Option<Frame> {
        let frame = tokio::time::timeout(PATIENCE, self.wire.next()).await;
        frame.expect("the guest says nothing").map(Result::unwrap)
    }

    pub async fn reply(&mut self) -> Reply {
        match self.frame().await {
            Some(Frame::Message(text)) => serde_json::from_slice(&text).unwrap(),
            other => panic!("no reply but {other:?}"),
        }
    }

    pub async fn error(&mut self) -> ToolError {
        match self.reply().await {
            Reply::Error { error } => error,
            other => panic!("no error but {other:?}"),
        }
    }

    /// Takes output until so many bytes came, confirming nothing.
    pub async fn take_output(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < bytes {
            match self.frame().await {
                Some(Frame::Output(_, piece)) => taken.extend_from_slice(&piece),
                other => panic!("no output but {other:?}"),
            }
        }
        taken
    }

    /// Takes and confirms output until the call is done.
    pub async fn finish(self) -> Finished {
        self.finish_from(0).await
    }

    pub async fn finish_from(mut self, mut received: u64) -> Finished {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.frame().await.expect("the exchange ended early") {
                Frame::Output(stream, piece) => {
                    received += piece.len() as u64;
                    match stream {
                        OutputStream::Stdout => stdout.extend_from_slice(&piece),
                        OutputStream::Stderr => stderr.extend_from_slice(&piece),
                    }
                    self.confirm(received).await;
                }
                Frame::Message(text) => match serde_json::from_slice(&text).unwrap() {
                    Reply::Done { result } => return Finished { stdout, stderr, result },
                    other => panic!("no result but {other:?}"),
                },
                Frame::Data(_) => panic!("data in a call"),
            }
        }
    }
}

pub fn succeeded(finished: &Finished) {
    assert_eq!(finished.result.status, StepStatus::Succeeded, "{:?}", finished.result);
}

/// Waits until a fact about the outside world holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process runs that has this word in its command line.
pub fn runs(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.windows(word.len()).any(|window| window == word.as_bytes())
    })
}

/// Runs calls one after the other, each with a number of its own.
pub struct Tools {
    worker: Client,
    step: std::cell::Cell<u32>,
}

impl Tools {
    pub async fn of(guest: &TestGuest) -> Self {
        Self { worker: guest.connect().await, step: 0.into() }
    }

    pub async fn run(&self, call: Value) -> Finished {
        self.step.set(self.step.get() + 1);
        self.worker.call(self.step.get(), call).await
    }

    /// Begins a call that has so many seconds.
    pub async fn begin(&self, call: Value, seconds: f64) -> Exchange {
        self.step.set(self.step.get() + 1);
        self.worker.begin(self.step.get(), call, Duration::from_secs_f64(seconds)).await
    }

    pub async fn text(&self, call: Value) -> String {
        let done = self.run(call).await;
        succeeded(&done);
        done.text().to_owned()
    }

    pub async fn code(&self, call: Value) -> String {
        self.run(call).await.code().to_owned()
    }
}
