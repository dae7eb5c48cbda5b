//! The bytes of a checkpoint on their way to the store: in memory while they are few, else in a file
//! without a name.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use bellglass_store::artifacts::{ArtifactKey, Artifacts, run_apart};
use tempfile::SpooledTempFile;

use crate::hands::describe;

/// Up to this the bytes are in memory.
const IN_MEMORY: usize = 4 << 20;

pub(super) struct Data {
    file: SpooledTempFile,
    bytes: u64,
}

impl Data {
    pub(super) fn new(folder: &Path) -> Self {
        Self { file: tempfile::spooled_tempfile_in(IN_MEMORY, folder), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// Forgets all after the first so many bytes.
    pub(super) fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Stores the bytes and what comes after them.
    pub(super) async fn store(
        mut self,
        artifacts: &Artifacts,
        key: ArtifactKey,
        ending: Vec<u8>,
    ) -> Result<(), String> {
        self.file.rewind().map_err(|error| error.to_string())?;
        if !self.file.is_rolled() {
            let mut all = Vec::with_capacity(self.bytes as usize + ending.len());
            self.file.read_to_end(&mut all).map_err(|error| error.to_string())?;
            all.extend_from_slice(&ending);
            return artifacts.put(&key, all.into()).await.map_err(|error| describe(&error));
        }
        let mut writer = artifacts.writer(key);
        let stored = run_apart(move || {
            io::copy(&mut self.file, &mut writer).map_err(|error| error.to_string())?;
            writer.write_all(&ending).map_err(|error| error.to_string())?;
            writer.finish().map_err(|error| describe(&error))
        });
        stored.await.unwrap_or_else(|error| Err(describe(&error))).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::checkpoint::CheckpointNumber;
    use bellglass_protocol::id::JobId;
    use futures::StreamExt as _;

    #[tokio::test]
    async fn few_and_many_bytes_are_stored_alike() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::local(&folder.path().join("artifacts")).unwrap();
        for (n, length) in [(1, 3), (2, IN_MEMORY + 1), (3, 0)] {
            let mut data = Data::new(folder.path());
            data.write(&vec![b'a'; length]).unwrap();
            data.write(b"to be forgotten").unwrap();
            data.cut(length as u64).unwrap();
            data.write(b"b").unwrap();
            let key = ArtifactKey::checkpoint(JobId::generate(), CheckpointNumber(n));
            data.store(&artifacts, key.clone(), b"end".to_vec()).await.unwrap();
            let mut body = artifacts.get(&key, None).await.unwrap();
            let mut all = Vec::new();
            while let Some(piece) = body.stream.next().await {
                all.extend_from_slice(&piece.unwrap());
            }
            assert!(all == [&vec![b'a'; length][..], b"bend"].concat(), "{length}");
        }
    }
}
