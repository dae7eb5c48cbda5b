//! `bellglass attach`: a terminal in a job's sandbox, in this terminal.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, bail};
use futures::{SinkExt as _, StreamExt as _};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::output::window;
use crate::render::safe;

/// The key that leaves the terminal: ctrl-].
const LEAVE: u8 = 0x1d;
/// What a shell takes for the end of its input: ctrl-d.
const END_OF_INPUT: u8 = 0x04;

/// What the user does.
enum Typed {
    Bytes(Vec<u8>),
    Leaves,
    /// Standard input is at its end, as that of a script is.
    Ends,
}

pub(super) async fn attach(flags: &cli::Attach) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let stream = client.open_terminal(flags.job, flags.session.as_deref(), window()).await?;
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    match socket.next().await.context("the server said nothing")?? {
        Message::Text(text) => {
            let said: Value = serde_json::from_str(&text)?;
            if said["type"] != "opened" {
                let words = said["message"].as_str().unwrap_or("the terminal was refused");
                bail!("{}", safe(words));
            }
        }
        _ => bail!("the server speaks another protocol; is it of another version?"),
    }
    let raw = RawTerminal::enter()?;
    if raw.is_some() {
        eprint!("attached to {}; ctrl-] leaves, `exit` ends the shell\r\n", flags.job);
    }
    let ended = converse(&mut socket).await;
    drop(raw);
    if ended? == Ended::Left {
        eprintln!("\nleft {}", flags.job);
    }
    let _ = socket.close(None).await;
    Ok(Exit::Success)
}

#[derive(PartialEq)]
enum Ended {
    Left,
    Over,
}

async fn converse<S>(socket: &mut WebSocketStream<S>) -> anyhow::Result<Ended>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut typed = read_input();
    let mut resized = signal(SignalKind::window_change())?;
    let mut stdout = std::io::stdout();
    let mut is_typing = true;
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Binary(shown))) => {
                    stdout.write_all(&shown)?;
                    stdout.flush()?;
                }
                // Nothing but its end is said about a terminal that is open.
                Some(Ok(Message::Text(_) | Message::Close(_))) | None => return Ok(Ended::Over),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("the connection broke"),
            },
            typed = typed.recv(), if is_typing => match typed {
                Some(Typed::Bytes(bytes)) => socket.send(Message::Binary(bytes.into())).await?,
                Some(Typed::Leaves) => return Ok(Ended::Left),
                Some(Typed::Ends) | None => {
                    socket.send(Message::Binary(vec![END_OF_INPUT].into())).await?;
                    // Its answer is still to come.
                    is_typing = false;
                }
            },
            _ = resized.recv() => {
                if let Some((columns, rows)) = window() {
                    let resize = json!({ "type": "resize", "columns": columns, "rows": rows });
                    socket.send(Message::Text(resize.to_string().into())).await?;
                }
            }
        }
    }
}

/// Reads standard input on a thread of its own, which nobody waits for when all is over.
fn read_input() -> mpsc::Receiver<Typed> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let is_terminal = isatty(std::io::stdin().as_fd());
        loop {
            let typed = match std::io::stdin().read(&mut buffer) {
                Ok(0) | Err(_) => Typed::Ends,
                Ok(count) => {
                    let bytes = &buffer[..count];
                    let leaves = bytes.iter().position(|byte| *byte == LEAVE);
                    match leaves.filter(|_| is_terminal) {
                        Some(_) => Typed::Leaves,
                        None => Typed::Bytes(bytes.to_vec()),
                    }
                }
            };
            let is_last = !matches!(typed, Typed::Bytes(_));
            if sender.blocking_send(typed).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// This terminal while every key goes to the sandbox. Dropping it puts the terminal in order.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> anyhow::Result<Option<Self>> {
        let stdin = std::io::stdin();
        if !isatty(stdin.as_fd()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin.as_fd())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}
