//! Artifacts: the files that a job leaves behind, under keys that are made from its id.
//!
//! Everything but the construction is said in terms of an object store, so that a bucket of S3 takes
//! the place of a folder without a change here. Knows nothing of what is inside an artifact.

mod apart;
mod key;
mod s3;
mod seekable;
mod writer;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bellglass_protocol::id::JobId;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _};

use crate::private_dir::create_private_dir;
pub use apart::run_apart;
pub use key::ArtifactKey;
pub use s3::{S3Credentials, S3Settings};
pub use seekable::SeekableArtifact;
pub use writer::ArtifactWriter;

/// Where artifacts are kept. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Artifacts {
    store: Arc<dyn ObjectStore>,
    /// The folder, where it is one: traces of uploads that a crash cut off are ours to remove there. A bucket
    /// keeps their parts too, which nothing of ours lists, until a rule of its own removes them.
    folder: Option<PathBuf>,
    /// Where the store can make links by which clients fetch artifacts without us.
    links: Option<s3::Links>,
}

/// An artifact on its way to a reader.
pub struct ArtifactBody {
    /// Size of the whole artifact, also when only a part of it was asked for.
    pub bytes_total: u64,
    /// Which bytes the stream gives.
    pub range: Range<u64>,
    pub stream: BoxStream<'static, Result<Bytes, ArtifactError>>,
}

