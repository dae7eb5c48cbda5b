//! Shows a desktop to a viewer: passes its pictures on, and what the viewer does only while the
//! viewer has the desktop in hand.
//!
//! There is no process for a viewer, and nothing is held: who is slow to take pictures gets fewer.

mod handshake;
mod messages;
mod password;
mod viewer;

use std::io;
use std::time::Duration;

use bellglass_protocol::id::JobId;
use bytes::{Bytes, BytesMut};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

pub(crate) use handshake::HandshakeError;
use messages::{Kind, ViewerMessage, ViewerMessages};
pub(crate) use password::{VncPassword, VncPasswords};
pub(crate) use viewer::Viewer;
use viewer::{Asked, FromViewer, Said, ToViewer};

use crate::SharedServer;
use crate::live::{LiveError, LiveStream, Taken};
use crate::relay::reach;
use crate::sockets::HEARTBEAT;

/// How much of a picture goes into one message.
const PIECE: usize = 64 << 10;

/// A native viewer has no button to hand the desktop back: it does so by doing nothing.
const NATIVE_REST: Duration = Duration::from_secs(10);

/// Words for a page that wait to be sent.
const MOST_WORDS: usize = 8;

/// How a viewer comes to have the desktop in hand.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Grip {
    /// It asks for it, and gives it back.
    OnRequest,
    /// By what it does, for a while.
    OnInput,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShowError {
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("the desktop's VNC server: {0}")]
    Server(#[source] HandshakeError),
    #[error("the viewer: {0}")]
    Viewer(#[source] HandshakeError),
}

impl ShowError {
    /// The same for the page.
    fn said(&self) -> Said {
        let code = match self {
            Self::Live(LiveError::Taken(_)) => "desktop_taken",
            Self::Live(LiveError::Tool(error)) if error.code == "no_desktop" => "no_desktop",
            Self::Live(LiveError::NotRunning) => "not_running",
            Self::Live(_) | Self::Server(_) | Self::Viewer(_) => "sandbox_unreachable",
        };
        let message = self.to_string().chars().filter(|c| !c.is_control()).take(500).collect();
        Said::Refused { code: code.into(), message }
    }
}

/// Who is shown what.
pub(crate) struct Showing {
    pub server: SharedServer,
    pub job: JobId,
    pub by: String,
    pub grip: Grip,
    pub password: Option<VncPassword>,
}

impl Showing {
    /// Shows the desktop until either side is gone, or the server is to stop.
    pub(crate) async fn to(self, mut viewer: Viewer) -> Result<(), ShowError> {
        // Before the sandbox is bothered: who does not know the password starts no desktop.
        let greeted = handshake::with_viewer(&mut viewer, self.password.as_ref()).await;
        greeted.map_err(ShowError::Viewer)?;
        let (desktop, said) = match self.open().await {
            Ok(opened) => opened,
            Err(error) => {
                viewer.say(error.said()).await;
                return Err(error);
            }
        };
        let sent = viewer.send(said).await;
        sent.map_err(|error| ShowError::Viewer(error.into()))?;
        let stopping = self.server.stopping.clone();
        tokio::select! {
            () = self.pass(viewer, desktop) => {}
            () = stopping.cancelled() => {}
        }
        Ok(())
    }

    async fn open(&self) -> Result<(LiveStream, Bytes), ShowError> {
        let mut desktop = reach::view_desktop(&self.server, self.job, &self.by).await?;
        let said = handshake::with_server(&mut desktop).await.map_err(ShowError::Server)?;
        Ok((desktop, said))
    }

    async fn pass(self, viewer: Viewer, desktop: LiveStream) {
        let Viewer { mut to, mut from, ahead } = viewer;
        let (pictures, mut input) = tokio::io::split(desktop);
        let (words, mut waiting) = mpsc::channel(MOST_WORDS);
        let shown = async move {
            let mut pictures = Pictures { from: pictures, buffer: BytesMut::new() };
            let mut heartbeat = tokio::time::interval(HEARTBEAT);
            loop {
                let item = tokio::select! {
                    piece = pictures.next() => ToViewer::Bytes(piece?),
                    _ = heartbeat.tick() => ToViewer::Heartbeat,
                    Some(said) = waiting.recv() => ToViewer::Said(said),
                };
                to.send(item).await?;
            }
        };
        let done = async move {
            let mut hand = Hand { showing: self, taken: None, rests_at: Instant::now(), words };
            let mut messages = ViewerMessages::default();
            hand.take_in(&mut messages, &ahead, &mut input).await?;
            loop {
                let rest = hand.rests_at;
                tokio::select! {
                    item = from.next() => match item {
                        Some(Ok(FromViewer::Bytes(bytes))) => {
                            hand.take_in(&mut messages, &bytes, &mut input).await?;
                        }
                        Some(Ok(FromViewer::Asked(asked))) => hand.hear(asked).await,
                        Some(Err(error)) => return Err(error),
                        None => return Ok(()),
                    },
                    () = sleep_until(rest), if hand.rests() => drop(hand.taken.take()),
                }
            }
        };
        // Whichever side goes first, the other has nothing left to do.
        let _: io::Result<()> = tokio::select! {
            ended = shown => ended,
            ended = done => ended,
        };
    }
}

/// What the desktop sends, as large as it comes.
struct Pictures {
    from: ReadHalf<LiveStream>,
    buffer: BytesMut,
}

impl Pictures {
    async fn next(&mut self) -> io::Result<Bytes> {
        self.buffer.reserve(PIECE);
        match self.from.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(self.buffer.split().freeze()),
        }
    }
}

/// Whether the viewer has the desktop in hand, and what it does with it.
struct Hand {
    showing: Showing,
    taken: Option<Taken>,
    rests_at: Instant,
    words: mpsc::Sender<Said>,
}

impl Hand {
    fn rests(&self) -> bool {
        self.showing.grip == Grip::OnInput && self.taken.is_some()
    }

    async fn hear(&mut self, asked: Asked) {
        let said = match asked {
            Asked::Take => match self.take().await {
                Ok(()) => Said::Taken,
                Err(error) => ShowError::from(error).said(),
            },
            Asked::Return => {
                self.taken = None;
                Said::Returned
            }
            Asked::Ping => Said::Pong,
        };
        // A page that does not take in what it is told is told less.
        let _ = self.words.try_send(said);
    }

    async fn take(&mut self) -> Result<(), LiveError> {
        if self.taken.is_none() {
            let Showing { server, job, by, .. } = &self.showing;
            self.taken = Some(reach::take_desktop(server, *job, by).await?);
        }
        Ok(())
    }

    async fn take_in(
        &mut self,
        messages: &mut ViewerMessages,
        bytes: &[u8],
        input: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        messages.push(bytes);
        while let Some(message) = messages.next().map_err(io::Error::other)? {
            if self.may(&message).await {
                input.write_all(&message.bytes).await?;
            }
        }
        input.flush().await
    }

    async fn may(&mut self, message: &ViewerMessage) -> bool {
        match message.kind {
            Kind::Wish => true,
            Kind::Refused => false,
            Kind::Input => {
                if self.showing.grip == Grip::OnInput {
                    self.rests_at = Instant::now() + NATIVE_REST;
                    // If another person has it, this one looks on.
                    let _ = self.take().await;
                }
                self.taken.is_some()
            }
        }
    }
}
