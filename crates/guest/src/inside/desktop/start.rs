//! Starts the desktop: an X server that is its own VNC server, and a window manager.
//!
//! Both run as tools do. The sockets lie in the sandbox's own file tree and nowhere else.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bellglass_protocol::job::Screen;
use bellglass_protocol::step::ToolError;

use super::Live;
use super::display::Display;
use super::windows;
use crate::inside::Guest;
use crate::inside::failure::failure;
use crate::inside::interpreters::{environment, find, private_folder};
use crate::inside::process::{Command, Process};
use crate::inside::run_process::kill_supervised;

/// How long the X server and the window manager may take.
const STARTING: Duration = Duration::from_secs(20);
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// What programs call the screen, and the socket by which they reach it.
pub(super) const DISPLAY: &str = ":0";
const SOCKET: &str = "/tmp/.X11-unix/X0";

/// A window manager composes no letters, but reads how that is done, for as long as all the rest takes.
/// What its menu starts does compose some (image/desktop.toml).
const NOTHING_TO_COMPOSE: (&str, &str) = ("XCOMPOSEFILE", "/dev/null");

pub(super) async fn start(guest: &Arc<Guest>, screen: Screen) -> Result<Live, ToolError> {
    let missing = |_| {
        failure(
            "no_desktop",
            "this sandbox's image has no desktop; give the job `desktop: true`, or the image \
             `desktop`, which `bellglass image build desktop` makes",
        )
    };
    let server = find("Xtigervnc").or_else(|_| find("Xvnc")).map_err(missing)?;
    let manager = find("openbox").map_err(missing)?;
    let folder = private_folder().join("desktop");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| failure("no_desktop", format!("its folder cannot be made: {error}")))?;
    let rfb = folder.join("rfb");
    let _ = std::fs::remove_file(&rfb);
    let geometry = format!("{}x{}", screen.width, screen.height);
    let rfb_path = rfb.to_string_lossy().into_owned();
    // No port is opened: viewers come through the wire. Whoever is in the sandbox may use the
    // screen, and nobody else reaches it.
    let arguments = [
        "Xvnc",
        DISPLAY,
        "-geometry",
        &geometry,
        "-depth",
        "24",
        "-rfbunixpath",
        &rfb_path,
        "-rfbport",
        "-1",
        "-SecurityTypes",
        "None",
        "-AlwaysShared",
        "-ac",
        "-nolisten",
        "tcp",
        "-nolisten",
        "local",
        "-noreset",
        "-extension",
        "GLX",
    ];
    let xserver = run(guest, server, &arguments, &[])?;
    let unreachable =
        |error: io::Error| failure("no_desktop", format!("the X server did not start: {error}"));
    let broke = || failure("no_desktop", "starting it broke");
    // The server's socket is there before the server is ready, so the window manager starts beside it.
    let connecting = tokio::task::spawn_blocking(connect).await;
    let connected = connecting.map_or_else(|_| Err(broke()), |found| found.map_err(unreachable));
    let arguments = ["openbox", "--sm-disable"];
    let started = connected
        .and_then(|stream| Ok((stream, run(guest, manager, &arguments, &[NOTHING_TO_COMPOSE])?)));
    let (stream, manager) = match started {
        Ok(started) => started,
        Err(error) => {
            xserver.end(guest).await;
            return Err(error);
        }
    };
    let ready = tokio::task::spawn_blocking(move || {
        let display = Display::connect(stream).map_err(|broken| {
            failure("no_desktop", format!("the X server did not start: {}", broken.0))
        })?;
        match windows::wait_for_manager(&display, Instant::now() + STARTING) {
            Ok(true) => Ok(display),
            _ => Err(failure("no_desktop", "the window manager did not start")),
        }
    });
    match ready.await.unwrap_or_else(|_| Err(broke())) {
        Ok(display) => {
            let programs = [manager, xserver];
            Ok(Live::new(display, rfb, programs))
        }
        Err(error) => {
            manager.end(guest).await;
            xserver.end(guest).await;
            Err(error)
        }
    }
}

/// Ends what is left of a desktop whose screen cannot be used any more, so that another can take its place.
pub(super) async fn clear_away(guest: &Guest, live: &Live) {
    for program in &live.programs {
        program.end(guest).await;
    }
}

fn connect() -> io::Result<UnixStream> {
    let until = Instant::now() + STARTING;
    loop {
        match UnixStream::connect(SOCKET) {
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(BETWEEN_TRIES),
            connected => return connected,
        }
    }
}

/// A program that belongs to the desktop.
pub(super) struct Program {
    supervisor: libc::pid_t,
    /// From then on the number may be another's.
    has_ended: Arc<AtomicBool>,
}

impl Program {
    async fn end(&self, guest: &Guest) {
        if !self.has_ended.load(Ordering::Relaxed) {
            kill_supervised(guest, self.supervisor).await;
        }
    }
}

fn run(
    guest: &Guest,
    program: PathBuf,
    arguments: &[&str],
    settings: &[(&str, &str)],
) -> Result<Program, ToolError> {
    let folder = guest.workspace.path().to_path_buf();
    let mut environment = environment(guest, &folder, &Default::default())?;
    environment.retain(|(name, _)| name != "DISPLAY");
    environment.push(("DISPLAY".into(), DISPLAY.into()));
    environment.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    let arguments = arguments.iter().map(Into::into).collect();
    let command = Command { program, arguments, environment, folder, input: None };
    let (mut stdout, mut stderr, supervisor) =
        Process::start(&command, &guest.confinement)?.split();
    let has_ended = Arc::new(AtomicBool::new(false));
    let program = Program { supervisor: supervisor.pid(), has_ended: has_ended.clone() };
    tokio::spawn(async move {
        // Nobody reads what they log, but they must not wait for a reader.
        let mut nowhere = (tokio::io::sink(), tokio::io::sink());
        let _ = tokio::join!(
            tokio::io::copy(&mut stdout, &mut nowhere.0),
            tokio::io::copy(&mut stderr, &mut nowhere.1)
        );
        supervisor.reap().await;
        has_ended.store(true, Ordering::Relaxed);
    });
    Ok(program)
}
