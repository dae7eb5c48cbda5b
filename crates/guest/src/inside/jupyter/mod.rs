//! JupyterLab for the people who look at a job: on a Unix socket, started when it is first wanted,
//! with the very kernels that the job's calls use.
//!
//! Who may reach it is decided outside; here it is only started.

mod desk;

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Language;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::failure::failure;
use super::interpreters::{environment, find, private_folder};
use super::process::{Command, Process, Supervisor};
use super::run_process::kill_supervised;
use super::{Guest, kernel};

/// How long it may take to listen, on a machine that has other things to do too.
const STARTING: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// It starts faster where it finds no Node, for which it has no use.
const SEARCH_PATH: &str = "/usr/bin:/bin";

/// The path that it is shown under: it has an origin of its own.
const BASE: &str = "/";

const KERNELS: &str = include_str!("bellglass_kernels.py");
const FRAMED: &str = include_str!("bellglass_framed.py");
const CONFIGURATION: &str = include_str!("server_config.py");

/// The JupyterLab of a sandbox, once there is one.
#[derive(Default)]
pub(super) struct Jupyter {
    live: tokio::sync::Mutex<Option<Live>>,
}

struct Live {
    socket: PathBuf,
    ended: watch::Receiver<bool>,
}

/// A connection to JupyterLab, which is started unless it runs.
pub(super) async fn visit(guest: &Arc<Guest>) -> Result<UnixStream, ToolError> {
    let socket = socket(guest, BASE).await?;
    let gone = |error| failure("no_jupyter", format!("JupyterLab does not listen: {error}"));
    UnixStream::connect(socket).await.map_err(gone)
}

/// Where JupyterLab listens. Starts it unless it runs: as a task of its own, which goes on when whoever
/// asked goes away.
async fn socket(guest: &Arc<Guest>, base: &str) -> Result<PathBuf, ToolError> {
    let (guest, base) = (guest.clone(), base.to_owned());
    let starting = tokio::spawn(async move {
        let mut live = guest.jupyter.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !*live.ended.borrow()) {
            return Ok(live.socket.clone());
        }
        let started = start(&guest, &base).await?;
        let socket = started.socket.clone();
        *live = Some(started);
        Ok(socket)
    });
    starting.await.unwrap_or_else(|_| Err(failure("no_jupyter", "starting it broke")))
}

async fn start(guest: &Arc<Guest>, base: &str) -> Result<Live, ToolError> {
    if !is_here() {
        return Err(failure(
            "no_jupyter",
            "this sandbox's image has no JupyterLab; give the job `desktop: true`, or the image \
             `desktop`, which `bellglass image build desktop` makes",
        ));
    }
    let broken =
        |error: io::Error| failure("no_jupyter", format!("it could not be started: {error}"));
    let folder = private_folder().join("jupyter");
    lay_out(&folder).map_err(broken)?;
    let (socket, desk) = (folder.join("socket"), folder.join("desk"));
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(&desk);
    let listener = UnixListener::bind(&desk).map_err(broken)?;
    let desk_serving = tokio::spawn(desk::serve(guest.clone(), listener));
    let process = Process::start(&command(guest, &folder, base)?, &guest.confinement)?;
    let (mut stdout, mut stderr, supervisor) = process.split();
    tokio::spawn(async move {
        // Nobody reads what it logs, but it must not wait for a reader.
        let mut nowhere = (tokio::io::sink(), tokio::io::sink());
        let _ = tokio::join!(
            tokio::io::copy(&mut stdout, &mut nowhere.0),
            tokio::io::copy(&mut stderr, &mut nowhere.1)
        );
    });
    let pid = supervisor.pid();
    let (tell, ended) = watch::channel(false);
    tokio::spawn(see_end(supervisor, tell, desk_serving));
    // The first notebook will want it, and both take their time.
    kernel::warm(guest, Language::Python);
    match timeout(STARTING, listens(&socket, &ended)).await {
        Ok(true) => Ok(Live { socket, ended }),
        Ok(false) => Err(failure("no_jupyter", "JupyterLab ended at once")),
        Err(_) => {
            kill_supervised(guest, pid).await;
            Err(failure("no_jupyter", "JupyterLab did not answer within a minute; try again"))
        }
    }
}

