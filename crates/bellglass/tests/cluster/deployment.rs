//! A PostgreSQL with servers and workers around it, each a process that can be killed by itself.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bellglass_store::PostgresStore;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Client, SANDBOX_FOLDERS, bellglass, host, signal};

/// Longer than anything takes that comes at all. Whatever is waited for in vain fails its test, which then
/// shows the logs and cleans up, as one that is ended from outside cannot.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until something has come about.
pub(crate) async fn until(what: &str, mut has_come_about: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !has_come_about().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "waited in vain until {what}");
}

/// Everything that runs.
pub(crate) struct Deployment {
    pub(crate) servers: Vec<Server>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) database: Database,
    folder: TempDir,
}

/// A `bellglass serve --no-worker`.
pub(crate) struct Server {
    process: Option<Child>,
    pub(crate) client: Client,
    data: PathBuf,
}

/// A `bellglass work`.
pub(crate) struct Worker {
    process: Option<Child>,
    /// The name under which it claims.
    pub(crate) name: String,
    data: PathBuf,
    /// The address of the database, if it is not everybody's.
    database: Option<String>,
}

impl Deployment {
    /// Starts so many servers and workers. `worker` is what `[worker]` says.
    pub(crate) fn start(servers: usize, workers: usize, worker: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("bellglass-cluster-").tempdir().unwrap();
        let database = Database::start();
        let artifacts = folder.path().join("artifacts");
        let config = format!(
            "[store]\nurl = \"{}\"\n[artifacts]\nurl = \"file://{}\"\n[worker]\n{worker}\n",
            database.url,
            artifacts.display()
        );
        fs::write(folder.path().join("bellglass.toml"), config).unwrap();
        let mut deployment = Self { servers: Vec::new(), workers: Vec::new(), database, folder };
        for n in 0..servers {
            let data = deployment.folder.path().join(format!("server-{n}"));
            let client = Client::new(String::new());
            deployment.servers.push(Server { process: None, client, data });
            deployment.start_server(n);
        }
        for _ in 0..workers {
            deployment.add_worker(None);
        }
        deployment
    }

    /// Starts another worker, which may have its own way to the database.
    pub(crate) fn add_worker(&mut self, way: Option<&Detour>) {
        let n = self.workers.len();
        let data = self.folder.path().join(format!("worker-{n}"));
        let database = way.map(|way| way.url.clone());
        self.workers.push(Worker { process: None, name: String::new(), data, database });
        self.start_worker(n);
    }

    pub(crate) fn start_server(&mut self, n: usize) {
        let (folder, server) = (self.folder.path(), &mut self.servers[n]);
        let arguments = ["serve", "--no-worker", "--listen", "127.0.0.1:0"];
        let (child, said) = start(folder, &arguments, &server.data, None);
        server.process = Some(child);
        server.client = Client::new(said["listening"].as_str().unwrap().to_owned());
    }

    pub(crate) fn start_worker(&mut self, n: usize) {
        let (folder, worker) = (self.folder.path(), &mut self.workers[n]);
        let arguments = ["work", "--slots", "4"];
        let (child, said) = start(folder, &arguments, &worker.data, worker.database.as_deref());
        worker.process = Some(child);
        worker.name = said["worker"].as_str().unwrap().to_owned();
    }

    /// The worker that holds a job, by its number.
    pub(crate) fn worker_named(&self, name: &str) -> usize {
        self.workers.iter().position(|worker| worker.name == name).expect("one of ours")
    }

    /// The ZIP of a job that has ended, read where it lies: the one that its log names.
    pub(crate) fn result(&self, ended: &Value) -> Vec<u8> {
        let named = ended["result"]["artifact"].as_str().expect("a result");
        fs::read(self.folder.path().join("artifacts").join(named)).unwrap()
    }

    /// The first processes of sandboxes that are recorded, each with its job.
    pub(crate) fn guests(&self) -> Vec<(String, i32)> {
        let folders = self.workers.iter().flat_map(|worker| {
            SANDBOX_FOLDERS.map(|folder| fs::read_dir(worker.data.join(folder)))
        });
        let recorded = folders.flatten().flatten().flatten().filter_map(|sandbox| {
            let record = fs::read(sandbox.path().join("sandbox.json")).ok()?;
            let record: Value = serde_json::from_slice(&record).ok()?;
            Some((sandbox.file_name().into_string().ok()?, record["pid"].as_i64()? as i32))
        });
        recorded.collect()
    }

