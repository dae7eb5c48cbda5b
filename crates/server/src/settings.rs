//! What the operator decides about the HTTP side.

use std::fmt;
use std::path::PathBuf;

use bellglass_protocol::quantity::ByteSize;
use subtle::ConstantTimeEq;

use crate::quota::Quotas;
use crate::vnc::VncSettings;

#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Clients must show this. Without one, only the local machine is served.
    pub token: Option<Secret>,
    /// Host names beside `localhost` and the loopback addresses under which clients without a
    /// token may call.
    pub allowed_hosts: Vec<String>,
    /// A domain whose subdomains all lead to this server: content of sandboxes is shown under them
    /// to those who do not come to this machine as `localhost`.
    pub sandbox_domain: Option<String>,
    /// Where a key is kept, for nobody else to read, by which apps know their visitors after a restart.
    /// Not needed where there is a token.
    pub app_key: Option<PathBuf>,
    /// Ports of this machine for desktops.
    pub vnc: Option<VncSettings>,
    /// The largest body of a request that is read whole.
    pub body_limit: ByteSize,
    /// The largest file that may be put into a workspace.
    pub upload_limit: ByteSize,
    /// Whether the server is meant for this machine only. Without a token it must be.
    pub loopback_only: bool,
    /// What each user may use.
    pub quotas: Quotas,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            token: None,
            allowed_hosts: Vec::new(),
            sandbox_domain: None,
            app_key: None,
            vnc: None,
            body_limit: ByteSize::mib(32),
            upload_limit: ByteSize::gib(1),
            loopback_only: true,
            quotas: Quotas::default(),
        }
    }
}

/// A text that must not be seen: it never appears in logs or debug output.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Compares in a time that does not depend on where the texts differ.
    pub fn matches(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
