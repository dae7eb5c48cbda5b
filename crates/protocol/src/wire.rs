//! What travels through the glass: frames, and the requests and replies inside them.
//!
//! Each stream of the wire is one exchange. The worker opens it and sends a [`Request`]; the guest
//! answers with [`Reply`] messages and, between them, raw output or file data. The worker never
//! trusts a length, a count or a name that comes back.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio_util::codec::{Decoder, Encoder};

use crate::checkpoint::{Change, CheckpointNumber};
use crate::id::CallId;
use crate::job::Screen;
use crate::report::Probe;
use crate::step::{OutputStream, StepStatus, ToolError};
use crate::tool::ToolCall;
use crate::tunnel::{Inside, ListeningPort, MAX_PORTS, Terminal, TerminalSize};

/// Raised with every change that an older peer would misunderstand.
pub const PROTOCOL_VERSION: u32 = 2;

/// The largest frame that the worker takes from a guest.
pub const MAX_FRAME_FROM_GUEST: usize = 1 << 20;

/// The largest frame that a guest takes from the worker: a tool call with a file's content in it.
pub const MAX_FRAME_FROM_WORKER: usize = 64 << 20;

/// The longest greeting that the worker takes: it stands in the job's log for good.
pub const MAX_WELCOME: usize = 64 << 10;

/// All names of one folder together, as far as the worker takes them.
pub const MAX_LISTED_NAMES: usize = 8 << 20;

/// The longest message of an error that the worker keeps, and the longest code.
pub const MAX_ERROR_MESSAGE: usize = 16 << 10;
pub const MAX_ERROR_CODE: usize = 64;

/// How much raw data goes into one frame.
pub const DATA_CHUNK: usize = 64 << 10;

/// Output that the guest holds for a worker that has not confirmed it. A process that writes more
/// waits, so a slow or absent worker costs bounded memory and loses nothing.
pub const OUTPUT_WINDOW: usize = 1 << 20;

/// The port on the sandbox's loopback where its programs find the proxy, their only way out.
pub const EGRESS_PORT: u16 = 3128;

/// One frame: a kind, a length, and so many bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A [`Request`], [`Reply`] or [`Receipt`] as JSON.
    Message(Bytes),
    /// What a process wrote.
    Output(OutputStream, Bytes),
    /// A piece of a file.
    Data(Bytes),
}

impl Frame {
    pub fn message<T: Serialize>(message: &T) -> Self {
        let text = serde_json::to_vec(message).expect("a message is always writable as JSON");
        Self::Message(text.into())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("the wire broke")]
    Io(#[from] std::io::Error),
    #[error("a frame of {length} bytes is larger than the {limit} allowed")]
    FrameTooLarge { length: usize, limit: usize },
    #[error("a frame of unknown kind {0}")]
    UnknownFrame(u8),
    #[error("a message that cannot be read")]
    BadMessage(#[from] serde_json::Error),
    #[error("{got} came where {expected} was due")]
    OutOfTurn { expected: &'static str, got: &'static str },
    #[error("the other side ended the exchange early")]
    EndedEarly,
}

/// Reads and writes frames.
#[derive(Clone, Debug)]
pub struct FrameCodec {
    largest: usize,
}

impl FrameCodec {
    /// For the worker's end of a stream.
    pub fn for_worker() -> Self {
        Self { largest: MAX_FRAME_FROM_GUEST }
    }

    /// For the guest's end of a stream.
    pub fn for_guest() -> Self {
        Self { largest: MAX_FRAME_FROM_WORKER }
    }
}

const HEADER: usize = 5;

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = WireError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, WireError> {
        if buffer.len() < HEADER {
            return Ok(None);
        }
        let kind = buffer[0];
        if kind > 3 {
            return Err(WireError::UnknownFrame(kind));
        }
        let length = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]) as usize;
        if length > self.largest {
            return Err(WireError::FrameTooLarge { length, limit: self.largest });
        }
        if buffer.len() < HEADER + length {
            // Room is made as data arrives: a mere header must not cost a large allocation.
            buffer.reserve(length.min(DATA_CHUNK));
            return Ok(None);
        }
        buffer.advance(HEADER);
        let body = buffer.split_to(length).freeze();
        Ok(Some(match kind {
            0 => Frame::Message(body),
            1 => Frame::Output(OutputStream::Stdout, body),
            2 => Frame::Output(OutputStream::Stderr, body),
            _ => Frame::Data(body),
        }))
    }
}

