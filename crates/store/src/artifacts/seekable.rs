//! Reads an artifact here and there from blocking code, such as a ZIP reader that wants one entry.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::Handle;

use super::apart::check_thread;

/// How much is fetched at once: reading a folder of a ZIP record by record is one request.
const READ_AHEAD: u64 = 256 << 10;

/// An artifact as a file. It blocks, so it belongs into [`run_apart`](super::run_apart).
#[derive(Debug)]
pub struct SeekableArtifact {
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    runtime: Handle,
    position: u64,
    /// What was fetched last, and where it begins.
    window: Bytes,
    window_start: u64,
}

impl SeekableArtifact {
    pub(super) fn new(store: Arc<dyn ObjectStore>, meta: ObjectMeta) -> Self {
        let runtime = Handle::current();
        Self { store, meta, runtime, position: 0, window: Bytes::new(), window_start: 0 }
    }

    /// How many bytes the artifact has.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    /// What of the window lies at the present position and after it.
    fn ready(&self) -> &[u8] {
        let skipped = self.position.checked_sub(self.window_start);
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.window.get(skipped..)).unwrap_or_default()
    }

    fn fetch(&mut self, wanted: usize) -> io::Result<()> {
        check_thread()?;
        let length = READ_AHEAD.max(wanted as u64).min(self.meta.size - self.position);
        let options = GetOptions {
            range: Some(GetRange::Bounded(self.position..self.position + length)),
            // If the artifact is replaced meanwhile, an error is better than a mixture of two.
            if_match: self.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        let fetched = self.runtime.block_on(async {
            self.store.get_opts(&self.meta.location, options).await?.bytes().await
        });
        self.window = fetched.map_err(io::Error::other)?;
        self.window_start = self.position;
        Ok(())
    }
}

impl Read for SeekableArtifact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.position >= self.meta.size {
            return Ok(0);
        }
        if self.ready().is_empty() {
            self.fetch(buffer.len())?;
        }
        let ready = self.ready();
        if ready.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = ready.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&ready[..taken]);
        self.position += taken as u64;
        Ok(taken)
    }
}

impl Seek for SeekableArtifact {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.meta.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        // Beyond the end is allowed, as in any file; before the beginning is not.
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
