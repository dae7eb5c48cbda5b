//! What goes over the wire for a checkpoint: changes from the guest, and a whole tree to it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{CheckpointNumber, LinkTarget, WorkspacePath};
use crate::step::ToolError;
use crate::wire::{Frame, Reply, WireError};

/// Something in the workspace that is new, another, or gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub path: WorkspacePath,
    pub what: What,
}

/// What stands at a path now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum What {
    /// Nothing, and nothing below it.
    Gone,
    Folder {
        mode: u32,
    },
    Symlink {
        target: LinkTarget,
    },
    /// Its content follows.
    File {
        mode: u32,
        bytes: u64,
        /// Nanoseconds since 1970.
        modified: i64,
    },
}

/// One frame of the answer to a request for a checkpoint.
#[derive(Debug)]
pub enum ChangeReply {
    /// Comes first: what follows are the changes since this checkpoint, or all that there is.
    Since(Option<CheckpointNumber>),
    Change(Change),
    /// A piece of the file whose change came last.
    Data(Bytes),
    /// That file is over; the text says why it is not whole.
    FileEnd(Option<String>),
    /// All was said.
    End,
    Refused(ToolError),
}

impl ChangeReply {
    pub fn read(frame: Frame) -> Result<Self, WireError> {
        const EXPECTED: &str = "a change of the workspace";
        Ok(match frame {
            Frame::Data(piece) => Self::Data(piece),
            Frame::Output(..) => {
                return Err(WireError::OutOfTurn { expected: EXPECTED, got: "output" });
            }
            Frame::Message(text) => match Reply::parse(&text)? {
                Reply::Changes { since } => Self::Since(since),
                Reply::Change { change } => Self::Change(change),
                Reply::EntryEnd { error } => Self::FileEnd(error),
                Reply::End => Self::End,
                Reply::Error { error } => Self::Refused(error),
                other => {
                    return Err(WireError::OutOfTurn { expected: EXPECTED, got: other.name() });
                }
            },
        })
    }
}
