//! Writes an artifact from blocking code, such as a ZIP writer, in bounded memory.
//!
//! A small artifact is one put. A large one goes out in parts while it is still being written.
//! Either way nobody sees it before it is whole.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt as _, WriteMultipart};
use tokio::runtime::Handle;

use super::apart::check_thread;
use super::{ArtifactError, ArtifactKey};

/// The size of a part: the smallest that S3 takes for any part but the last.
const PART: usize = 5 << 20;

/// Parts on their way at once. With the one being filled this bounds the memory of a writer.
const PARTS_IN_FLIGHT: usize = 2;

/// Takes the bytes of one artifact.
///
/// It blocks, so it belongs into [`run_apart`](super::run_apart). Dropped before
/// [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct ArtifactWriter {
    store: Arc<dyn ObjectStore>,
    key: ArtifactKey,
    runtime: Handle,
    /// What is not handed over yet; always shorter than a part between two calls.
    buffer: Vec<u8>,
    /// Begun with the first full part.
    upload: Option<WriteMultipart>,
    bytes: u64,
    /// Set by the first failure: what follows could only make a file with a hole.
    failed: bool,
}

impl ArtifactWriter {
    pub(super) fn new(store: Arc<dyn ObjectStore>, key: ArtifactKey) -> Self {
        Self {
            store,
            key,
            runtime: Handle::current(),
            buffer: Vec::new(),
            upload: None,
            bytes: 0,
            failed: false,
        }
    }

    /// Makes the artifact visible, whole and durable, and says how many bytes it has. Blocks.
    pub fn finish(mut self) -> Result<u64, ArtifactError> {
        check_thread().map_err(ArtifactError::NoThread)?;
        if self.failed {
            return Err(ArtifactError::Incomplete(self.key.clone()));
        }
        let rest = Bytes::from(std::mem::take(&mut self.buffer));
        let stored = match self.upload.take() {
            None => self.runtime.block_on(self.store.put(self.key.path(), rest.into())),
            Some(mut upload) => self.runtime.block_on(async {
                upload.put(rest);
                upload.finish().await
            }),
        };
        stored.map_err(|error| self.key.error("store", error))?;
        Ok(self.bytes)
    }

    fn send_part(&mut self) -> Result<(), object_store::Error> {
        let part = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(PART)));
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                let begun = self.runtime.block_on(self.store.put_multipart(self.key.path()))?;
                WriteMultipart::new_with_chunk_size(begun, PART)
            }
        };
        let upload = self.upload.insert(upload);
        self.runtime.block_on(async {
            upload.wait_for_capacity(PARTS_IN_FLIGHT).await?;
            upload.put(part);
            Ok(())
        })
    }
}

impl Write for ArtifactWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check_thread()?;
        if self.failed {
            return Err(io::Error::other(ArtifactError::Incomplete(self.key.clone())));
        }
        let taken = bytes.len().min(PART - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PART
            && let Err(error) = self.send_part()
        {
            self.failed = true;
            return Err(io::Error::other(self.key.error("store a part of", error)));
        }
        self.bytes += taken as u64;
        Ok(taken)
    }

    /// Does nothing: there is no artifact before it is whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ArtifactWriter {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            // A drop may happen anywhere, so it must not block; the runtime cleans up.
            let key = self.key.clone();
            self.runtime.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(%key, %error, "failed to clean up an unfinished artifact");
                }
            });
        }
    }
}