    /// Where the configuration lies, and all that the processes keep.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        PostgresStore::open(&self.database.url, None).await.unwrap()
    }

    /// Stops all workers and servers as an operator would, and waits for their ends.
    pub(crate) fn stop(&mut self) {
        let workers = self.workers.iter_mut().filter_map(|worker| worker.process.take());
        let servers = self.servers.iter_mut().filter_map(|server| server.process.take());
        let mut processes: Vec<Child> = workers.chain(servers).collect();
        processes.iter().for_each(|process| signal(process.id() as i32, Signal::TERM));
        let ended: Vec<_> = processes.iter_mut().map(end_of).collect();
        for ended in ended {
            assert!(ended.is_some_and(|ended| ended.success()), "a process ended with {ended:?}");
        }
    }

    /// What is left of sandboxes: processes, control groups, folders, sockets, mounts, disks.
    pub(crate) fn leftovers(&self, jobs: &[String]) -> Vec<String> {
        let mut left = Vec::new();
        for job in jobs {
            let guests = host::guests_of(job);
            left.extend(guests.iter().map(|pid| format!("process {pid} of {job}")));
            let groups = host::control_groups_of(job);
            left.extend(groups.iter().map(|group| group.display().to_string()));
        }
        for worker in &self.workers {
            for folder in SANDBOX_FOLDERS.into_iter().chain(["spools"]) {
                let entries = fs::read_dir(worker.data.join(folder)).into_iter().flatten();
                let paths = entries.flatten().map(|entry| entry.path().display().to_string());
                left.extend(paths);
            }
        }
        left.extend(sockets_below(self.folder.path()));
        let folder = self.folder.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(&folder)).map(String::from));
        left.extend(host::disks_in(self.folder.path()));
        left
    }

    /// Waits until nothing is left of sandboxes, and says how long that took.
    pub(crate) async fn until_nothing_is_left(&self, jobs: &[String]) -> Duration {
        let began = Instant::now();
        loop {
            let left = self.leftovers(jobs);
            if left.is_empty() {
                return began.elapsed();
            }
            assert!(began.elapsed() < PATIENCE, "left behind: {left:#?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Server {
    pub(crate) fn kill(&mut self) {
        kill(&mut self.process);
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.process.as_ref().expect("it runs").id() as i32, which);
    }
}

impl Worker {
    pub(crate) fn kill(&mut self) {
        kill(&mut self.process);
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.process.as_ref().expect("it runs").id() as i32, which);
    }

    /// Stops it as an operator would, and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.wait();
    }

    /// Waits for its end, which is a good one.
    pub(crate) fn wait(&mut self) {
        let ended = end_of(&mut self.process.take().unwrap());
        assert!(ended.is_some_and(|ended| ended.success()), "it ended with {ended:?}");
    }

    /// Waits until its log says something so often.
    pub(crate) async fn says(&self, what: &str, times: usize) {
        let log = self.data.with_extension("log");
        until(&format!("`{what}` is in the log"), async || {
            fs::read_to_string(&log).is_ok_and(|log| log.matches(what).count() >= times)
        })
        .await;
    }
}

/// How a process ends by itself; one that does not is killed.
fn end_of(process: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(ended) = process.try_wait().unwrap() {
            return Some(ended);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    None
}

fn kill(process: &mut Option<Child>) {
    let mut process = process.take().expect("it runs");
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Starts a process and waits for the line by which it says that it is ready.
fn start(folder: &Path, arguments: &[&str], data: &Path, database: Option<&str>) -> (Child, Value) {
    let log = File::options().create(true).append(true).open(data.with_extension("log")).unwrap();
    let mut command = bellglass(folder);
    command.args(arguments).args(["--json", "--data"]).arg(data);
    command.env("BELLGLASS_WARM", crate::WARM);
    command.env("BELLGLASS_CLUSTER_SECRET", "0123456789abcdef0123456789abcdef");
    command.envs(database.map(|url| ("BELLGLASS_STORE_URL", url)));
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let (heard, hears) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = output.read_line(&mut line);
        let _ = heard.send(line);
    });
    let line = hears.recv_timeout(PATIENCE).unwrap_or_default();
    let said = serde_json::from_str(&line).unwrap_or_else(|_| {
        let _ = child.kill();
        let _ = child.wait();
        let log = fs::read_to_string(data.with_extension("log")).unwrap_or_default();
        panic!("{arguments:?} did not start; it said {line:?}\n{log}")
    });
    (child, said)
}

