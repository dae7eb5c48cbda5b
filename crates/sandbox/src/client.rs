//! Speaks to a guest over its wire. Everything it hears is hostile: bounded, checked, timed.

mod openings;
mod relayed;
mod tunnel;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::checkpoint::{Change, ChangeReply, CheckpointNumber};
use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Screen;
use bellglass_protocol::mux::{End, Mux, MuxError, MuxStream, multiplex};
use bellglass_protocol::report::Probe;
use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::{
    CallResult, DATA_CHUNK, Entry, Equipment, Frame, FrameCodec, Language, MAX_LISTED_NAMES,
    PROTOCOL_VERSION, PackReply, Packed, Receipt, Reply, Request, WireError,
};
use bytes::Bytes;
use futures::stream::{BoxStream, SplitSink, SplitStream};
use futures::{SinkExt as _, Stream, StreamExt as _};
use tokio::sync::Semaphore;
use tokio_util::codec::Framed;
use tokio_util::sync::CancellationToken;

use crate::backend::{SideDoor, WireStream};
use crate::egress::Egress;

use openings::{MOST_OPENINGS, OpenedWayOut, take_openings};

pub use tunnel::{OpenTerminal, TerminalInput, TerminalOutput, Tunnel};

/// How long the guest may be silent in an exchange that needs no tool to run.
const PATIENCE: Duration = Duration::from_secs(30);

