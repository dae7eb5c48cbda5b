//! A backend over a folder of its own, sandboxes of it, and what the host shows of them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Limits;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::report::Start;
use bellglass_protocol::step::OutputStream;
use bellglass_protocol::wire::CallResult;
use bellglass_sandbox::client::OutputSink;
use bellglass_sandbox::pool::PoolSize;
use bellglass_sandbox::trial::try_out;
use bellglass_sandbox::{
    Backend, GvisorBackend, NamespaceBackend, Sandbox, SandboxName, SandboxOrder, WarmPool,
};
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Fixture {
    pub(crate) backend: Arc<dyn Backend>,
    make: fn(&Path) -> Arc<dyn Backend>,
    /// Keeps a sandbox ready, where that is what is tried.
    pool: Option<Arc<WarmPool>>,
    folder: TempDir,
}

pub(crate) async fn namespace() -> Option<Fixture> {
    Some(Fixture::new(|folder| Arc::new(NamespaceBackend::new(folder.to_path_buf()).unwrap())))
}

/// Sandboxes of the namespace backend that are there before they are asked for.
pub(crate) async fn made_ahead() -> Option<Fixture> {
    let mut fixture = namespace().await?;
    let template = Box::new(|| Some(order()));
    let size = PoolSize { min: 1, max: 1 };
    let pool = Arc::new(WarmPool::open(fixture.backend.clone(), size, template));
    pool.sweep(&HashSet::new()).await.unwrap();
    fixture.backend = pool.clone();
    fixture.pool = Some(pool);
    Some(fixture)
}

pub(crate) async fn gvisor() -> Option<Fixture> {
    let fixture = Fixture::new(|folder| {
        Arc::new(GvisorBackend::new(folder.to_path_buf(), &runsc()).unwrap())
    });
    if let Err(error) = try_out(fixture.backend.clone()).await {
        // Only a host that has no gVisor at all may go without; `scripts/setup.sh test` installs it.
        assert!(!runsc().exists(), "gVisor is installed but does not work: {error}");
        assert!(error.to_string().contains("runsc"), "{error}");
        fixture.assert_nothing_left();
        eprintln!("there is no gVisor on this host, and the backend says so: {error}");
        return None;
    }
    Some(fixture)
}

fn runsc() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("runsc"));
    places.find(|place| place.is_file()).unwrap_or_else(|| "runsc".into())
}

impl Fixture {
    fn new(make: fn(&Path) -> Arc<dyn Backend>) -> Self {
        let folder = tempfile::Builder::new().prefix("bellglass-conformance-").tempdir().unwrap();
        Self { backend: make(&folder.path().join("sandboxes")), make, pool: None, folder }
    }

    /// The backend as another process of ours would have it later.
    pub(crate) fn successor(&self) -> Arc<dyn Backend> {
        (self.make)(&self.folder.path().join("sandboxes"))
    }

    pub(crate) fn order(&self) -> SandboxOrder {
        order()
    }

    pub(crate) async fn start(&self) -> Sandbox {
        let sandbox = self.start_with(&self.order()).await;
        let start = if self.pool.is_some() { Start::Warm } else { Start::Cold };
        assert_eq!(sandbox.report().start, start);
        sandbox
    }

    pub(crate) async fn start_with(&self, order: &SandboxOrder) -> Sandbox {
        while self.pool.as_ref().is_some_and(|pool| pool.waiting() == 0) {
            tokio::task::yield_now().await;
        }
        Sandbox::start(&*self.backend, order, "base").await.unwrap()
    }

    /// Ends what waits for nobody.
    pub(crate) async fn close(&self) {
        if let Some(pool) = &self.pool {
            pool.close().await;
        }
    }

    /// Neither folders, nor control groups, nor processes of any sandbox of this test.
    pub(crate) fn assert_nothing_left(&self) {
        let folders = fs::read_dir(self.folder.path().join("sandboxes")).unwrap().flatten();
        let folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
        assert_eq!(folders, Vec::<PathBuf>::new(), "folders are left");
        // Mounts in the host's own namespace would show here.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = self.folder.path().to_str().unwrap();
        assert!(!mounts.contains(folder), "mounts are left");
    }
}

fn order() -> SandboxOrder {
    SandboxOrder {
        name: SandboxName::throwaway(),
        rootfs: image(),
        limits: Limits { memory: ByteSize::mib(512), ..Limits::default() },
        nested_sandboxing: false,
        orphaned_after: None,
    }
}

impl Drop for Fixture {
    /// A test that failed in the middle leaves nothing behind either.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let backend = self.backend.clone();
            let swept = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build()?;
                runtime.block_on(backend.sweep(&HashSet::new())).map_err(io::Error::other)
            });
            eprintln!("removed after the failure: {:?}", swept.join());
        }
    }
}

/// A sandbox's own traces on the host.
pub(crate) fn assert_no_trace_of(name: &SandboxName) {
    let groups = control_groups_of(name.as_str());
    assert_eq!(groups, Vec::<PathBuf>::new(), "control groups are left");
    assert_eq!(processes_of(name.as_str()), Vec::<i32>::new(), "processes are left");
}

/// The processes that carry the sandbox's name in their arguments: the first one of the cage, and
/// where another kernel runs in it, that kernel's own.
pub(crate) fn processes_of(name: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
    };
    pids.filter(is_one).collect()
}

fn control_groups_of(name: &str) -> Vec<PathBuf> {
    let mut groups = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut next = 0;
    while let Some(group) = groups.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(group).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(below.map(|entry| entry.path()));
    }
    groups.retain(|group| group.to_string_lossy().ends_with(name));
    groups
}

/// The image that was built for the tests.
fn image() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let data_home = || {
        let under_home = || variable("HOME").map(|home| home.join(".local/share"));
        variable("XDG_DATA_HOME").or_else(under_home).expect("HOME is set")
    };
    let folder =
        variable("BELLGLASS_IMAGES").unwrap_or_else(|| data_home().join("bellglass/images"));
    let rootfs = fs::canonicalize(folder.join("base/rootfs"));
    rootfs.expect("there is no sandbox image: make it with `make image`")
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) result: CallResult,
}

#[derive(Default)]
struct Kept {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

#[async_trait]
impl OutputSink for Kept {
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> io::Result<()> {
        match stream {
            OutputStream::Stdout => self.stdout.extend(piece),
            OutputStream::Stderr => self.stderr.extend(piece),
        }
        Ok(())
    }
}

/// Calls a tool and waits for its end.
pub(crate) async fn call(sandbox: &Sandbox, n: u32, call: Value) -> Done {
    call_within(sandbox, n, call, PATIENCE).await
}

pub(crate) async fn call_within(sandbox: &Sandbox, n: u32, call: Value, time: Duration) -> Done {
    let call = serde_json::from_value(call).unwrap();
    let mut kept = Kept::default();
    let result =
        sandbox.guest().call(&CallId::of_step(n), &call, time, 0, &mut kept).await.unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Done { stdout: text(&kept.stdout), stderr: text(&kept.stderr), result }
}

pub(crate) async fn shell(sandbox: &Sandbox, n: u32, command: &str) -> Done {
    call(sandbox, n, json!({ "tool": "shell", "command": command })).await
}
