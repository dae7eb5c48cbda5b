//! What passes to apps are sealed with, and where that comes from.

use std::io;
use std::path::Path;

use hmac::Mac as _;

use super::pass::mac;
use crate::private_file;
use crate::relay::Cluster;
use crate::settings::{Secret, ServerSettings};
use crate::token::random;

#[derive(Clone)]
pub(crate) struct AppKey(pub(super) [u8; 32]);

impl AppKey {
    /// As part of a cluster every process that knows the same secret takes the same passes, and a new secret
    /// ends all of them. Else the key is kept in a file, so that a server that starts again knows its visitors.
    /// A new token ends them too; but a token alone makes no key, since a passphrase could be guessed by trying
    /// passes, which nobody counts.
    pub(crate) fn open(settings: &ServerSettings, cluster: Option<&Cluster>) -> io::Result<Self> {
        let base = match (cluster, &settings.app_key) {
            (Some(cluster), _) => Self::of(cluster.secret.as_bytes(), b"bellglass key of apps"),
            (None, Some(file)) => Self::kept(file)?,
            (None, None) => Self(random()),
        };
        let token = settings.token.as_ref().filter(|token| !token.is_empty());
        Ok(match token {
            Some(token) => Self::of(&base.0, token.as_bytes()),
            None => base,
        })
    }

    /// The key of browsers' sessions, which is another.
    pub(crate) fn for_sessions(self) -> Secret {
        Secret::new(hex::encode(Self::of(&self.0, b"bellglass sessions").0))
    }

    fn of(key: &[u8], what: &[u8]) -> Self {
        let mut seal = mac(key);
        seal.update(what);
        Self(seal.finalize().into_bytes().into())
    }

    fn kept(file: &Path) -> io::Result<Self> {
        let read = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = Self(random());
                private_file::write(file, hex::encode(key.0).as_bytes())?;
                return Ok(key);
            }
            Err(error) => return Err(error),
        };
        let key = hex::decode(read.trim()).ok().and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| {
            let file = file.display();
            io::Error::other(format!("{file} holds no key; remove it and a new one is made"))
        })?;
        Ok(Self(key))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_key_comes_from_a_secret_or_from_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app-key");
        let none = ServerSettings { app_key: Some(file.clone()), ..ServerSettings::default() };
        let token = Some(Secret::new("a token"));
        let with_token = ServerSettings { token, ..none.clone() };
        let cluster =
            |secret: &str| Cluster { secret: Secret::new(secret), is_here: Arc::new(|_| false) };
        let open = |settings: &ServerSettings, cluster: Option<&Cluster>| {
            AppKey::open(settings, cluster).unwrap().0
        };
        let by_cluster = open(&none, Some(&cluster("shared")));
        assert_eq!(by_cluster, open(&none, Some(&cluster("shared"))));
        assert_ne!(by_cluster, open(&none, Some(&cluster("another"))));
        assert!(!file.exists(), "nothing is kept that need not be");
        let shared = open(&with_token, Some(&cluster("shared")));
        assert_eq!(shared, open(&with_token, Some(&cluster("shared"))));
        assert!(!file.exists(), "nothing is kept that need not be");
        let kept = open(&none, None);
        assert_eq!(kept, open(&none, None));
        let by_token = open(&with_token, None);
        assert_eq!(by_token, open(&with_token, None));
        assert!(
            kept != by_token && kept != by_cluster && by_token != shared && shared != by_cluster
        );
        // Who knows the token does not know the key.
        let elsewhere = ServerSettings { app_key: None, ..with_token.clone() };
        assert_ne!(by_token, open(&elsewhere, None));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "garbage").unwrap();
        assert!(AppKey::open(&none, None).is_err());
        assert_ne!(open(&ServerSettings::default(), None), open(&ServerSettings::default(), None));
    }
}