/// Whether this image has JupyterLab.
fn is_here() -> bool {
    ["/usr/local/bin/jupyter-lab", "/usr/bin/jupyter-lab"]
        .iter()
        .any(|path| Path::new(path).exists())
}

/// Writes what JupyterLab is to find. A tool may have put something there, which is written over.
fn lay_out(folder: &Path) -> io::Result<()> {
    let kernel = |name: &str, language: &str| {
        json!({
            "display_name": name, "language": language, "interrupt_mode": "message",
            // The guest starts it; this is never run.
            "argv": ["true"],
        })
        .to_string()
    };
    // There is nobody outside to ask.
    let settings =
        json!({ "@jupyterlab/apputils-extension:notification": { "fetchNews": "false" } });
    let files = [
        ("config/labconfig/default_setting_overrides.json", settings.to_string()),
        ("server_config.py", CONFIGURATION.to_owned()),
        ("python/bellglass_kernels.py", KERNELS.to_owned()),
        ("python/bellglass_framed.py", FRAMED.to_owned()),
        ("data/kernels/python3/kernel.json", kernel("Python", "python")),
        ("data/kernels/deno/kernel.json", kernel("TypeScript", "typescript")),
    ];
    for (name, content) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let _ = std::fs::remove_file(&path);
        std::fs::write(path, content)?;
    }
    Ok(())
}

fn command(guest: &Guest, folder: &Path, base: &str) -> Result<Command, ToolError> {
    let workspace = guest.workspace.path().to_path_buf();
    let mut environment = environment(guest, &workspace, &Default::default())?;
    environment.retain(|(name, _)| name != "PATH");
    let inside = |name: &str| folder.join(name).into_os_string();
    let more = [
        ("PATH", SEARCH_PATH.into()),
        ("PYTHONPATH", inside("python")),
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ("JUPYTER_PATH", inside("data")),
        ("JUPYTER_DATA_DIR", inside("data")),
        ("JUPYTER_CONFIG_DIR", inside("config")),
        ("JUPYTER_RUNTIME_DIR", inside("runtime")),
        ("JUPYTERLAB_SETTINGS_DIR", inside("settings")),
        ("JUPYTERLAB_WORKSPACES_DIR", inside("workspaces")),
        ("IPYTHONDIR", inside("ipython")),
        ("BELLGLASS_JUPYTER", folder.into()),
        ("BELLGLASS_JUPYTER_BASE", base.into()),
        ("BELLGLASS_KERNEL_DESK", inside("desk")),
        ("BELLGLASS_WORKSPACE", workspace.clone().into()),
    ];
    environment.extend(more.into_iter().map(|(name, value)| (name.into(), value)));
    let config = format!("--config={}", folder.join("server_config.py").display());
    let arguments = ["python3", "-m", "jupyterlab", &config].map(Into::into).into();
    Ok(Command {
        program: find("python3")?,
        arguments,
        environment,
        folder: workspace,
        input: None,
    })
}

/// Waits until it takes connections; false if it ends before.
async fn listens(socket: &Path, ended: &watch::Receiver<bool>) -> bool {
    while !*ended.borrow() {
        if UnixStream::connect(socket).await.is_ok() {
            return true;
        }
        sleep(BETWEEN_TRIES).await;
    }
    false
}

async fn see_end(
    mut supervisor: Supervisor,
    tell: watch::Sender<bool>,
    desk: tokio::task::JoinHandle<()>,
) {
    supervisor.next_report().await;
    tell.send_replace(true);
    desk.abort();
    supervisor.reap().await;
}