impl Encoder<Frame> for FrameCodec {
    type Error = WireError;

    fn encode(&mut self, frame: Frame, buffer: &mut BytesMut) -> Result<(), WireError> {
        let (kind, body) = match frame {
            Frame::Message(body) => (0, body),
            Frame::Output(OutputStream::Stdout, body) => (1, body),
            Frame::Output(OutputStream::Stderr, body) => (2, body),
            Frame::Data(body) => (3, body),
        };
        let length = u32::try_from(body.len()).map_err(|_| WireError::FrameTooLarge {
            length: body.len(),
            limit: u32::MAX as usize,
        })?;
        buffer.reserve(HEADER + body.len());
        buffer.put_u8(kind);
        buffer.put_u32(length);
        buffer.put_slice(&body);
        Ok(())
    }
}

/// What the worker asks for with the first frame of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// Answered by [`Reply::Welcome`].
    Hello { protocol: u32 },
    /// Runs a tool, or joins the call that already has this id. Answered by output frames and then
    /// [`Reply::Done`]; the worker confirms output with [`Receipt`]s on the same stream.
    Call {
        id: CallId,
        call: ToolCall,
        timeout_ms: u64,
        /// Output bytes of this call that the worker has kept safe already.
        received: u64,
    },
    /// Kills a running call; its stream then gets [`Reply::Done`]. Answered by [`Reply::Ok`].
    CancelCall { id: CallId },
    /// The result of this call is safe; the guest may forget it. Answered by [`Reply::Ok`].
    ForgetCall { id: CallId },
    /// What a call gave beside text, counted from 0. Answered as [`Request::ReadFile`].
    ReadAttachment { id: CallId, index: u32 },
    /// All that was run in the kernel of a language, as a notebook. Answered as
    /// [`Request::ReadFile`].
    ReadNotebook { language: Language },
    /// The screen of a desktop that runs, as a PNG. Answered as [`Request::ReadFile`].
    ReadScreen,
    /// Starts the kernel of a language before it is needed. Answered by [`Reply::Ok`] at once.
    WarmKernel { language: Language },
    /// Starts the desktop. Answered by [`Reply::Ok`] once it is there; by an error in an image that
    /// has none.
    StartDesktop { screen: Screen },
    /// Answered by [`Reply::File`], data frames and [`Reply::End`], or by [`Reply::Error`].
    ReadFile { path: String },
    /// Followed by data frames and a [`Receipt`] that ends them; answered by [`Reply::Ok`].
    WriteFile { path: String, executable: bool },
    /// Answered by [`Reply::Ok`].
    DeleteFile { path: String },
    /// Answered by one [`Reply::Entry`] for each thing in the folder, and [`Reply::End`].
    ListFolder { path: String },
    /// The whole workspace: for each thing in it [`Reply::Entry`], for a file then data frames and
    /// [`Reply::EntryEnd`]; at last [`Reply::End`].
    Pack,
    /// What is other in the workspace than it was at checkpoint `since`, or all of it where the guest
    /// does not know that one. Answered by [`Reply::Changes`]; for each change [`Reply::Change`], for
    /// a file then data frames and [`Reply::EntryEnd`]; at last [`Reply::End`]. The guest remembers
    /// what it said under `number`, and forgets all earlier ones once it is asked for changes since.
    Checkpoint {
        since: Option<CheckpointNumber>,
        number: CheckpointNumber,
        /// With more bytes in changed files than this, the guest refuses (`too_large`).
        most_bytes: u64,
    },
    /// Makes the workspace what follows, and nothing else: a message for each [`Change`], folders
    /// before what is in them, after a file's its data frames; then a [`Receipt`] that ends them.
    /// The guest remembers this as checkpoint `number`. Answered by [`Reply::Ok`].
    Restore { number: CheckpointNumber },
    /// Starts a program that is spoken to over its standard input and output. Answered by
    /// [`Reply::Ok`]; then data frames are its input and output frames are its output, until it ends
    /// ([`Reply::End`]) or the stream does, with which the program and all that it started go too.
    StartService { command: Vec<String>, environment: BTreeMap<String, String> },
    /// Gives the sandbox its proxy port, or renews what it was given with it. Answered by
    /// [`Reply::Ok`].
    OpenWayOut { equipment: Equipment },
    /// Says that a worker is there and awake. Answered by [`Reply::Ok`].
    Attend,
    /// Connects to something inside. Answered by [`Reply::Ok`]; then bytes go both ways as they are,
    /// without frames, until a side has closed.
    Connect { to: Inside },
    /// Opens a terminal for a person. Answered by [`Reply::Terminal`]; then data frames are typed and
    /// output frames are shown, until the shell ends ([`Reply::End`]) or the stream does.
    OpenTerminal { terminal: Terminal },
    /// What listens inside. Answered by [`Reply::Ports`].
    ListPorts,
}

