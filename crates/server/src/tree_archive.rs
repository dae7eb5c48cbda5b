//! A workspace as a tar archive, made while it is sent: never whole in memory.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use bellglass_protocol::checkpoint::{Node, Tree, WorkspacePath};
use bellglass_protocol::id::JobId;
use bellglass_store::artifacts::Artifacts;
use bellglass_store::checkpoints::{Contents, by_place};
use bytes::Bytes;
use futures::Stream;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The pieces of the archive. Whoever stops reading stops the making of it.
pub(crate) fn stream(
    artifacts: Arc<Artifacts>,
    job: JobId,
    tree: Tree,
) -> impl Stream<Item = io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        if let Err(error) = write(&artifacts, job, &tree, &sender).await {
            let _ = sender.send(Err(error)).await;
        }
    });
    ReceiverStream::new(receiver)
}

type Pieces = mpsc::Sender<io::Result<Bytes>>;

async fn write(artifacts: &Artifacts, job: JobId, tree: &Tree, to: &Pieces) -> io::Result<()> {
    for (path, node) in tree.iter() {
        if let Node::Folder { mode } = node {
            send(to, head(path, EntryType::Directory, *mode, 0, 0)?).await?;
        }
    }
    let mut contents = Contents::of(artifacts, job);
    for (path, node, content) in by_place(tree) {
        // What could not be kept is not there.
        let (Some(content), Node::File { mode, modified, .. }) = (content, node) else { continue };
        send(to, head(path, EntryType::Regular, *mode, *modified, content.bytes)?).await?;
        let mut sent = 0;
        while let Some(piece) = contents.read(content, sent).await.map_err(io::Error::other)? {
            sent += piece.len() as u64;
            send(to, piece).await?;
        }
        let padding = (BLOCK - content.bytes % BLOCK) % BLOCK;
        send(to, vec![0; padding as usize].into()).await?;
    }
    for (path, node) in tree.iter() {
        if let Node::Symlink { target } = node {
            send(to, link(path, target.as_bytes())?).await?;
        }
    }
    send(to, vec![0; 2 * BLOCK as usize].into()).await
}

const BLOCK: u64 = 512;

async fn send(to: &Pieces, piece: Bytes) -> io::Result<()> {
    to.send(Ok(piece)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

fn head(
    path: &WorkspacePath,
    kind: EntryType,
    mode: u32,
    modified: i64,
    bytes: u64,
) -> io::Result<Bytes> {
    let mut header = header(kind, mode, modified);
    header.set_size(bytes);
    // Only what stands before the content; that and its padding come as they are read.
    let mut builder = Builder::new(Vec::new());
    builder.append_data(&mut header, as_path(path.as_bytes()), io::empty())?;
    Ok(take(builder))
}

fn link(path: &WorkspacePath, target: &[u8]) -> io::Result<Bytes> {
    let mut header = header(EntryType::Symlink, 0o777, 0);
    header.set_size(0);
    let mut builder = Builder::new(Vec::new());
    builder.append_link(&mut header, as_path(path.as_bytes()), as_path(target))?;
    Ok(take(builder))
}

fn header(kind: EntryType, mode: u32, modified: i64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    // Nobody who unpacks this is given set-user-id bits.
    header.set_mode(mode & 0o777);
    header.set_mtime(u64::try_from(modified / 1_000_000_000).unwrap_or_default());
    header
}

/// What was written so far, without the end of an archive.
fn take(mut builder: Builder<Vec<u8>>) -> Bytes {
    std::mem::take(builder.get_mut()).into()
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}