fn sockets_below(folder: &Path) -> Vec<String> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            sockets.extend(sockets_below(&entry.path()));
        } else if kind.is_socket() {
            sockets.push(entry.path().display().to_string());
        }
    }
    sockets
}

impl Drop for Deployment {
    /// Leaves nothing behind, also where a test failed in the middle.
    fn drop(&mut self) {
        let workers = self.workers.iter_mut().filter_map(|worker| worker.process.take());
        let servers = self.servers.iter_mut().filter_map(|server| server.process.take());
        for mut process in workers.chain(servers) {
            let _ = process.kill();
            let _ = process.wait();
        }
        for worker in &self.workers {
            let folders = SANDBOX_FOLDERS.map(|folder| fs::read_dir(worker.data.join(folder)));
            for sandbox in folders.into_iter().flatten().flatten().flatten() {
                let name = sandbox.file_name().into_string().unwrap();
                host::guests_of(&name).into_iter().for_each(host::kill_and_wait);
                let groups = host::control_groups_of(&name);
                groups.iter().for_each(|group| drop(fs::remove_dir(group)));
            }
        }
        if std::thread::panicking() {
            let all = self.servers.iter().map(|it| &it.data);
            for data in all.chain(self.workers.iter().map(|it| &it.data)) {
                let log = fs::read_to_string(data.with_extension("log")).unwrap_or_default();
                let log: Vec<&str> = log.lines().rev().take(40).collect();
                eprintln!("--- {} ---", data.display());
                log.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

/// A PostgreSQL server of its own.
pub(crate) struct Database {
    folder: TempDir,
    pub(crate) url: String,
}

impl Database {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("bg-pg").tempdir().unwrap();
        let url = script(&["start", folder.path().to_str().unwrap()]);
        Self { folder, url: url.trim().into() }
    }

    /// Stops it, as a crash (`immediate`) or in good order (`fast`), and starts it again.
    pub(crate) fn restart(&self, mode: &str) {
        self.stop(mode);
        self.start_again();
    }

    pub(crate) fn stop(&self, mode: &str) {
        script(&["stop", self.folder.path().to_str().unwrap(), mode]);
    }

    pub(crate) fn start_again(&self) {
        script(&["start", self.folder.path().to_str().unwrap()]);
    }
}

/// A way to the database that can be cut, while others still reach it.
pub(crate) struct Detour {
    url: String,
    is_cut: watch::Sender<bool>,
    _folder: TempDir,
    _listening: AbortOnDropHandle<()>,
}

impl Detour {
    pub(crate) fn to(database: &Database) -> Self {
        const SOCKET: &str = ".s.PGSQL.5432";
        let folder = tempfile::Builder::new().prefix("bg-way").tempdir().unwrap();
        let place = |folder: &Path| folder.display().to_string().replace('/', "%2F");
        let url = database.url.replace(&place(database.folder.path()), &place(folder.path()));
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (is_cut, cut) = watch::channel(false);
        let socket = database.folder.path().join(SOCKET);
        let listening = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (mut cut, socket) = (cut.clone(), socket.clone());
                tokio::spawn(async move {
                    let passing = async {
                        let mut far = UnixStream::connect(socket).await?;
                        copy_bidirectional(&mut near, &mut far).await
                    };
                    tokio::select! {
                        _ = passing => {}
                        _ = cut.wait_for(|is_cut| *is_cut) => {}
                    }
                });
            }
        });
        let _listening = AbortOnDropHandle::new(listening);
        Self { url, is_cut, _folder: folder, _listening }
    }

    /// Ends all connections that go this way, and those that are tried.
    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub(crate) fn mend(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.folder.path().join("data/postmaster.pid").exists() {
            script(&["stop", self.folder.path().to_str().unwrap(), "immediate"]);
        }
    }
}

fn script(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
    let ran = Command::new(script).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "postgres.sh {arguments:?}: {errors}");
    String::from_utf8(ran.stdout).unwrap()
}
