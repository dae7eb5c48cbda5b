//! Packs a workspace into the job's ZIP: streamed from the guest, never whole in memory.

mod allowance;
mod archive;

use std::io;

use bellglass_protocol::event::ResultSummary;
use bellglass_protocol::id::JobId;
use bellglass_protocol::wire::Packed;
use bellglass_sandbox::client::{ClientError, GuestClient};
use bellglass_store::artifacts::{ArtifactError, ArtifactKey, ArtifactWriter, Artifacts};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;

use self::allowance::Allowance;
use self::archive::{Archive, Finished, printable};

pub(crate) use self::archive::Addition;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error("the workspace could not be read: {0}")]
    Guest(#[from] ClientError),
    #[error("the ZIP could not be written: {0}")]
    Zip(#[from] zip::result::ZipError),
    #[error("the ZIP could not be stored: {0}")]
    Artifact(#[from] ArtifactError),
}

/// Packs the workspace of `guest`. At most `limit` bytes of file content are taken.
pub(crate) async fn pack_workspace(
    guest: &GuestClient,
    artifacts: &Artifacts,
    job: JobId,
    limit: u64,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    let packing = guest.pack().await?;
    let pieces = futures::stream::try_unfold(packing, async |mut packing| {
        Ok(packing.next().await?.map(|packed| (packed, packing)))
    });
    let writer = artifacts.writer(ArtifactKey::result(job));
    pack(Box::pin(pieces), writer, Allowance::new(limit), additions).await
}

async fn pack(
    pieces: impl Stream<Item = Result<Packed, ClientError>> + Unpin,
    writer: ArtifactWriter,
    allowance: Allowance,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    // A few pieces are on their way at most: a slow disk slows the guest down.
    let (sender, receiver) = mpsc::channel(8);
    let zipping = tokio::task::spawn_blocking(move || zip(writer, receiver, additions));
    let fed = feed(pieces, sender, allowance).await;
    let zipped = zipping.await.expect("the zipping task does not panic");
    // When the guest fails, the ZIP ends early for that reason alone. The other way round the
    // feeding just stops.
    fed?;
    zipped
}

enum Piece {
    Packed(Packed),
    /// Everything is there; without this the ZIP is not finished.
    Complete {
        note: Option<String>,
    },
}

async fn feed(
    mut pieces: impl Stream<Item = Result<Packed, ClientError>> + Unpin,
    zip: mpsc::Sender<Piece>,
    mut allowance: Allowance,
) -> Result<(), ClientError> {
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
    let _ = zip.send(Piece::Complete { note }).await;
    Ok(())
}

fn zip(
    writer: ArtifactWriter,
    mut pieces: mpsc::Receiver<Piece>,
    additions: Vec<Addition>,
) -> Result<ResultSummary, PackError> {
    let mut archive = Archive::new(writer);
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Packed(packed)) => archive.take(&packed)?,
            Some(Piece::Complete { note }) => {
                let Finished { writer, sha256, entries, skipped } =
                    archive.finish(note, additions)?;
                let bytes = writer.finish()?;
                return Ok(ResultSummary { bytes, sha256, entries, skipped });
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
    use bytes::Bytes;

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
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::local(folder.path()).unwrap();
        let writer = artifacts.writer(ArtifactKey::result(JobId::generate()));
        pack(futures::stream::iter(pieces), writer, Allowance::new(10), Vec::new()).await
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
