//! Checkpoints as artifacts: the bytes of files one after the other, then an index, then its length.
//!
//! One artifact each, so that a checkpoint is there whole or not at all and costs one flush. An index
//! says what is other than in the one before; every so often one says everything, so that a tree is
//! never more than a few reads away.

use bellglass_protocol::checkpoint::{
    CheckpointNumber, Content, Index, Node, Spot, Tree, TreeFault,
};
use bellglass_protocol::id::JobId;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use crate::artifacts::{ArtifactError, ArtifactKey, Artifacts};

/// Checkpoints that build on each other at the most.
pub const LONGEST_CHAIN: usize = 32;

/// The last bytes of every checkpoint; the length of the index stands before them.
const MARK: &[u8; 8] = b"bgckpt01";

const TRAILER: u64 = 16;

/// The longest index that is read. Ours are shorter, by the bounds on a tree.
const LONGEST_INDEX: u64 = 128 << 20;

/// How much is fetched at once: most files are small and lie side by side.
const WINDOW: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    #[error("the checkpoint {0:?} cannot be read: {1}")]
    Damaged(CheckpointNumber, String),
    #[error("the checkpoint {0:?} says what cannot be: {1}")]
    Impossible(CheckpointNumber, TreeFault),
}

/// What follows the bytes of files in a checkpoint.
pub fn ending(index: &Index) -> Vec<u8> {
    let mut text = serde_json::to_vec(index).expect("an index is always writable as JSON");
    let length = text.len() as u64;
    text.extend_from_slice(&length.to_be_bytes());
    text.extend_from_slice(MARK);
    text
}

/// The workspace as it was at a checkpoint.
pub async fn read_tree(
    artifacts: &Artifacts,
    job: JobId,
    number: CheckpointNumber,
) -> Result<Tree, CheckpointError> {
    Ok(read_chain(artifacts, job, number).await?.0)
}

/// The same, and how many checkpoints it builds on.
pub async fn read_chain(
    artifacts: &Artifacts,
    job: JobId,
    number: CheckpointNumber,
) -> Result<(Tree, usize), CheckpointError> {
    let mut chain = Vec::new();
    let mut next = Some(number);
    while let Some(number) = next {
        if chain.len() > LONGEST_CHAIN {
            return Err(CheckpointError::Damaged(number, "it builds on too many others".into()));
        }
        let index = read_index(artifacts, job, number).await?;
        next = index.base;
        chain.push((number, index));
    }
    let (mut tree, length) = (Tree::default(), chain.len() - 1);
    for (number, index) in chain.into_iter().rev() {
        tree.apply(index).map_err(|fault| CheckpointError::Impossible(number, fault))?;
    }
    Ok((tree, length))
}

async fn read_index(
    artifacts: &Artifacts,
    job: JobId,
    number: CheckpointNumber,
) -> Result<Index, CheckpointError> {
    let key = ArtifactKey::checkpoint(job, number);
    let damaged = |why: &str| CheckpointError::Damaged(number, why.into());
    let size = artifacts.size(&key).await?;
    // Most indexes are short, so that one read is enough.
    let guess = size.saturating_sub(64 << 10);
    let mut end = read(artifacts, &key, guess, size).await?;
    let trailer = end.len().checked_sub(TRAILER as usize).map(|at| end.split_off(at));
    let trailer = trailer.ok_or_else(|| damaged("it is too short"))?;
    let (length, mark) = trailer.split_at(8);
    if mark != MARK {
        return Err(damaged("it has no mark at its end"));
    }
    let length = u64::from_be_bytes(length.try_into().unwrap_or_default());
    let start = (size - TRAILER).checked_sub(length).filter(|_| length <= LONGEST_INDEX);
    let start = start.ok_or_else(|| damaged("its index is longer than itself"))?;
    let text = match start.checked_sub(guess) {
        Some(skipped) => end.split_off(skipped as usize),
        None => read(artifacts, &key, start, size - TRAILER).await?,
    };
    serde_json::from_slice(&text)
        .map_err(|error| CheckpointError::Damaged(number, error.to_string()))
}

