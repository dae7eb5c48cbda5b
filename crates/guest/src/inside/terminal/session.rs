//! One terminal session: a shell, what it wrote, what its screen shows, and where it stands.
//!
//! A task of its own reads the terminal all the time, so nothing that runs in the session ever waits
//! for a reader, except while a call listens: then the program is as fast as the listener.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::DATA_CHUNK;
use bytes::Bytes;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::bash::Feed;
use super::log::{HELD, Log};
use super::pty::{COLUMNS, Pty, ROWS};
use super::text::{Mark, Part, PlainText};
use crate::inside::Guest;
use crate::inside::failure::failure;
use crate::inside::interpreters::{environment, find, private_folder};
use crate::inside::process::{Command, Process, Supervisor};
use crate::inside::supervisor::Report;

pub(super) struct Session {
    pub(super) name: String,
    pub(super) pty: Pty,
    pub(super) supervisor: libc::pid_t,
    /// One call at a time. Holds where the last one stopped reading.
    pub(super) turn: Arc<tokio::sync::Mutex<u64>>,
    feed: Mutex<Feed>,
    state: Mutex<State>,
    /// Fires at every change of the state.
    changed: watch::Sender<()>,
    /// What the terminal gets, as it is, for people who watch.
    painted: broadcast::Sender<Bytes>,
}

/// Pieces that a watcher may be behind. One that is further behind is shown the screen as it is: it
/// must not hold up what runs here.
const PIECES_BEHIND: usize = 16;

pub(super) struct State {
    pub(super) log: Log,
    pub(super) plain: PlainText,
    screen: vt100::Parser,
    /// The number of the command that the shell was given last; 0 is its own start.
    pub(super) given: u64,
    /// The number of the command that it has run last.
    pub(super) done: Option<u64>,
    /// The command that it was given last.
    pub(super) command: String,
    /// How the last command ended.
    pub(super) status: i32,
    pub(super) folder: String,
    /// How the shell itself ended, as `waitpid` tells it.
    pub(super) ended: Option<i32>,
    pub(super) last_output: Instant,
    /// Where a listening call is; output must not run away from it.
    listener: Option<u64>,
}

impl State {
    /// A full-screen program that was killed has not given the screen back.
    fn take_screen_back(&mut self) {
        if self.plain.is_painting() {
            self.plain.stop_painting();
            self.screen = new_screen();
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.done != Some(self.given) && self.ended.is_none()
    }

    /// What the terminal shows, without empty lines at its end.
    pub(super) fn screen(&self) -> String {
        let (row, column) = self.screen.screen().cursor_position();
        let shown = self.screen.screen().contents();
        let shown = shown.trim_end();
        format!("{shown}\n[cursor at row {}, column {}]\n", row + 1, column + 1)
    }

    fn paint(&mut self, bytes: &[u8]) {
        let screen = &mut self.screen;
        // What is painted comes from inside; a screen that cannot take it is made anew.
        let painted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            screen.process(bytes);
        }));
        if painted.is_err() {
            self.screen = new_screen();
        }
    }
}

/// How long a shell that has left its loop waits until it is led back.
const LED_BACK_AFTER: std::time::Duration = std::time::Duration::from_millis(10);

fn new_screen() -> vt100::Parser {
    vt100::Parser::new(ROWS, COLUMNS, 0)
}

