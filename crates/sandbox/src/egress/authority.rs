//! The certificate authority of one job. Only that job's sandbox trusts it, and it vouches only for
//! hosts that a secret of the job is bound to.
//!
//! Its key never enters the sandbox. It is kept in a private file, since a sandbox outlives the
//! process that drives it, and programs in it have read the authority's certificate already.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fmt, fs};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// What was made so far, by host. There are as many as hosts have secrets.
    leaves: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// The authority whose key is in this file, which is made if it is not there.
    pub fn kept_in(file: &Path, name: &str) -> io::Result<Self> {
        let key = match fs::read(file) {
            Ok(key) => KeyPair::try_from(key).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = KeyPair::generate().map_err(io::Error::other)?;
                write_private(file, key.serialized_der())?;
                key
            }
            Err(error) => return Err(error),
        };
        Self::with_key(key, name).map_err(io::Error::other)
    }

    /// Everything but the key follows from the name, so that a certificate which was made before a
    /// restart still vouches for what is made after it.
    fn with_key(key: KeyPair, name: &str) -> Result<Self, rcgen::Error> {
        let mut params = params_named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate, leaves: Mutex::default() })
    }

    /// What the sandbox is to trust, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What a server needs that passes for `host`.
    pub(super) fn server_config(&self, host: &str) -> io::Result<Arc<ServerConfig>> {
        let mut leaves = self.leaves.lock().expect("no code panics while it holds this lock");
        if let Some(config) = leaves.get(host) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make(host)?);
        leaves.insert(host.to_owned(), config.clone());
        Ok(config)
    }

    fn make(&self, host: &str) -> io::Result<ServerConfig> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = params_named(host);
        params.subject_alt_names =
            CertificateParams::new([host.to_owned()]).map_err(io::Error::other)?.subject_alt_names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

pub(super) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn params_named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // A common name has room for 64 characters.
    let name: String = name.chars().take(64).collect();
    params.distinguished_name.push(DnType::CommonName, name);
    let year = i32::from(jiff::Zoned::now().year());
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + 2, 1, 1);
    params
}

/// Writes a file whole or not at all, for its owner only.
fn write_private(file: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let draft = file.with_added_extension("new");
    let _ = fs::remove_file(&draft);
    let mut written =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    written.write_all(content)?;
    fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn an_authority_is_the_same_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job/authority");
        let first = Authority::kept_in(&file, "a job").unwrap();
        let second = Authority::kept_in(&file, "a job").unwrap();
        assert_eq!(first.issuer.key().serialized_der(), second.issuer.key().serialized_der());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!first.certificate().contains("PRIVATE"));
        let config = first.server_config("a.example").unwrap();
        assert!(Arc::ptr_eq(&config, &first.server_config("a.example").unwrap()));
    }
}