/// What a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    TypeScript,
}

/// What programs in a sandbox need to use its way out without being told how. Everything in it is
/// for the sandbox to see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Equipment {
    /// Variables of every program that is started from then on.
    pub environment: BTreeMap<String, String>,
    /// Files of the system, by their absolute paths. Tools can read and not change them.
    pub files: BTreeMap<String, String>,
    /// Folders that belong to the tools.
    #[serde(default)]
    pub folders: Vec<String>,
}

/// What the guest says with the first frame of a stream that it opens itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "open")]
pub enum Opening {
    /// A program connected to the proxy's port. Its bytes follow as they are, without frames.
    Egress,
}

/// What the guest answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum Reply {
    Welcome {
        protocol: u32,
        version: String,
        probe: Box<Probe>,
    },
    Done {
        result: CallResult,
    },
    Ok,
    Error {
        error: ToolError,
    },
    File {
        bytes: u64,
    },
    Entry {
        entry: Entry,
    },
    /// A file's data is over; `error` says why it is not whole.
    EntryEnd {
        error: Option<String>,
    },
    /// The changes that follow are those since this checkpoint, or all that there is.
    Changes {
        since: Option<CheckpointNumber>,
    },
    Change {
        change: Change,
    },
    End,
    /// The terminal is there, and so large.
    Terminal {
        size: TerminalSize,
    },
    Ports {
        ports: Vec<ListeningPort>,
    },
}

impl Reply {
    /// Reads a reply as the worker does: what is kept of it is bounded.
    pub fn parse(text: &[u8]) -> Result<Self, WireError> {
        let reply = serde_json::from_slice(text)?;
        Ok(match reply {
            Self::Welcome { .. } if text.len() > MAX_WELCOME => {
                let (length, limit) = (text.len(), MAX_WELCOME);
                return Err(WireError::FrameTooLarge { length, limit });
            }
            Self::Error { mut error } => {
                error.code.truncate(error.code.floor_char_boundary(MAX_ERROR_CODE));
                error.message.truncate(error.message.floor_char_boundary(MAX_ERROR_MESSAGE));
                Self::Error { error }
            }
            Self::Ports { mut ports } => {
                ports.truncate(MAX_PORTS);
                Self::Ports { ports: ports.into_iter().map(ListeningPort::bounded).collect() }
            }
            reply => reply,
        })
    }
}

impl Reply {
    /// What it is, for those to whom it comes out of turn.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Welcome { .. } => "a welcome",
            Self::Done { .. } => "a result",
            Self::Ok => "a confirmation",
            Self::Error { .. } => "an error",
            Self::File { .. } => "a file",
            Self::Entry { .. } => "an entry",
            Self::EntryEnd { .. } => "an entry's end",
            Self::Changes { .. } => "a list of changes",
            Self::Change { .. } => "a change",
            Self::End => "an end",
            Self::Terminal { .. } => "a terminal",
            Self::Ports { .. } => "a list of ports",
        }
    }
}

/// What comes next out of a workspace that is being packed.
#[derive(Debug)]
pub enum Packed {
    Entry(Entry),
    /// A piece of the file whose entry came last.
    Data(Bytes),
    /// That file is over; the text says why it is not whole.
    FileEnd(Option<String>),
}

/// One frame of the answer to [`Request::Pack`].
#[derive(Debug)]
pub enum PackReply {
    Piece(Packed),
    /// All was sent.
    End,
    Refused(ToolError),
}

