//! Makes a sandbox's workspace what a tree says, with the bytes from the store.

use bellglass_protocol::checkpoint::{Change, CheckpointNumber, Node, Tree, What};
use bellglass_protocol::id::JobId;
use bellglass_sandbox::client::{ClientError, GuestClient};
use bellglass_store::artifacts::Artifacts;
use bellglass_store::checkpoints::{CheckpointError, Contents, by_place};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("the sandbox could not take the files of a checkpoint")]
    Guest(#[from] ClientError),
    #[error("a checkpoint cannot be read")]
    Checkpoint(#[from] CheckpointError),
}

/// `job` is the one whose checkpoints hold the bytes. The guest remembers the tree as `number`.
pub(crate) async fn restore(
    guest: &GuestClient,
    artifacts: &Artifacts,
    job: JobId,
    tree: &Tree,
    number: CheckpointNumber,
) -> Result<(), RestoreError> {
    let mut restoring = guest.restore(number).await?;
    for (path, node) in tree.iter() {
        if let Node::Folder { mode } = node {
            let what = What::Folder { mode: *mode };
            restoring.put(&Change { path: path.clone(), what }).await?;
        }
    }
    // In the order of their bytes, so that many small files are one read.
    let mut contents = Contents::of(artifacts, job);
    for (path, node, content) in by_place(tree) {
        // What could not be kept is not there.
        let (Some(content), Node::File { mode, modified, .. }) = (content, node) else { continue };
        let what = What::File { mode: *mode, bytes: content.bytes, modified: *modified };
        restoring.put(&Change { path: path.clone(), what }).await?;
        let mut offset = 0;
        while let Some(piece) = contents.read(content, offset).await? {
            offset += piece.len() as u64;
            restoring.data(piece).await?;
        }
    }
    for (path, node) in tree.iter() {
        if let Node::Symlink { target } = node {
            let what = What::Symlink { target: target.clone() };
            restoring.put(&Change { path: path.clone(), what }).await?;
        }
    }
    Ok(restoring.finish().await?)
}
