//! Artifacts in a bucket of S3, or of anything that speaks as S3 does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use object_store::{ObjectStore, RetryConfig};

use super::{ArtifactError, ArtifactKey};

/// A request that fails is made again for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a bucket is, and how to get in.
#[derive(Clone, Debug)]
pub struct S3Settings {
    pub bucket: String,
    /// Below this lie all artifacts; empty for the bucket itself.
    pub prefix: String,
    /// Another server than Amazon's.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// Without them, those of the machine that this runs on are used.
    pub credentials: Option<S3Credentials>,
    /// How long links live by which clients fetch results without us; none are given if there is no
    /// time.
    pub presigned: Option<Duration>,
}

/// Who we are for S3. Never shown.
#[derive(Clone)]
pub struct S3Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S3Credentials(…)")
    }
}

/// Makes links to artifacts.
#[derive(Clone, Debug)]
pub(super) struct Links {
    signer: Arc<dyn Signer>,
    prefix: Path,
    lifetime: Duration,
}

pub(super) fn open(
    settings: &S3Settings,
) -> Result<(Arc<dyn ObjectStore>, Option<Links>), ArtifactError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&settings.bucket)
        .with_region(settings.region.as_deref().unwrap_or("us-east-1"))
        .with_retry(RetryConfig { retry_timeout: PATIENCE, ..RetryConfig::default() });
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
    }
    if let Some(credentials) = &settings.credentials {
        builder = builder
            .with_access_key_id(&credentials.access_key_id)
            .with_secret_access_key(&credentials.secret_access_key);
        if let Some(token) = &credentials.session_token {
            builder = builder.with_token(token);
        }
    }
    let s3 = Arc::new(builder.build().map_err(ArtifactError::Bucket)?);
    let prefix = Path::from(settings.prefix.as_str());
    let links = settings.presigned.map(|lifetime| {
        let signer: Arc<dyn Signer> = s3.clone();
        Links { signer, prefix: prefix.clone(), lifetime }
    });
    Ok((Arc::new(PrefixStore::new(s3, prefix)), links))
}

impl Links {
    /// An address at which anybody gets the artifact for a while, as a file of this name.
    pub(super) async fn link(
        &self,
        key: &ArtifactKey,
        file_name: &str,
    ) -> Result<String, ArtifactError> {
        let path: Path = self.prefix.parts().chain(key.path().parts()).collect();
        let disposition = format!("attachment; filename=\"{file_name}\"");
        let options =
            SignedUrlOptions::new().with_query([("response-content-disposition", disposition)]);
        let signed = self.signer.signed_url_opts(Method::GET, &path, self.lifetime, &options);
        signed.await.map(Into::into).map_err(|error| key.error("link to", error))
    }
}