/// Entries of one folder that are taken from a guest.
const MOST_ENTRIES: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the wire to the guest broke")]
    Mux(#[from] MuxError),
    #[error("the guest broke the protocol")]
    Wire(#[from] WireError),
    #[error("the guest speaks protocol {0}, this program speaks {PROTOCOL_VERSION}")]
    Version(u32),
    #[error("the guest did not answer in time")]
    Silent,
    #[error("{}", .0.message)]
    Refused(ToolError),
    #[error("could not keep what the guest sent")]
    Sink(#[source] io::Error),
    #[error("could not read what to send to the guest")]
    Source(#[source] io::Error),
}

/// Takes a call's output as it comes.
#[async_trait]
pub trait OutputSink: Send {
    /// Keeps a piece of output. Once this returns, the guest forgets the piece.
    async fn output(&mut self, stream: OutputStream, piece: Bytes) -> io::Result<()>;
}

/// One guest.
#[derive(Clone, Debug)]
pub struct GuestClient {
    mux: Mux,
    patience: Duration,
    way_out: Arc<OpenedWayOut>,
    side_door: Option<Arc<SideDoor>>,
    /// Cancelled when the wire is gone. Unlike `mux` it does not hold it open.
    wire_end: CancellationToken,
}

impl GuestClient {
    /// Takes the wire and exchanges greetings. For how long the guest's is waited is the caller's to say: it may
    /// not be there yet.
    pub async fn connect(wire: Box<dyn WireStream>) -> Result<(Self, Probe), ClientError> {
        let (mux, incoming, driver) = multiplex(wire, End::Worker);
        let wire_end = CancellationToken::new();
        let ending = wire_end.clone().drop_guard();
        tokio::spawn(async move {
            let _ending = ending;
            driver.await
        });
        let way_out = Arc::new(OpenedWayOut::default());
        let places = Arc::new(Semaphore::new(MOST_OPENINGS));
        tokio::spawn(take_openings(incoming, way_out.clone(), places, wire_end.clone()));
        let client = Self { mux, way_out, patience: PATIENCE, side_door: None, wire_end };
        let mut exchange = client.begin(&Request::Hello { protocol: PROTOCOL_VERSION }).await?;
        exchange.patience = Duration::MAX;
        match exchange.reply().await? {
            Reply::Welcome { protocol: PROTOCOL_VERSION, probe, .. } => Ok((client, *probe)),
            Reply::Welcome { protocol, .. } => Err(ClientError::Version(protocol)),
            other => Err(out_of_turn("a welcome", &other)),
        }
    }

    /// The same guest, past which this door leads.
    pub(crate) fn with_side_door(self, door: Option<SideDoor>) -> Self {
        Self { side_door: door.map(Arc::new), ..self }
    }

    /// For those who cannot wait as long as usual for a guest that says nothing.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Runs a tool, or joins the call with this id if the guest knows it. Returns when it has ended.
    ///
    /// `received` says how much of its output is kept already. There is no time-out here: the guest
    /// keeps `time`, and whoever does not trust that wraps this in a time-out of its own.
    pub async fn call(
        &self,
        id: &CallId,
        call: &ToolCall,
        time: Duration,
        received: u64,
        sink: &mut dyn OutputSink,
    ) -> Result<CallResult, ClientError> {
        let timeout_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let request = Request::Call { id: id.clone(), call: call.clone(), timeout_ms, received };
        let mut exchange = self.begin(&request).await?;
        let mut received = received;
        loop {
            match exchange.frame().await? {
                Frame::Output(stream, piece) => {
                    received += piece.len() as u64;
                    sink.output(stream, piece).await.map_err(ClientError::Sink)?;
                    exchange.send(Frame::message(&Receipt::Received { bytes: received })).await?;
                }
                Frame::Message(text) => match parse(&text)? {
                    Reply::Done { result } => return Ok(result),
                    Reply::Error { error } => return Err(ClientError::Refused(error)),
                    other => return Err(out_of_turn("output or a result", &other)),
                },
                Frame::Data(_) => return Err(unexpected("output or a result", "file data")),
            }
        }
    }

    /// Lets the guest know that its worker is there and awake.
    pub async fn attend(&self) -> Result<(), ClientError> {
        self.simple(&Request::Attend).await
    }

    /// Kills a running call; whoever waits for it then gets its result.
    pub async fn cancel_call(&self, id: &CallId) -> Result<(), ClientError> {
        self.simple(&Request::CancelCall { id: id.clone() }).await
    }

    /// Lets the guest forget a call whose result is safe.
    pub async fn forget_call(&self, id: &CallId) -> Result<(), ClientError> {
        self.simple(&Request::ForgetCall { id: id.clone() }).await
    }

    /// A file of the workspace: its size as the guest tells it, and its content.
    pub async fn read_file(&self, path: &str) -> Result<(u64, FileStream), ClientError> {
        self.read(&Request::ReadFile { path: path.into() }).await
    }

    async fn read(&self, request: &Request) -> Result<(u64, FileStream), ClientError> {
        let mut exchange = self.begin(request).await?;
        match exchange.reply().await? {
            Reply::File { bytes } => Ok((bytes, exchange.file_data())),
            Reply::Error { error } => Err(ClientError::Refused(error)),
            other => Err(out_of_turn("a file", &other)),
        }
    }

    /// Something beside text that a call gave: its size as the guest tells it, and its content.
    pub async fn read_attachment(
        &self,
        id: &CallId,
        index: u32,
    ) -> Result<(u64, FileStream), ClientError> {
        self.read(&Request::ReadAttachment { id: id.clone(), index }).await
    }

    /// All that was run in the kernel of a language, as a notebook.
    pub async fn read_notebook(
        &self,
        language: Language,
    ) -> Result<(u64, FileStream), ClientError> {
        self.read(&Request::ReadNotebook { language }).await
    }

    /// What the screen shows, where there is one: a PNG.
    pub async fn read_screen(&self) -> Result<(u64, FileStream), ClientError> {
        self.read(&Request::ReadScreen).await
    }

    /// Has the kernel of a language started before it is needed.
    pub async fn warm_kernel(&self, language: Language) -> Result<(), ClientError> {
        self.simple(&Request::WarmKernel { language }).await
    }

    /// Starts the sandbox's desktop.
    pub async fn start_desktop(&self, screen: Screen) -> Result<(), ClientError> {
        self.simple(&Request::StartDesktop { screen }).await
    }

    /// Puts a file into the workspace.
    pub async fn write_file(
        &self,
        path: &str,
        executable: bool,
        mut content: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<(), ClientError> {
        let request = Request::WriteFile { path: path.into(), executable };
        let mut exchange = self.begin(&request).await?;
        while let Some(piece) = content.next().await {
            let mut piece = piece.map_err(ClientError::Source)?;
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(DATA_CHUNK));
                exchange.send(Frame::Data(part)).await?;
            }
        }
        exchange.send(Frame::message(&Receipt::EndOfData)).await?;
        exchange.ok().await
    }

    pub async fn delete_file(&self, path: &str) -> Result<(), ClientError> {
        self.simple(&Request::DeleteFile { path: path.into() }).await
    }

    /// What is in a folder of the workspace.
    pub async fn list_folder(&self, path: &str) -> Result<Vec<Entry>, ClientError> {
        let mut exchange = self.begin(&Request::ListFolder { path: path.into() }).await?;
        let (mut entries, mut room) = (Vec::new(), MAX_LISTED_NAMES);
        loop {
            match exchange.reply().await? {
                Reply::Entry { entry }
                    if entries.len() < MOST_ENTRIES && entry.name_bytes() <= room =>
                {
                    room -= entry.name_bytes();
                    entries.push(entry);
                }
                Reply::Entry { .. } | Reply::End => return Ok(entries),
                Reply::Error { error } => return Err(ClientError::Refused(error)),
                other => return Err(out_of_turn("a folder's entry", &other)),
            }
        }
    }

    /// The whole workspace, piece by piece.
    pub async fn pack(&self) -> Result<Packing, ClientError> {
        Ok(Packing { exchange: self.begin(&Request::Pack).await? })
    }

    /// What has changed in the workspace since a checkpoint, piece by piece.
    pub async fn checkpoint(
        &self,
        since: Option<CheckpointNumber>,
        number: CheckpointNumber,
        most_bytes: u64,
    ) -> Result<Changing, ClientError> {
        let request = Request::Checkpoint { since, number, most_bytes };
        Ok(Changing { exchange: self.begin(&request).await? })
    }

    /// Begins to make the workspace something else.
    pub async fn restore(&self, number: CheckpointNumber) -> Result<Restoring, ClientError> {
        Ok(Restoring { exchange: self.begin(&Request::Restore { number }).await? })
    }

    /// Starts a program that is spoken to over its standard input and output.
    pub async fn start_service(
        &self,
        command: &[String],
        environment: &BTreeMap<String, String>,
    ) -> Result<Service, ClientError> {
        let (command, environment) = (command.to_vec(), environment.clone());
        let mut exchange = self.begin(&Request::StartService { command, environment }).await?;
        exchange.ok().await?;
        let (input, output) = exchange.frames.split();
        Ok(Service { input: ServiceInput(input), output: ServiceOutput(output) })
    }

    /// Gives the sandbox a way out, and its programs what they need to use it.
    pub async fn open_way_out(
        &self,
        egress: Arc<Egress>,
        equipment: Equipment,
    ) -> Result<(), ClientError> {
        self.way_out.set(egress);
        self.simple(&Request::OpenWayOut { equipment }).await
    }

    /// Returns once the wire is closed, by whichever side.
    pub async fn closed(&self) {
        self.mux.closed().await;
    }

    async fn simple(&self, request: &Request) -> Result<(), ClientError> {
        self.begin(request).await?.ok().await
    }

    async fn begin(&self, request: &Request) -> Result<Exchange, ClientError> {
        let opened = tokio::time::timeout(self.patience, self.mux.open()).await;
        let stream = opened.map_err(|_| ClientError::Silent)??;
        let frames = Framed::new(stream, FrameCodec::for_worker());
        let mut exchange = Exchange { frames, patience: self.patience };
        exchange.send(Frame::message(request)).await?;
        Ok(exchange)
    }
}

/// Content of a file as it arrives.
pub type FileStream = BoxStream<'static, io::Result<Bytes>>;

/// A program in the sandbox that is spoken to. It ends when both of its ends are dropped.
pub struct Service {
    pub input: ServiceInput,
    pub output: ServiceOutput,
}

pub struct ServiceInput(SplitSink<Framed<MuxStream, FrameCodec>, Frame>);

pub struct ServiceOutput(SplitStream<Framed<MuxStream, FrameCodec>>);

impl ServiceInput {
    pub async fn write(&mut self, text: &[u8]) -> Result<(), ClientError> {
        for piece in text.chunks(DATA_CHUNK) {
            self.0.send(Frame::Data(Bytes::copy_from_slice(piece))).await?;
        }
        Ok(())
    }
}

impl ServiceOutput {
    /// What the program wrote next; `None` when it has ended.
    pub async fn read(&mut self) -> Result<Option<(OutputStream, Bytes)>, ClientError> {
        match self.0.next().await {
            None => Ok(None),
            Some(frame) => match frame? {
                Frame::Output(stream, piece) => Ok(Some((stream, piece))),
                Frame::Message(text) => match parse(&text)? {
                    Reply::End => Ok(None),
                    Reply::Error { error } => Err(ClientError::Refused(error)),
                    other => Err(out_of_turn("a service's output", &other)),
                },
                Frame::Data(_) => Err(unexpected("a service's output", "file data")),
            },
        }
    }
}

/// The workspace on its way out.
pub struct Packing {
    exchange: Exchange,
}

impl Packing {
    /// The next piece; `None` when all was sent.
    pub async fn next(&mut self) -> Result<Option<Packed>, ClientError> {
        match PackReply::read(self.exchange.frame_in_time().await?)? {
            PackReply::Piece(piece) => Ok(Some(piece)),
            PackReply::End => Ok(None),
            PackReply::Refused(error) => Err(ClientError::Refused(error)),
        }
    }
}

/// What has changed in a workspace, on its way out.
pub struct Changing {
    exchange: Exchange,
}

impl Changing {
    pub async fn next(&mut self) -> Result<ChangeReply, ClientError> {
        match ChangeReply::read(self.exchange.frame_in_time().await?)? {
            ChangeReply::Refused(error) => Err(ClientError::Refused(error)),
            reply => Ok(reply),
        }
    }
}

/// A workspace on its way in.
pub struct Restoring {
    exchange: Exchange,
}

impl Restoring {
    /// Puts something in, folders before what is in them; a file's content follows.
    pub async fn put(&mut self, change: &Change) -> Result<(), ClientError> {
        self.exchange.feed(Frame::message(change)).await
    }

    pub async fn data(&mut self, mut content: Bytes) -> Result<(), ClientError> {
        while !content.is_empty() {
            let part = content.split_to(content.len().min(DATA_CHUNK));
            self.exchange.feed(Frame::Data(part)).await?;
        }
        Ok(())
    }

    /// Everything was said; returns when it is done.
    pub async fn finish(mut self) -> Result<(), ClientError> {
        self.exchange.send(Frame::message(&Receipt::EndOfData)).await?;
        self.exchange.ok().await
    }
}

/// One stream of the wire, from the request to its last reply.
struct Exchange {
    frames: Framed<MuxStream, FrameCodec>,
    patience: Duration,
}

impl Exchange {
    async fn send(&mut self, frame: Frame) -> Result<(), ClientError> {
        let sent = tokio::time::timeout(self.patience, self.frames.send(frame)).await;
        Ok(sent.map_err(|_| ClientError::Silent)??)
    }

    /// Sends together with what follows, once that is enough.
    async fn feed(&mut self, frame: Frame) -> Result<(), ClientError> {
        let fed = tokio::time::timeout(self.patience, self.frames.feed(frame)).await;
        Ok(fed.map_err(|_| ClientError::Silent)??)
    }

    async fn frame(&mut self) -> Result<Frame, ClientError> {
        Ok(self.frames.next().await.ok_or(WireError::EndedEarly)??)
    }

    async fn frame_in_time(&mut self) -> Result<Frame, ClientError> {
        tokio::time::timeout(self.patience, self.frame()).await.map_err(|_| ClientError::Silent)?
    }

    async fn reply(&mut self) -> Result<Reply, ClientError> {
        match self.frame_in_time().await? {
            Frame::Message(text) => parse(&text),
            _ => Err(unexpected("a reply", "raw data")),
        }
    }

    async fn ok(&mut self) -> Result<(), ClientError> {
        match self.reply().await? {
            Reply::Ok => Ok(()),
            Reply::Error { error } => Err(ClientError::Refused(error)),
            other => Err(out_of_turn("a confirmation", &other)),
        }
    }

    /// The data frames up to the end, as a stream.
    fn file_data(self) -> FileStream {
        futures::stream::try_unfold(self, |mut exchange| async move {
            match exchange.frame_in_time().await.map_err(io::Error::other)? {
                Frame::Data(piece) => Ok(Some((piece, exchange))),
                Frame::Message(text) => match parse(&text).map_err(io::Error::other)? {
                    Reply::End => Ok(None),
                    Reply::Error { error } => Err(io::Error::other(error.message)),
                    other => Err(io::Error::other(out_of_turn("a file's data", &other))),
                },
                Frame::Output(..) => Err(io::Error::other("output came in a file's place")),
            }
        })
        .boxed()
    }
}

fn parse(text: &[u8]) -> Result<Reply, ClientError> {
    Ok(Reply::parse(text)?)
}

fn out_of_turn(expected: &'static str, got: &Reply) -> ClientError {
    unexpected(expected, got.name())
}

fn unexpected(expected: &'static str, got: &'static str) -> ClientError {
    WireError::OutOfTurn { expected, got }.into()
}
