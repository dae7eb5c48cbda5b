//! The sections `[store]` and `[artifacts]`: where jobs and what they leave are kept.
//!
//! No error here repeats a password or a key, and nothing here can be printed with one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bellglass_protocol::quantity::Seconds;
use bellglass_store::artifacts::{Artifacts, S3Credentials, S3Settings};
use bellglass_store::{PostgresStore, SqliteStore, Store};
use serde::Deserialize;

use crate::secret_config::Hidden;

/// Where jobs are kept.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreSection {
    /// A PostgreSQL database that many processes share; without one a file in the data folder.
    url: Option<Hidden>,
    /// A file that holds the password.
    password_file: Option<PathBuf>,
}

/// Where results and output are kept.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ArtifactSection {
    /// `s3://BUCKET/PREFIX` or `file:///FOLDER`; without it the data folder.
    url: Option<String>,
    /// A server that speaks as S3 does, where it is not Amazon's.
    endpoint: Option<String>,
    region: Option<String>,
    /// How long links live by which clients download results from S3 itself.
    presigned: Option<Seconds>,
}

/// What the environment says about both.
#[derive(Debug, Default)]
pub(crate) struct StorageEnvironment {
    url: Option<Hidden>,
    password: Option<Hidden>,
    access_key_id: Option<String>,
    secret_access_key: Option<Hidden>,
    session_token: Option<Hidden>,
}

impl StorageEnvironment {
    pub(crate) fn read() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            url: variable("BELLGLASS_STORE_URL").map(Hidden),
            password: variable("BELLGLASS_STORE_PASSWORD").map(Hidden),
            access_key_id: variable("AWS_ACCESS_KEY_ID"),
            secret_access_key: variable("AWS_SECRET_ACCESS_KEY").map(Hidden),
            session_token: variable("AWS_SESSION_TOKEN").map(Hidden),
        }
    }
}

/// Where everything is kept.
#[derive(Debug)]
pub(crate) struct StorageSettings {
    store: StoreSettings,
    artifacts: ArtifactSettings,
}

#[derive(Debug)]
enum ArtifactSettings {
    DataFolder,
    Folder(PathBuf),
    Bucket(Box<S3Settings>),
}

#[derive(Debug)]
enum StoreSettings {
    DataFolder,
    Postgres { url: Hidden, password: Option<Hidden> },
}

/// Who else may use a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Nobody: it belongs to one process.
    Alone,
    /// Any number of processes, on any number of machines.
    Shared,
}

/// An opened store with its artifacts.
pub(crate) struct Storage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) sharing: Sharing,
}

/// The file that holds the database in a data folder.
pub(crate) fn database(data: &Path) -> PathBuf {
    data.join("bellglass.db")
}

impl StorageSettings {
    /// Everything in the data folder.
    pub(crate) fn local() -> Self {
        Self { store: StoreSettings::DataFolder, artifacts: ArtifactSettings::DataFolder }
    }

    pub(crate) fn read(
        store: &StoreSection,
        artifacts: &ArtifactSection,
        environment: &StorageEnvironment,
    ) -> anyhow::Result<Self> {
        let store = match environment.url.as_ref().or(store.url.as_ref()) {
            None => StoreSettings::DataFolder,
            Some(url) => {
                let password = match (&environment.password, &store.password_file) {
                    (Some(password), _) => Some(password.clone()),
                    (None, Some(file)) => {
                        let text = std::fs::read_to_string(file);
                        let text = text.with_context(|| format!("cannot read {}", file.display()));
                        Some(Hidden(text?.trim_end_matches(['\r', '\n']).to_owned()))
                    }
                    (None, None) => None,
                };
                StoreSettings::Postgres { url: url.clone(), password }
            }
        };
        let artifacts = match artifacts.url.as_deref() {
            None => ArtifactSettings::DataFolder,
            Some(url) => match url.strip_prefix("file://") {
                Some(folder) if folder.starts_with('/') => ArtifactSettings::Folder(folder.into()),
                _ => ArtifactSettings::Bucket(Box::new(bucket(url, artifacts, environment)?)),
            },
        };
        Ok(Self { store, artifacts })
    }

