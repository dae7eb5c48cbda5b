//! Packs a workspace into the job's ZIP: streamed from the guest, never whole in memory.

mod allowance;
mod archive;
mod kept;

use std::borrow::Cow;
use std::io;

use bellglass_protocol::checkpoint::CheckpointNumber;
use bellglass_protocol::event::ResultSummary;
use bellglass_protocol::id::{Generation, JobId};
use bellglass_protocol::wire::Packed;
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::client::ClientError;
use bellglass_store::StoreError;
use bellglass_store::artifacts::{
    ArtifactError, ArtifactKey, ArtifactWriter, Artifacts, run_apart,
};
use bellglass_store::checkpoints::CheckpointError;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use self::allowance::Allowance;
pub(crate) use self::archive::printable;
use self::archive::{Archive, Finished};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error("the workspace could not be read: {0}")]
    Guest(#[from] ClientError),
    #[error("the sandbox was gone")]
    Gone,
    #[error("what was kept of the workspace could not be read: {0}")]
    Checkpoint(#[from] CheckpointError),
    #[error("the ZIP could not be written: {0}")]
    Zip(#[from] zip::result::ZipError),
    #[error("the job's log could not be read: {0}")]
    Log(#[from] StoreError),
    #[error("the ZIP could not be stored: {0}")]
    Artifact(#[from] ArtifactError),
}

impl PackError {
    /// Whether the sandbox is gone, or of no use any more. One that refuses is as it was.
    pub(crate) fn is_loss(&self) -> bool {
        match self {
            Self::Guest(error) => !matches!(error, ClientError::Refused(_)),
            Self::Gone => true,
            Self::Checkpoint(_) | Self::Zip(_) | Self::Log(_) | Self::Artifact(_) => false,
        }
    }
}

/// A file of ours that goes into the ZIP beside the workspace.
pub(crate) struct Addition {
    pub(crate) name: Cow<'static, str>,
    pub(crate) content: BoxStream<'static, Result<Bytes, StoreError>>,
}

/// Packs the workspace of a sandbox. At most `limit` bytes of file content are taken.
pub(crate) async fn pack_workspace(
    sandbox: &Sandbox,
    artifacts: &Artifacts,
    holder: (JobId, Generation),
    limit: u64,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    let packing = tokio::select! {
        packing = sandbox.guest().pack() => packing?,
        () = sandbox.gone() => return Err(PackError::Gone),
    };
    // Only while something is to come from it: what is here is packed, whatever becomes of the sandbox.
    let pieces = futures::stream::try_unfold(packing, async |mut packing| {
        tokio::select! {
            packed = packing.next() => Ok(packed?.map(|packed| (packed, packing))),
            () = sandbox.gone() => Err(PackError::Gone),
        }
    });
    pack(Box::pin(pieces), artifacts, holder, Allowance::new(limit), additions).await
}

/// Packs the workspace as a checkpoint has it. Nothing was ever put into one that has none.
pub(crate) async fn pack_kept(
    newest: Option<CheckpointNumber>,
    artifacts: &Artifacts,
    holder: (JobId, Generation),
    limit: u64,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    let (sender, pieces) = mpsc::channel(1);
    let pieces = ReceiverStream::new(pieces);
    let packing = pack(pieces, artifacts, holder, Allowance::new(limit), additions);
    tokio::join!(kept::send(artifacts, holder.0, newest, sender), packing).1
}

async fn pack(
    pieces: impl Stream<Item = Result<Packed, PackError>> + Unpin,
    artifacts: &Artifacts,
    (job, claim): (JobId, Generation),
    allowance: Allowance,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    let key = ArtifactKey::result(job).written_under(claim);
    let writer = artifacts.writer(key.clone());
    // A few pieces are on their way at most: a slow disk slows the guest down.
    let (sender, receiver) = mpsc::channel(8);
    let zipping = run_apart(move || zip(writer, receiver));
    let fed = feed(pieces, sender, allowance, additions).await;
    let zipped = zipping.await?;
    // When the guest fails, the ZIP ends early for that reason alone. The other way round the
    // feeding just stops.
    fed?;
    Ok(ResultSummary { artifact: Some(key.as_str().to_owned()), ..zipped? })
}

enum Piece {
    Packed(Packed),
    /// A file of ours begins.
    Addition(Cow<'static, str>),
    /// Data of that file.
    Added(Bytes),
    /// Everything is there; without this the ZIP is not finished.
    Complete {
        note: Option<String>,
    },
}

async fn feed(
    mut pieces: impl Stream<Item = Result<Packed, PackError>> + Unpin,
    zip: mpsc::Sender<Piece>,
    mut allowance: Allowance,
    additions: Vec<Addition>,
) -> Result<(), PackError> {
    let mut current = String::new();
    let note = loop {
        let Some(packed) = pieces.next().await.transpose()? else { break None };
        if let Packed::Entry(entry) = &packed {
            current = printable(&entry.path);
        }
        if let Err(why) = allowance.take(&packed) {
            break Some(format!("{current} and all after it: {why}"));
        }
        if zip.send(Piece::Packed(packed)).await.is_err() {
            return Ok(());
        }
    };
    for Addition { name, mut content } in additions {
        let mut piece = Piece::Addition(name);
        loop {
            if zip.send(piece).await.is_err() {
                return Ok(());
            }
            let Some(data) = content.next().await.transpose()? else { break };
            piece = Piece::Added(data);
        }
    }
    let _ = zip.send(Piece::Complete { note }).await;
    Ok(())
}

fn zip(
    writer: ArtifactWriter,
    mut pieces: mpsc::Receiver<Piece>,
) -> Result<ResultSummary, PackError> {
    let mut archive = Archive::new(writer);
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Packed(packed)) => archive.take(&packed)?,
            Some(Piece::Addition(name)) => archive.addition(&name)?,
            Some(Piece::Added(piece)) => archive.data(&piece)?,
            Some(Piece::Complete { note }) => {
                let Finished { writer, sha256, entries, skipped } = archive.finish(note)?;
                let bytes = writer.finish()?;
                return Ok(ResultSummary { bytes, sha256, entries, skipped, artifact: None });
            }
            // The guest's side failed and says why there; dropping the writer leaves nothing.
            None => {
                let ended = io::Error::other("the guest stopped sending");
                return Err(PackError::Zip(ended.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::archive::MOST_SKIPPED;
    use super::*;
    use bellglass_protocol::step::ToolError;
    use bellglass_protocol::wire::{Entry, EntryKind};

    fn entry(path: &str) -> Result<Packed, ClientError> {
        let (kind, path) = (EntryKind::File, path.into());
        Ok(Packed::Entry(Entry { path, kind, bytes: 0, mode: 0o644, modified: 0 }))
    }

    fn data(text: &'static str) -> Result<Packed, ClientError> {
        Ok(Packed::Data(Bytes::from_static(text.as_bytes())))
    }

    async fn packed(
        pieces: impl IntoIterator<Item = Result<Packed, ClientError>>,
    ) -> Result<ResultSummary, PackError> {
        packed_with(pieces, Vec::new()).await
    }

    async fn packed_with(
        pieces: impl IntoIterator<Item = Result<Packed, ClientError>>,
        additions: Vec<Addition>,
    ) -> Result<ResultSummary, PackError> {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::local(folder.path()).unwrap();
        let pieces = futures::stream::iter(pieces).map(|piece| piece.map_err(PackError::from));
        let holder = (JobId::generate(), Generation(1));
        pack(pieces, &artifacts, holder, Allowance::new(10), additions).await
    }

    fn agent_log(content: Vec<Result<Bytes, StoreError>>) -> Vec<Addition> {
        vec![Addition { name: "agent.log".into(), content: futures::stream::iter(content).boxed() }]
    }

    #[tokio::test]
    async fn what_is_left_out_of_ours_is_said() {
        let line = || agent_log(vec![Ok(Bytes::from_static(b"line\n"))]);
        let taken = [entry("agent.log"), entry(".bellglass/agent.log")];
        for (taken, said) in [(0, 0), (1, 0), (2, 1)].map(|(n, said)| (&taken[..n], said)) {
            let entries = taken.iter().map(|taken| match taken {
                Ok(Packed::Entry(taken)) => Ok(Packed::Entry(taken.clone())),
                other => panic!("{other:?}"),
            });
            let result = packed_with(entries, line()).await.unwrap();
            let ours = result.skipped.iter().filter(|note| note.starts_with("our own agent.log"));
            assert_eq!(ours.count(), said, "{:?}", result.skipped);
        }
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_read_makes_no_zip() {
        let broken = vec![Ok(Bytes::from_static(b"line\n")), Err(StoreError::Closed)];
        let error = packed_with([entry("a")], agent_log(broken)).await.unwrap_err();
        assert!(matches!(error, PackError::Log(_)), "{error}");
    }

    #[tokio::test]
    async fn the_guests_own_reason_is_told() {
        let refused = ToolError { code: "io".into(), message: "the disk is on fire".into() };
        let pieces = [entry("a"), Err(ClientError::Refused(refused))];
        let error = packed(pieces).await.unwrap_err();
        assert!(error.to_string().contains("on fire"), "{error}");
    }

    #[tokio::test]
    async fn a_guest_that_sends_too_much_is_cut_off_and_its_work_is_kept() {
        let hidden = || (0..MOST_SKIPPED).map(|_| entry("../x"));
        let large = vec![entry("a"), data("12345"), entry("\u{1b}"), data("123456"), entry("c")];
        for (pieces, entries, note) in [
            (large, 2, "\\u{1b} and all after it: the workspace is larger"),
            (hidden().chain([entry("a"), data("12345678901")]).collect(), 1, "a and all after it"),
        ] {
            let result = packed(pieces).await.unwrap();
            assert_eq!(result.entries, entries, "{note}");
            let last = result.skipped.last().unwrap();
            assert!(last.starts_with(note), "{last}");
        }
    }
}