/// Why an artifact could not be had or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    #[error("there is no artifact {0}")]
    NotFound(ArtifactKey),
    #[error("the artifact has only {bytes_total} bytes")]
    OutOfRange { bytes_total: u64 },
    #[error("the artifact {0} was not stored, because writing a part of it failed")]
    Incomplete(ArtifactKey),
    #[error("failed to {action} the artifact {key}")]
    Failed { action: &'static str, key: ArtifactKey, source: object_store::Error },
    #[error("failed to delete the artifacts of job {job}")]
    NotDeleted { job: JobId, source: object_store::Error },
    #[error("the bucket for artifacts cannot be used; look at [artifacts] in bellglass.toml")]
    Bucket(#[source] object_store::Error),
    #[error("blocking work on artifacts could not be done")]
    NoThread(#[source] io::Error),
    #[error("failed to {action} the folder {}", .path.display())]
    Folder { action: &'static str, path: PathBuf, source: io::Error },
}

impl Artifacts {
    /// Keeps artifacts in a folder, which is made where it is missing.
    pub fn local(dir: &std::path::Path) -> Result<Self, ArtifactError> {
        let folder_error =
            |action, source| ArtifactError::Folder { action, path: dir.into(), source };
        create_private_dir(dir).map_err(|error| folder_error("create", error))?;
        let store = LocalFileSystem::new_with_prefix(dir)
            .map_err(|error| folder_error("open", error.into()))?
            // An event says that an artifact is there, so it must not vanish in a power cut.
            .with_fsync(true);
        Ok(Self { store: Arc::new(store), folder: Some(dir.into()), links: None })
    }

    /// Keeps artifacts in a bucket, which is there already.
    pub fn s3(settings: &S3Settings) -> Result<Self, ArtifactError> {
        let (store, links) = s3::open(settings)?;
        Ok(Self { store, folder: None, links })
    }

    /// An address at which anybody gets the artifact for a while, as a file of this name; nothing
    /// where the store makes none. The name must need no quoting.
    pub async fn link(
        &self,
        key: &ArtifactKey,
        file_name: &str,
    ) -> Result<Option<String>, ArtifactError> {
        match &self.links {
            Some(links) => links.link(key, file_name).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the artifacts can be reached. Asks for one that is never there.
    pub async fn ping(&self) -> Result<(), ArtifactError> {
        match self.store.head(&Path::from("ping")).await {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(ArtifactError::Bucket(error)),
        }
    }

    /// Stores a whole artifact. Durable when this returns; replaces what was there at once.
    pub async fn put(&self, key: &ArtifactKey, content: Bytes) -> Result<(), ArtifactError> {
        match self.store.put(key.path(), content.into()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(key.error("store", error)),
        }
    }

    /// Stores an artifact piece by piece, from code that blocks. Called within a tokio runtime,
    /// written to through [`run_apart`].
    pub fn writer(&self, key: ArtifactKey) -> ArtifactWriter {
        ArtifactWriter::new(self.store.clone(), key)
    }

    /// An artifact, or the part of it that `range` names. A range may reach beyond the end.
    pub async fn get(
        &self,
        key: &ArtifactKey,
        range: Option<Range<u64>>,
    ) -> Result<ArtifactBody, ArtifactError> {
        let range = match range {
            None => None,
            Some(range) => {
                let bytes_total = self.size(key).await?;
                if range.start >= bytes_total || range.is_empty() {
                    return Err(ArtifactError::OutOfRange { bytes_total });
                }
                Some(GetRange::Bounded(range))
            }
        };
        let options = GetOptions { range, ..GetOptions::default() };
        let found = self.store.get_opts(key.path(), options).await;
        let found = found.map_err(|error| key.error("read", error))?;
        let key = key.clone();
        Ok(ArtifactBody {
            bytes_total: found.meta.size,
            range: found.range.clone(),
            stream: found.into_stream().map_err(move |error| key.error("read", error)).boxed(),
        })
    }

    /// An artifact as a whole, or its first `most` bytes.
    pub async fn read(&self, key: &ArtifactKey, most: u64) -> Result<Bytes, ArtifactError> {
        let mut body = self.get(key, None).await?;
        let mut content = BytesMut::new();
        while let Some(piece) = body.stream.next().await {
            let room = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(content.len());
            let piece = piece?;
            content.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() >= room {
                break;
            }
        }
        Ok(content.freeze())
    }

    /// The conversations of a job with its model that are kept, the oldest first and the last one
    /// last.
    pub async fn contexts(&self, job: JobId) -> Result<Vec<ArtifactKey>, ArtifactError> {
        let prefix = key::contexts_of(job);
        let found = self.store.list(Some(prefix.path())).map_ok(|object| object.location);
        let found: Result<Vec<_>, _> = found.try_collect().await;
        let mut found = found.map_err(|error| prefix.error("list", error))?;
        found.sort();
        Ok(found.into_iter().map(ArtifactKey::of_path).collect())
    }

    /// How many bytes an artifact has.
    pub async fn size(&self, key: &ArtifactKey) -> Result<u64, ArtifactError> {
        Ok(self.head(key).await?.size)
    }

    /// Opens an artifact for reading here and there, from code that blocks: see [`run_apart`].
    pub async fn open_seekable(
        &self,
        key: &ArtifactKey,
    ) -> Result<SeekableArtifact, ArtifactError> {
        let meta = self.head(key).await?;
        Ok(SeekableArtifact::new(self.store.clone(), meta))
    }

    /// Deletes everything that a job left behind. It is no error if there is nothing.
    pub async fn delete_job(&self, job: JobId) -> Result<(), ArtifactError> {
        let prefix = key::folder_of(job);
        let found = self.store.list(Some(&prefix)).map_ok(|object| object.location).boxed();
        let mut deleted = self.store.delete_stream(found);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => return Err(ArtifactError::NotDeleted { job, source }),
            }
        }
        if let Some(folder) = &self.folder {
            // What is left are empty folders and uploads that a crash cut off, which no list shows.
            let path = folder.join(prefix.as_ref());
            match tokio::fs::remove_dir_all(&path).await {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(ArtifactError::Folder { action: "delete", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a job has left behind so far, for [`Self::delete`]. What a later holder of the job writes is
    /// never among it.
    pub async fn left_by(&self, job: JobId) -> Result<Vec<ArtifactKey>, ArtifactError> {
        let found = self.store.list(Some(&key::folder_of(job))).map_ok(|object| object.location);
        let found: Result<Vec<Path>, _> = found.try_collect().await;
        let found = found.map_err(|source| ArtifactError::NotDeleted { job, source })?;
        let ours = found.into_iter().filter(key::is_written_by_one);
        Ok(ours.map(ArtifactKey::of_path).collect())
    }

    /// Deletes artifacts of a job. It is no error if they are gone.
    pub async fn delete(&self, job: JobId, keys: Vec<ArtifactKey>) -> Result<(), ArtifactError> {
        let paths = futures::stream::iter(keys).map(|key| Ok(key.path().clone())).boxed();
        let mut deleted = self.store.delete_stream(paths);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => return Err(ArtifactError::NotDeleted { job, source }),
            }
        }
        Ok(())
    }

    async fn head(&self, key: &ArtifactKey) -> Result<ObjectMeta, ArtifactError> {
        self.store.head(key.path()).await.map_err(|error| key.error("look at", error))
    }
}
