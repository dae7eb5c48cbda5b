//! The section `[cluster]`: how servers and workers that share a store reach each other.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use bellglass_server::Secret;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::secret_config::Hidden;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClusterSection {
    /// A file that holds what all of them know and nobody else does.
    secret_file: Option<PathBuf>,
    /// Where a worker listens for the others.
    listen: Option<SocketAddr>,
    /// Under which address the others reach it, where that is another.
    advertise: Option<String>,
}

pub(crate) struct ClusterSettings {
    pub(crate) secret: Secret,
    listen: SocketAddr,
    advertise: Option<String>,
}

/// What to do where there is none.
pub(crate) const REMEDY: &str = "servers and workers need a secret to reach each other: write one into \
    a file (try `openssl rand -hex 32`) and name it with `secret_file` under [cluster], or set \
    BELLGLASS_CLUSTER_SECRET";

impl ClusterSection {
    pub(crate) fn read(
        &self,
        environment: Option<&Hidden>,
    ) -> anyhow::Result<Option<ClusterSettings>> {
        let secret = match (environment, &self.secret_file) {
            (Some(Hidden(secret)), _) => secret.clone(),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file);
                text.with_context(|| format!("cannot read {}", file.display()))?
            }
            (None, None) => return Ok(None),
        };
        let secret = secret.trim();
        ensure!(
            secret.len() >= 32,
            "the secret of the cluster must be at least 32 characters long; try `openssl rand -hex 32`"
        );
        let listen = self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        ensure!(
            self.advertise.is_some() || !is_any(listen.ip()),
            "others cannot reach {listen}: say under which address they can with `advertise` under \
             [cluster]"
        );
        let (secret, advertise) = (Secret::new(secret), self.advertise.clone());
        Ok(Some(ClusterSettings { secret, listen, advertise }))
    }
}

impl ClusterSettings {
    /// Listens for the others; says under which address they reach it.
    pub(crate) async fn listen(&self) -> anyhow::Result<(TcpListener, String)> {
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {}, the address under [cluster]", self.listen)
        })?;
        let address = listener.local_addr()?.to_string();
        Ok((listener, self.advertise.clone().unwrap_or(address)))
    }
}

fn is_any(address: IpAddr) -> bool {
    address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, secret: Option<&str>) -> anyhow::Result<Option<ClusterSettings>> {
        let section: ClusterSection = toml::from_str(text).unwrap();
        section.read(secret.map(|secret| Hidden(secret.into())).as_ref())
    }

    #[test]
    fn there_is_no_cluster_without_a_good_secret_and_an_address() {
        let good = "0123456789abcdef0123456789abcdef";
        assert!(read("", None).unwrap().is_none());
        assert!(read("", Some("too short")).is_err());
        assert!(read("", Some(good)).unwrap().is_some());
        assert!(read("listen = \"0.0.0.0:8100\"", Some(good)).is_err());
        let both = "listen = \"0.0.0.0:8100\"\nadvertise = \"worker-1:8100\"";
        assert!(read(both, Some(good)).unwrap().is_some());
    }
}