impl Session {
    /// Opens a terminal with a shell in it. Returns once the shell is on its way.
    pub(super) fn open(guest: &Guest, name: &str) -> Result<Arc<Self>, ToolError> {
        let broken = |error: io::Error| {
            failure("cannot_open_terminal", format!("no terminal can be made: {error}"))
        };
        let token = self::token().map_err(broken)?;
        // Of its own also where one of the same name is still looked at by somebody.
        let apart = self::token().map_err(broken)?;
        let folder = private_folder().join(format!("session-{name}-{apart}"));
        let (pty, inner, terminal) = Pty::open().map_err(broken)?;
        let feed = Feed::prepare(folder, &token, &terminal).map_err(broken)?;
        let workspace = guest.workspace.path().to_path_buf();
        let mut variables = environment(guest, &workspace, &Default::default())?;
        variables.retain(|(name, _)| name != "TERM");
        variables.push(("TERM".into(), "xterm-256color".into()));
        let start = feed.start_file().into_os_string();
        let command = Command {
            program: find("bash")?,
            arguments: [
                "bash".into(),
                "--noprofile".into(),
                "--noediting".into(),
                "--rcfile".into(),
                start,
                "-i".into(),
            ]
            .into(),
            environment: variables,
            folder: workspace,
            input: None,
        };
        let supervisor = Process::start_on_terminal(&command, &guest.confinement, &inner)?;
        drop(inner);
        let session = Arc::new(Self {
            name: name.into(),
            pty,
            supervisor: supervisor.pid(),
            turn: Arc::default(),
            feed: Mutex::new(feed),
            state: Mutex::new(State {
                log: Log::default(),
                plain: PlainText::new(token),
                screen: new_screen(),
                given: 0,
                done: None,
                command: "bash".into(),
                status: 0,
                folder: String::new(),
                ended: None,
                last_output: Instant::now(),
                listener: None,
            }),
            changed: watch::Sender::new(()),
            painted: broadcast::Sender::new(PIECES_BEHIND),
        });
        tokio::spawn(session.clone().read_all());
        tokio::spawn(session.clone().see_end(supervisor));
        Ok(session)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces every later change. Subscribe first, then look.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The screen as it is now, as bytes that draw it, and all that is written to it from then on.
    pub(super) fn watch(&self) -> (String, broadcast::Receiver<Bytes>) {
        let state = self.state();
        (state.screen.screen().state_formatted(), self.painted.subscribe())
    }

    /// Has the shell run a command. It must be ready.
    pub(super) fn order(&self, command: &str, text: &str) -> io::Result<()> {
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        feed.order(state.given + 1, text)?;
        state.given += 1;
        state.command = command.into();
        state.last_output = Instant::now();
        Ok(())
    }

    /// Says where a call listens, so that output waits for it; `None` when it goes away.
    pub(super) fn listen(&self, at: Option<u64>) {
        self.state().listener = at;
        self.changed.send_replace(());
    }

    /// Puts the terminal in order after a program was killed in it.
    pub(super) fn restore(&self) {
        self.pty.restore();
        self.state().take_screen_back();
    }

    async fn read_all(self: Arc<Self>) {
        let mut buffer = vec![0; DATA_CHUNK];
        loop {
            self.wait_for_room().await;
            let count = self.pty.read(&mut buffer).await;
            if count == 0 {
                return;
            }
            if self.take(&buffer[..count]) == Stray::Yes {
                // An empty line brings the shell to its prompt again, and so back into the loop. Not at once:
                // a shell that finds nothing there any more would come back as fast as it is sent.
                tokio::time::sleep(LED_BACK_AFTER).await;
                let _ = self.pty.write(b"\n").await;
            }
            self.changed.send_replace(());
        }
    }

    fn take(&self, bytes: &[u8]) -> Stray {
        let mut state = self.state();
        let mut stray = Stray::No;
        state.paint(bytes);
        if self.painted.receiver_count() > 0 {
            let _ = self.painted.send(Bytes::copy_from_slice(bytes));
        }
        for part in state.plain.take(bytes) {
            match part {
                Part::Text(text) => {
                    state.log.append(&text);
                }
                Part::Mark(Mark::Ready { number, status, folder }) => {
                    state.done = Some(number);
                    state.take_screen_back();
                    (state.status, state.folder) = (status, folder);
                }
                Part::Mark(Mark::Astray) => stray = Stray::Yes,
            }
        }
        state.last_output = Instant::now();
        stray
    }

    async fn wait_for_room(&self) {
        let mut changes = self.subscribe();
        loop {
            {
                let state = self.state();
                let unread = state.listener.map_or(0, |at| state.log.end().saturating_sub(at));
                if unread as usize <= HELD - DATA_CHUNK {
                    return;
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn see_end(self: Arc<Self>, mut supervisor: Supervisor) {
        let status = match supervisor.next_report().await {
            Some(Report::Ended(status)) => status,
            Some(Report::Refused(..)) => 127 << 8,
            None => libc::SIGKILL,
        };
        self.state().ended = Some(status);
        self.changed.send_replace(());
        supervisor.reap().await;
    }
}

/// Whether the shell has left our loop.
#[derive(PartialEq)]
enum Stray {
    Yes,
    No,
}

fn token() -> io::Result<String> {
    let mut bytes = [0u8; 12];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
