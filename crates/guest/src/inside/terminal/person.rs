//! Terminals for people: a shell of their own, or a look at a session that a tool opened.
//!
//! What a person's shell writes waits for the person. A session waits for nobody: who is too slow for
//! it is shown its screen as it has become.

use std::sync::Arc;

use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::tunnel::{Terminal, TerminalSize};
use bellglass_protocol::wire::{DATA_CHUNK, Frame, Receipt, Reply, WireError};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::broadcast::error::RecvError;

use super::pty::{Pty, SESSION_SIZE};
use super::session::Session;
use crate::inside::Guest;
use crate::inside::exchange::{Wire, answer};
use crate::inside::failure::failure;
use crate::inside::follow::receipt;
use crate::inside::interpreters::{environment, find};
use crate::inside::process::{Command, Process, Supervisor};
use crate::inside::run_process::kill;

type ToPerson = SplitSink<Wire, Frame>;
type FromPerson = SplitStream<Wire>;

/// Variables that make programs quiet for those who read text and press no keys.
const FOR_MACHINES: [&str; 5] = ["TERM", "NO_COLOR", "PAGER", "GIT_PAGER", "DEBIAN_FRONTEND"];

/// Set once, after the image has set its own.
const PROMPT: &str =
    r"PS1='\[\e[32m\]sandbox\[\e[0m\]:\[\e[34m\]\w\[\e[0m\]\$ '; unset PROMPT_COMMAND";

/// Serves a terminal until it or the person is gone.
pub(in crate::inside) async fn open(
    guest: &Arc<Guest>,
    wire: Wire,
    terminal: Terminal,
) -> Result<(), WireError> {
    let place = guest.tunnels.enter();
    let refused = match (place, terminal) {
        (Ok(_place), Terminal::Shell { size }) => match start_shell(guest, size) {
            Ok((pty, supervisor)) => return shell(guest, wire, pty, size, supervisor).await,
            Err(error) => error,
        },
        (Ok(_place), Terminal::Session { name }) => match guest.sessions.get(&name) {
            Ok(session) => return watch(wire, &session).await,
            Err(error) => error,
        },
        (Err(error), _) => error,
    };
    answer(wire, Reply::Error { error: refused }).await
}

fn start_shell(guest: &Guest, size: TerminalSize) -> Result<(Pty, Supervisor), ToolError> {
    let (pty, inner, _) = Pty::open().map_err(|error| {
        failure("cannot_open_terminal", format!("no terminal can be made: {error}"))
    })?;
    pty.resize(size);
    let folder = guest.workspace.path().to_path_buf();
    let mut variables = environment(guest, &folder, &Default::default())?;
    variables.retain(|(name, _)| !FOR_MACHINES.iter().any(|other| name == other));
    let for_people = [
        ("TERM", "xterm-256color"),
        ("COLORTERM", "truecolor"),
        // The image's own prompt has the sandbox's name in it, which is too long to look at.
        ("PROMPT_COMMAND", PROMPT),
        // What was typed is nothing that the job made.
        ("HISTFILE", ""),
    ];
    variables.extend(for_people.map(|(name, value)| (name.into(), value.into())));
    let command = Command {
        program: find("bash")?,
        arguments: ["bash".into(), "-i".into()].into(),
        environment: variables,
        folder,
        input: None,
    };
    let supervisor = Process::start_on_terminal(&command, &guest.confinement, &inner)?;
    Ok((pty, supervisor))
}

/// A shell of the person's own. It goes with the stream, and so does all that it started.
async fn shell(
    guest: &Guest,
    mut wire: Wire,
    pty: Pty,
    size: TerminalSize,
    mut supervisor: Supervisor,
) -> Result<(), WireError> {
    let served = async {
        wire.send(Frame::message(&Reply::Terminal { size: size.bounded() })).await?;
        let (mut to_person, mut from_person) = wire.split();
        let shown = async {
            let mut buffer = vec![0; DATA_CHUNK];
            loop {
                match pty.read(&mut buffer).await {
                    0 => return Ok::<_, WireError>(()),
                    count => show(&mut to_person, Bytes::copy_from_slice(&buffer[..count])).await?,
                }
            }
        };
        tokio::select! {
            shown = shown => shown?,
            typed = take_input(&mut from_person, &pty, Resizing::Follows) => typed?,
        }
        to_person.send(Frame::message(&Reply::End)).await
    }
    .await;
    kill(guest, &supervisor).await;
    while supervisor.next_report().await.is_some() {}
    tokio::spawn(supervisor.reap());
    served
}

/// A session's terminal, for as long as its shell lives.
async fn watch(mut wire: Wire, session: &Arc<Session>) -> Result<(), WireError> {
    wire.send(Frame::message(&Reply::Terminal { size: SESSION_SIZE })).await?;
    let (mut to_person, mut from_person) = wire.split();
    let shown = async {
        let (screen, mut painted) = session.watch();
        let mut changes = session.subscribe();
        show(&mut to_person, screen.into()).await?;
        while session.state().ended.is_none() {
            let piece = tokio::select! {
                piece = painted.recv() => piece,
                _ = changes.changed() => continue,
            };
            match piece {
                Ok(piece) => show(&mut to_person, piece).await?,
                Err(RecvError::Lagged(_)) => {
                    let (screen, from_now_on) = session.watch();
                    painted = from_now_on;
                    show(&mut to_person, screen.into()).await?;
                }
                Err(RecvError::Closed) => break,
            }
        }
        Ok::<_, WireError>(())
    };
    tokio::select! {
        shown = shown => shown?,
        typed = take_input(&mut from_person, &session.pty, Resizing::Ignored) => typed?,
    }
    to_person.send(Frame::message(&Reply::End)).await
}

async fn show(to_person: &mut ToPerson, piece: Bytes) -> Result<(), WireError> {
    to_person.send(Frame::Output(OutputStream::Stdout, piece)).await
}

/// Whether the terminal takes the size of the person's window.
#[derive(PartialEq)]
enum Resizing {
    Follows,
    Ignored,
}

/// Types what the person types, until the person is gone.
async fn take_input(
    from_person: &mut FromPerson,
    pty: &Pty,
    resizing: Resizing,
) -> Result<(), WireError> {
    while let Some(frame) = from_person.next().await {
        match frame? {
            Frame::Data(typed) => pty.write(&typed).await?,
            frame => match receipt(&frame)? {
                Receipt::Resized { size } if resizing == Resizing::Follows => pty.resize(size),
                Receipt::Resized { .. } | Receipt::Received { .. } | Receipt::EndOfData => {}
            },
        }
    }
    Ok(())
}