async fn read(
    artifacts: &Artifacts,
    key: &ArtifactKey,
    from: u64,
    to: u64,
) -> Result<Bytes, ArtifactError> {
    let mut body = artifacts.get(key, Some(from..to)).await?;
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(piece) = body.stream.next().await {
        let piece = piece?;
        match (&first, all.is_empty()) {
            (None, true) => first = Some(piece),
            _ => {
                if let Some(first) = first.take() {
                    all.extend_from_slice(&first);
                }
                all.extend_from_slice(&piece);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// The files of a tree in the order in which their bytes lie, which is how to read many of them.
pub fn by_place(
    tree: &Tree,
) -> Vec<(&bellglass_protocol::checkpoint::WorkspacePath, &Node, Option<&Content>)> {
    let files = tree.iter().filter_map(|(path, node)| match node {
        Node::File { content, .. } => Some((path, node, content.as_ref())),
        Node::Folder { .. } | Node::Symlink { .. } => None,
    });
    let mut files: Vec<_> = files.collect();
    files.sort_by_key(|(_, _, content)| content.map(|content| content.at));
    files
}

/// Reads the bytes of files, much at once.
pub struct Contents<'a> {
    artifacts: &'a Artifacts,
    job: JobId,
    window: Option<(Spot, Bytes)>,
}

impl<'a> Contents<'a> {
    pub fn of(artifacts: &'a Artifacts, job: JobId) -> Self {
        Self { artifacts, job, window: None }
    }

    /// The bytes of a file from `offset` on: some, never none before its end.
    pub async fn read(
        &mut self,
        content: &Content,
        offset: u64,
    ) -> Result<Option<Bytes>, CheckpointError> {
        let left = content.bytes.saturating_sub(offset);
        if left == 0 {
            return Ok(None);
        }
        let at = Spot { offset: content.at.offset + offset, ..content.at };
        if let Some(found) = self.in_window(at, left) {
            return Ok(Some(found));
        }
        let key = ArtifactKey::checkpoint(self.job, at.checkpoint);
        let bytes = read(self.artifacts, &key, at.offset, at.offset + WINDOW).await?;
        self.window = Some((at, bytes));
        let ends_early = || CheckpointError::Damaged(at.checkpoint, "it ends early".into());
        self.in_window(at, left).map(Some).ok_or_else(ends_early)
    }

    /// A whole file, as far as `most` bytes.
    pub async fn read_whole(
        &mut self,
        content: &Content,
        most: u64,
    ) -> Result<Vec<u8>, CheckpointError> {
        let mut whole = Vec::new();
        while (whole.len() as u64) < most
            && let Some(piece) = self.read(content, whole.len() as u64).await?
        {
            whole.extend_from_slice(&piece);
        }
        whole.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(whole)
    }

    fn in_window(&self, at: Spot, left: u64) -> Option<Bytes> {
        let (start, bytes) = self.window.as_ref()?;
        if start.checkpoint != at.checkpoint {
            return None;
        }
        let skip = usize::try_from(at.offset.checked_sub(start.offset)?).ok()?;
        let rest = bytes.len().checked_sub(skip).filter(|rest| *rest > 0)?;
        let take = rest.min(usize::try_from(left).unwrap_or(usize::MAX));
        Some(bytes.slice(skip..skip + take))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::checkpoint::WorkspacePath;

    fn number(n: u64) -> CheckpointNumber {
        CheckpointNumber(n)
    }

    fn file(checkpoint: u64, offset: u64, bytes: u64) -> Node {
        let at = Spot { checkpoint: number(checkpoint), offset };
        let content = Some(Content { sha256: [7; 32], bytes, at });
        Node::File { mode: 0o644, modified: 1, content }
    }

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::new(text.into()).unwrap()
    }

    async fn store(artifacts: &Artifacts, job: JobId, n: u64, data: &[u8], index: Index) {
        let key = ArtifactKey::checkpoint(job, number(n));
        artifacts.put(&key, [data, &ending(&index)].concat().into()).await.unwrap();
    }

    #[tokio::test]
    async fn a_chain_adds_up_and_its_bytes_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::local(folder.path()).unwrap();
        let job = JobId::generate();
        let large = vec![b'x'; 5 << 20];
        let data = [b"helloworld", &large[..]].concat();
        let nodes = vec![
            (path("a"), file(1, 0, 5)),
            (path("b"), file(1, 5, 5)),
            (path("c"), file(1, 10, large.len() as u64)),
        ];
        store(&artifacts, job, 1, &data, Index { nodes, ..Index::default() }).await;
        let (base, gone) = (Some(number(1)), vec![path("b")]);
        let nodes = vec![(path("d"), file(2, 0, 3)), (path("e"), file(2, 3, 0))];
        store(&artifacts, job, 2, b"new", Index { base, gone, nodes }).await;

        let (tree, length) = read_chain(&artifacts, job, number(2)).await.unwrap();
        assert_eq!(length, 1);
        let mut contents = Contents::of(&artifacts, job);
        let mut found = Vec::new();
        for (path, _, content) in by_place(&tree) {
            let whole = contents.read_whole(content.unwrap(), u64::MAX).await.unwrap();
            found.push((path.to_string(), whole));
        }
        let expected = [("a", &b"hello"[..]), ("c", &large), ("d", b"new"), ("e", b"")];
        assert!(found == expected.map(|(path, bytes)| (path.to_owned(), bytes.to_vec())));
    }

    #[tokio::test]
    async fn what_is_damaged_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::local(folder.path()).unwrap();
        let job = JobId::generate();
        let good = ending(&Index::default());
        let long = [&good[..good.len() - 16], &u64::MAX.to_be_bytes(), MARK].concat();
        let circle = Index { base: Some(number(4)), ..Index::default() };
        for (n, bytes) in [
            (1, b"short".to_vec()),
            (2, [&good[..good.len() - 1], b"x"].concat()),
            (3, long),
            (4, ending(&circle)),
            (5, [b"{", &1u64.to_be_bytes()[..], MARK].concat()),
        ] {
            artifacts.put(&ArtifactKey::checkpoint(job, number(n)), bytes.into()).await.unwrap();
            let error = read_tree(&artifacts, job, number(n)).await.unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged(..)), "{n}: {error}");
        }
        let error = read_tree(&artifacts, job, number(9)).await.unwrap_err();
        assert!(matches!(error, CheckpointError::Artifact(ArtifactError::NotFound(_))), "{error}");
    }
}
