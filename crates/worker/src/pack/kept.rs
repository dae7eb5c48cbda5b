//! A workspace as a checkpoint has it, sent as a guest would send it: for jobs whose sandbox is gone.

use bellglass_protocol::checkpoint::{CheckpointNumber, Node, Tree, WorkspacePath};
use bellglass_protocol::id::JobId;
use bellglass_protocol::wire::{Entry, EntryKind, Packed};
use bellglass_store::artifacts::Artifacts;
use bellglass_store::checkpoints::{Contents, by_place, read_tree};
use tokio::sync::mpsc;

use super::PackError;

pub(super) type Pieces = mpsc::Sender<Result<Packed, PackError>>;

/// Without a checkpoint the workspace is one that nothing was ever put into.
pub(super) async fn send(
    artifacts: &Artifacts,
    job: JobId,
    newest: Option<CheckpointNumber>,
    to: Pieces,
) {
    if let Err(error) = send_all(artifacts, job, newest, &to).await {
        let _ = to.send(Err(error)).await;
    }
}

async fn send_all(
    artifacts: &Artifacts,
    job: JobId,
    newest: Option<CheckpointNumber>,
    to: &Pieces,
) -> Result<(), PackError> {
    let tree = match newest {
        Some(number) => read_tree(artifacts, job, number).await?,
        None => Tree::default(),
    };
    // Whoever does not take any more has a reason of its own, and tells it.
    let put = |packed| to.send(Ok(packed));
    for (path, node) in tree.iter() {
        if let Node::Folder { mode } = node {
            let _ = put(entry(path, EntryKind::Folder, *mode, 0, 0)).await;
        }
    }
    let mut contents = Contents::of(artifacts, job);
    for (path, node, content) in by_place(&tree) {
        let Node::File { mode, modified, .. } = node else { continue };
        let bytes = content.map_or(0, |content| content.bytes);
        let _ = put(entry(path, EntryKind::File, *mode, bytes, *modified)).await;
        let mut sent = 0;
        while let Some(content) = content
            && let Some(piece) = contents.read(content, sent).await?
        {
            sent += piece.len() as u64;
            if put(Packed::Data(piece)).await.is_err() {
                return Ok(());
            }
        }
        let why =
            content.is_none().then(|| "it could not be kept while its sandbox was there".into());
        let _ = put(Packed::FileEnd(why)).await;
    }
    for (path, node) in tree.iter() {
        if let Node::Symlink { target } = node {
            let target = String::from_utf8_lossy(target.as_bytes()).into_owned();
            let _ = put(entry(path, EntryKind::Symlink { target }, 0o777, 0, 0)).await;
        }
    }
    Ok(())
}

/// `modified` in nanoseconds.
fn entry(path: &WorkspacePath, kind: EntryKind, mode: u32, bytes: u64, modified: i64) -> Packed {
    let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
    Packed::Entry(Entry { path, kind, mode, bytes, modified: modified / 1_000_000_000 })
}
