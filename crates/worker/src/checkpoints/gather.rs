//! Takes in what a guest says has changed. Believes nothing: not its paths, its sizes, nor its counts.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use bellglass_protocol::checkpoint::{
    Change, ChangeReply, CheckpointNumber, Content, MOST_ENTRIES, Node, Spot, Tree, What,
    WorkspacePath,
};
use bellglass_sandbox::client::{Changing, ClientError, GuestClient};
use sha2::{Digest as _, Sha256};

use super::Checkpoints;
use super::spool::Data;
use crate::pack::printable;

/// How long a guest may take for a checkpoint in all.
const TIME: Duration = Duration::from_secs(120);

/// Files that could not be kept are named up to so many.
const MOST_LEFT_OUT: usize = 10;

/// What there is to keep.
pub(super) struct Gathered {
    pub(super) gone: Vec<WorkspacePath>,
    /// In the order in which they came: folders before what is in them.
    pub(super) nodes: Vec<(WorkspacePath, Node)>,
    pub(super) data: Data,
    pub(super) left_out: Vec<String>,
}

/// Why there is nothing that could be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatherError {
    #[error(transparent)]
    Guest(#[from] ClientError),
    #[error("the sandbox broke the rules of a checkpoint: {0}")]
    Lie(&'static str),
    #[error("the checkpoints of the job would hold more than its limit `checkpoints` allows")]
    NoRoom,
    #[error("the checkpoint took too long")]
    TooSlow,
    #[error("the checkpoint could not be written: {0}")]
    Disk(#[from] io::Error),
}

/// Asks for what has changed; `None` if nothing did.
pub(super) async fn gather(
    guest: &GuestClient,
    known: &Checkpoints<'_>,
    number: CheckpointNumber,
    room: u64,
) -> Result<Option<Gathered>, GatherError> {
    // A guest that does not know what we have sends all of it again.
    let again: u64 = known.contents.values().map(|content| content.bytes).sum();
    let most_bytes = room.saturating_add(again);
    let gathered = async {
        let mut changing = guest.checkpoint(known.newest, number, most_bytes).await?;
        let Some(first) = Begun::hear(&mut changing, known.newest).await? else { return Ok(None) };
        let gathering = Gathering {
            known: &known.tree,
            contents: &known.contents,
            fresh: HashMap::new(),
            number,
            room,
            received_most: most_bytes,
            received: 0,
            entries: 0,
            open: None,
            seen: first.is_whole.then(HashSet::new),
            gathered: Gathered {
                gone: Vec::new(),
                nodes: Vec::new(),
                data: Data::new(&known.spools),
                left_out: Vec::new(),
            },
        };
        gathering.run(first.reply, &mut changing).await
    };
    tokio::time::timeout(TIME, gathered).await.unwrap_or(Err(GatherError::TooSlow))
}

/// The first word of the guest, and what came after it.
struct Begun {
    is_whole: bool,
    reply: ChangeReply,
}

impl Begun {
    async fn hear(
        changing: &mut Changing,
        newest: Option<CheckpointNumber>,
    ) -> Result<Option<Self>, GatherError> {
        let since = match changing.next().await? {
            ChangeReply::Since(since) => since,
            _ => return Err(GatherError::Lie("it did not say what the changes are since")),
        };
        if since.is_some() && since != newest {
            return Err(GatherError::Lie("it spoke of another checkpoint"));
        }
        let reply = changing.next().await?;
        let is_whole = since.is_none();
        let is_over = matches!(reply, ChangeReply::End) && !is_whole;
        Ok((!is_over).then_some(Self { is_whole, reply }))
    }
}

struct Gathering<'a> {
    known: &'a Tree,
    contents: &'a HashMap<[u8; 32], Content>,
    /// The contents that are new with this checkpoint.
    fresh: HashMap<[u8; 32], Content>,
    number: CheckpointNumber,
    room: u64,
    received_most: u64,
    received: u64,
    entries: usize,
    open: Option<OpenFile>,
    /// All that was named, where what is not named is gone.
    seen: Option<HashSet<WorkspacePath>>,
    gathered: Gathered,
}

/// The file whose bytes come now.
struct OpenFile {
    path: WorkspacePath,
    mode: u32,
    modified: i64,
    promised: u64,
    came: u64,
    /// Where its bytes begin among those of the checkpoint.
    start: u64,
    hash: Sha256,
}

impl Gathering<'_> {
    async fn run(
        mut self,
        first: ChangeReply,
        changing: &mut Changing,
    ) -> Result<Option<Gathered>, GatherError> {
        let mut reply = first;
        loop {
            match reply {
                ChangeReply::End if self.open.is_none() => break,
                ChangeReply::End => return Err(GatherError::Lie("it ended within a file")),
                ChangeReply::Since(_) => return Err(GatherError::Lie("it began twice")),
                ChangeReply::Change(change) => self.change(change)?,
                ChangeReply::Data(piece) => self.data(&piece)?,
                ChangeReply::FileEnd(error) => self.file_end(error)?,
                ChangeReply::Refused(error) => return Err(ClientError::Refused(error).into()),
            }
            reply = changing.next().await?;
        }
        if let Some(seen) = self.seen.take() {
            let is_gone = |path: &WorkspacePath| !seen.contains(path);
            let gone = self.known.iter().map(|(path, _)| path).filter(|path| {
                is_gone(path) && path.parent().is_none_or(|parent| !is_gone(&parent))
            });
            self.gathered.gone = gone.cloned().collect();
        }
        let is_nothing = self.gathered.gone.is_empty() && self.gathered.nodes.is_empty();
        Ok((!is_nothing).then_some(self.gathered))
    }

    fn change(&mut self, Change { path, what }: Change) -> Result<(), GatherError> {
        if self.open.is_some() {
            return Err(GatherError::Lie("a file had no end"));
        }
        self.entries += 1;
        if self.entries > 2 * MOST_ENTRIES {
            return Err(GatherError::Lie("it named more than a workspace can hold"));
        }
        if let Some(seen) = &mut self.seen {
            seen.insert(path.clone());
        }
        match what {
            What::Gone => {
                if let Some(seen) = &mut self.seen {
                    seen.remove(&path);
                } else if self.known.get(&path).is_some() {
                    self.gathered.gone.push(path);
                }
            }
            What::Folder { mode } => self.node(path, Node::Folder { mode: mode & 0o7777 }),
            What::Symlink { target } => self.node(path, Node::Symlink { target }),
            What::File { mode, bytes, modified } => {
                let (start, hash) = (self.gathered.data.bytes(), Sha256::new());
                let (mode, promised) = (mode & 0o7777, bytes);
                self.open = Some(OpenFile { path, mode, modified, promised, came: 0, start, hash });
            }
        }
        Ok(())
    }

    /// Keeps what is another than we know; what is the same need not be said.
    fn node(&mut self, path: WorkspacePath, node: Node) {
        if self.known.get(&path) != Some(&node) {
            self.gathered.nodes.push((path, node));
        }
    }

    fn data(&mut self, piece: &[u8]) -> Result<(), GatherError> {
        let Some(open) = &mut self.open else {
            return Err(GatherError::Lie("bytes came without a file"));
        };
        // Also an empty piece counts, or there could be any number of them.
        self.received += piece.len().max(1) as u64;
        open.came += piece.len() as u64;
        if open.came > open.promised || self.received > self.received_most {
            return Err(GatherError::Lie("it sent more bytes than it said"));
        }
        open.hash.update(piece);
        self.gathered.data.write(piece)?;
        Ok(())
    }

    fn file_end(&mut self, error: Option<String>) -> Result<(), GatherError> {
        let Some(open) = self.open.take() else {
            return Err(GatherError::Lie("a file ended that had not begun"));
        };
        let OpenFile { path, mode, modified, promised, came, start, hash } = open;
        if let Some(error) = error {
            self.gathered.data.cut(start)?;
            if self.gathered.left_out.len() < MOST_LEFT_OUT {
                let (path, error) = (printable(&path.to_string()), printable(&error));
                self.gathered.left_out.push(format!("{path}: {error}"));
            }
            self.node(path, Node::File { mode, modified, content: None });
            return Ok(());
        }
        if came != promised {
            return Err(GatherError::Lie("a file has another size than it said"));
        }
        let sha256: [u8; 32] = hash.finalize().into();
        let known = self.contents.get(&sha256).or_else(|| self.fresh.get(&sha256));
        let content = match known {
            Some(known) => {
                self.gathered.data.cut(start)?;
                known.clone()
            }
            None => {
                let at = Spot { checkpoint: self.number, offset: start };
                let content = Content { sha256, bytes: came, at };
                self.fresh.insert(sha256, content.clone());
                content
            }
        };
        if self.gathered.data.bytes() > self.room {
            return Err(GatherError::NoRoom);
        }
        self.node(path, Node::File { mode, modified, content: Some(content) });
        Ok(())
    }
}