impl PackReply {
    pub fn read(frame: Frame) -> Result<Self, WireError> {
        const EXPECTED: &str = "the workspace";
        Ok(Self::Piece(match frame {
            Frame::Data(piece) => Packed::Data(piece),
            Frame::Output(..) => {
                return Err(WireError::OutOfTurn { expected: EXPECTED, got: "output" });
            }
            Frame::Message(text) => match Reply::parse(&text)? {
                Reply::Entry { entry } => Packed::Entry(entry),
                Reply::EntryEnd { error } => Packed::FileEnd(error),
                Reply::End => return Ok(Self::End),
                Reply::Error { error } => return Ok(Self::Refused(error)),
                other => {
                    return Err(WireError::OutOfTurn { expected: EXPECTED, got: other.name() });
                }
            },
        }))
    }
}

impl Entry {
    /// Bytes of the names in it.
    pub fn name_bytes(&self) -> usize {
        let target = match &self.kind {
            EntryKind::Symlink { target } => target.len(),
            EntryKind::File | EntryKind::Folder | EntryKind::Other => 0,
        };
        self.path.len() + target
    }
}

/// What the worker says in the middle of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "receipt")]
pub enum Receipt {
    /// So many bytes of a call's output are safe, counted from its beginning.
    Received { bytes: u64 },
    /// All data was sent.
    EndOfData,
    /// The window in which a terminal is shown has this size now.
    Resized { size: TerminalSize },
}

/// How a call ended, as the guest tells it. Its output went before it as frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    pub status: StepStatus,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The answer of a tool that has one beside output, such as a file's lines.
    pub text: Option<String>,
    pub error: Option<ToolError>,
    pub duration_us: u64,
    /// Output bytes of the call in all.
    pub output_bytes: u64,
    /// Processes that the guest ended meanwhile because the sandbox had used up its memory.
    #[serde(default)]
    pub memory_kills: u64,
    /// A remark for whoever reads the output, such as that a program goes on.
    #[serde(default)]
    pub note: Option<String>,
    /// What else the call gave; the worker fetches it by [`Request::ReadAttachment`].
    #[serde(default)]
    pub attachments: Vec<OfferedAttachment>,
}

/// Something beside text that a call gave and the guest holds until the call is forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedAttachment {
    pub media_type: String,
    pub bytes: u64,
}

/// Attachments of one call that are taken from a guest, and the bytes of one of them.
pub const MAX_ATTACHMENTS: usize = 16;
pub const MAX_ATTACHMENT: u64 = 8 << 20;

/// The longest name of a media type that is taken over.
pub const MAX_MEDIA_TYPE: usize = 100;

/// The largest notebook that is taken from a guest.
pub const MAX_NOTEBOOK: u64 = 64 << 20;

/// The largest picture of a screen that is taken from a guest.
pub const MAX_SCREEN: u64 = 64 << 20;

/// Something in the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the workspace (packing) or to the folder (listing); parts separated by `/`.
    pub path: String,
    pub kind: EntryKind,
    /// Unix permission bits.
    pub mode: u32,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Folder,
    Symlink {
        target: String,
    },
    /// A socket, a pipe or a device: nothing that could be packed.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back_whole_and_in_pieces() {
        let frames = [
            Frame::message(&Request::Pack),
            Frame::Output(OutputStream::Stderr, Bytes::from_static(b"oh\xff")),
            Frame::Data(Bytes::new()),
        ];
        let mut bytes = BytesMut::new();
        let mut codec = FrameCodec::for_worker();
        for frame in &frames {
            codec.encode(frame.clone(), &mut bytes).unwrap();
        }
        let mut arrived = BytesMut::new();
        let mut read = Vec::new();
        for byte in bytes {
            arrived.put_u8(byte);
            while let Some(frame) = codec.decode(&mut arrived).unwrap() {
                read.push(frame);
            }
        }
        assert_eq!(read, frames);
    }

    #[test]
    fn a_lying_header_costs_nothing() {
        let mut codec = FrameCodec::for_worker();
        let mut huge = BytesMut::from(&[0, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(matches!(codec.decode(&mut huge), Err(WireError::FrameTooLarge { .. })));
        let mut odd = BytesMut::from(&[9, 0, 0, 0, 0][..]);
        assert!(matches!(codec.decode(&mut odd), Err(WireError::UnknownFrame(9))));
        let mut promised = BytesMut::from(&[0, 0, 0x0f, 0xff, 0xff][..]);
        assert!(codec.decode(&mut promised).unwrap().is_none());
        assert!(promised.capacity() < 2 * DATA_CHUNK);
    }
}
