//! `GET /jobs/{id}/terminal`: a terminal in a job's sandbox, over a WebSocket.
//!
//! Binary messages are bytes: what is typed, and what is shown. Text messages are JSON: the page says
//! how large it is, and hears that the terminal is there, was refused, or has ended.

use std::io;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bellglass_protocol::id::JobId;
use bellglass_protocol::tunnel::{Terminal, TerminalSize};
use futures::{SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};

use super::files::refusal;
use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, Parameters};
use crate::live::{LiveTerminal, TerminalInput};
use crate::problem::ApiError;
use crate::sockets::{self, HEARTBEAT};
use crate::standing;

/// Which terminal, and how large the window is in which it is shown.
#[derive(Deserialize)]
pub(crate) struct Wanted {
    /// A session that a tool opened. Without one it is a new shell.
    session: Option<String>,
    columns: Option<u16>,
    rows: Option<u16>,
}

/// What a client says beside what it types.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
enum Asked {
    Resize { columns: u16, rows: u16 },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
enum Said {
    Opened { columns: u16, rows: u16 },
    Refused { code: &'static str, message: String },
    Ended,
}

/// How long a client that does not listen is waited for when all is over.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) async fn open(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    Parameters(wanted): Parameters<Wanted>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    server.app.store.outline(job).await?;
    let usual = TerminalSize::default();
    let terminal = match wanted.session {
        Some(name) => Terminal::Session { name },
        None => Terminal::Shell {
            size: TerminalSize {
                columns: wanted.columns.unwrap_or(usual.columns),
                rows: wanted.rows.unwrap_or(usual.rows),
            }
            .bounded(),
        },
    };
    Ok(sockets::bounded(upgrade).on_upgrade(move |socket| async move {
        let by = caller.actor("user");
        tokio::select! {
            () = serve(&server, job, &by, terminal, socket) => {}
            () = standing::ended(server.clone(), caller.clone()) => {}
        }
    }))
}

async fn serve(
    server: &SharedServer,
    job: JobId,
    by: &str,
    terminal: Terminal,
    mut socket: WebSocket,
) {
    let opened = match server.app.live.open_terminal(job, by, terminal).await {
        Ok(opened) => opened,
        Err(error) => {
            // A browser shows nothing of an HTTP error here, so it is told over the socket.
            if let Ok(error) = refusal(server, job, "", error).await {
                let said = Said::Refused { code: error.code(), message: error.to_string() };
                let _ = socket.send(message(&said)).await;
            }
            return;
        }
    };
    let TerminalSize { columns, rows } = opened.size;
    if socket.send(message(&Said::Opened { columns, rows })).await.is_err() {
        return;
    }
    tokio::select! {
        _ = pass(opened, socket) => {}
        () = server.stopping.cancelled() => {}
    }
}

/// Passes bytes both ways until either side is gone.
async fn pass(terminal: LiveTerminal, socket: WebSocket) -> io::Result<()> {
    let LiveTerminal { mut input, mut output, .. } = terminal;
    let (mut to, from) = socket.split();
    let mut from = Box::pin(sockets::listen(from));
    let shown = async {
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            let next = tokio::select! {
                piece = output.next() => match piece {
                    Some(piece) => Message::Binary(piece?),
                    None => return Ok::<_, io::Error>(()),
                },
                _ = heartbeat.tick() => Message::Ping(Default::default()),
            };
            to.send(next).await.map_err(io::Error::other)?;
        }
    };
    let typed = async {
        while let Some(message) = from.next().await {
            let event = match message? {
                Message::Binary(typed) => TerminalInput::Typed(typed),
                Message::Text(text) => {
                    let Asked::Resize { columns, rows } =
                        serde_json::from_str(&text).map_err(io::Error::other)?;
                    TerminalInput::Resized(TerminalSize { columns, rows }.bounded())
                }
                Message::Close(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                Message::Ping(_) | Message::Pong(_) => continue,
            };
            input.send(event).await?;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    };
    tokio::select! {
        ended = shown => ended?,
        ended = typed => return ended,
    }
    let ending = async {
        to.send(message(&Said::Ended)).await?;
        to.close().await
    };
    let _ = tokio::time::timeout(LAST_WORDS, ending).await;
    Ok(())
}

fn message(said: &Said) -> Message {
    Message::Text(serde_json::to_string(said).unwrap_or_default().into())
}