    pub(crate) async fn open(&self, data: &Path) -> anyhow::Result<Storage> {
        let (store, sharing): (Arc<dyn Store>, _) = match &self.store {
            StoreSettings::DataFolder => {
                let database = database(data);
                let store = SqliteStore::open(&database).await;
                let store = store.with_context(|| format!("cannot open {}", database.display()))?;
                (Arc::new(store), Sharing::Alone)
            }
            StoreSettings::Postgres { .. } => (self.open_shared().await?, Sharing::Shared),
        };
        let artifacts = match &self.artifacts {
            ArtifactSettings::DataFolder => Artifacts::local(&data.join("artifacts")),
            ArtifactSettings::Folder(folder) => Artifacts::local(folder),
            ArtifactSettings::Bucket(bucket) => Artifacts::s3(bucket),
        };
        let artifacts = artifacts.context("cannot open artifacts")?;
        artifacts.ping().await.context("cannot open artifacts")?;
        Ok(Storage { store, artifacts: Arc::new(artifacts), sharing })
    }

    /// Opens the store beside whoever works on it.
    pub(crate) async fn open_to_read(&self, data: &Path) -> anyhow::Result<Arc<dyn Store>> {
        match &self.store {
            StoreSettings::DataFolder => {
                let database = database(data);
                let store = SqliteStore::open_read_only(&database).await;
                let store = store.with_context(|| format!("cannot open {}", database.display()))?;
                Ok(Arc::new(store))
            }
            StoreSettings::Postgres { .. } => self.open_shared().await,
        }
    }

    async fn open_shared(&self) -> anyhow::Result<Arc<dyn Store>> {
        let StoreSettings::Postgres { url, password } = &self.store else {
            anyhow::bail!("no database is configured that many can share: set `url` under [store]");
        };
        let password = password.as_ref().map(|Hidden(password)| password.as_str());
        let store = PostgresStore::open(&url.0, password).await;
        let store = store.context("cannot open the PostgreSQL database of [store]")?;
        Ok(Arc::new(store))
    }
}

fn bucket(
    url: &str,
    section: &ArtifactSection,
    environment: &StorageEnvironment,
) -> anyhow::Result<S3Settings> {
    let place = url.strip_prefix("s3://");
    let place = place.context(
        "`url` under [artifacts] is neither like s3://BUCKET/PREFIX nor like file:///FOLDER",
    )?;
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    ensure!(!bucket.is_empty(), "`url` under [artifacts] names no bucket");
    let credentials = match (&environment.access_key_id, &environment.secret_access_key) {
        (Some(id), Some(Hidden(secret))) => Some(S3Credentials {
            access_key_id: id.clone(),
            secret_access_key: secret.clone(),
            session_token: environment.session_token.as_ref().map(|Hidden(token)| token.clone()),
        }),
        _ => None,
    };
    Ok(S3Settings {
        bucket: bucket.into(),
        prefix: prefix.trim_matches('/').into(),
        endpoint: section.endpoint.clone(),
        region: section.region.clone(),
        credentials,
        presigned: section.presigned.map(Seconds::duration),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(store: &str, artifacts: &str) -> anyhow::Result<StorageSettings> {
        let environment = StorageEnvironment {
            password: Some(Hidden("hush".into())),
            access_key_id: Some("me".into()),
            secret_access_key: Some(Hidden("hush".into())),
            ..StorageEnvironment::default()
        };
        let store = toml::from_str(store).unwrap();
        StorageSettings::read(&store, &toml::from_str(artifacts).unwrap(), &environment)
    }

    #[test]
    fn a_bucket_is_named_by_its_address() {
        let read = settings("", "url = \"s3://mine/some/where/\"\npresigned = \"5m\"").unwrap();
        let ArtifactSettings::Bucket(bucket) = read.artifacts else { panic!("a bucket") };
        assert_eq!((bucket.bucket.as_str(), bucket.prefix.as_str()), ("mine", "some/where"));
        assert_eq!(bucket.presigned.unwrap().as_secs(), 300);
        for wrong in ["url = \"mine\"", "url = \"s3:///x\""] {
            assert!(settings("", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_that_machines_share_is_one_too() {
        let read = settings("", "url = \"file:///mnt/results\"").unwrap();
        let ArtifactSettings::Folder(folder) = read.artifacts else { panic!("a folder") };
        assert_eq!(folder, Path::new("/mnt/results"));
        assert!(settings("", "url = \"file://here\"").is_err());
    }

    #[test]
    fn nothing_that_is_printed_holds_a_password() {
        let url = "url = \"postgres://me:hush@db/glass\"";
        let printed = format!("{:?}", settings(url, "url = \"s3://mine\"").unwrap());
        assert!(!printed.contains("hush"), "{printed}");
    }
}
