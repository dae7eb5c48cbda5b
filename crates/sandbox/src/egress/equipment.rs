//! What the programs of a sandbox find around them so that they use its way out unasked: proxy,
//! certificates, package sources, and the placeholders of secrets.
//!
//! Every tool has its own idea of where to look. Each line here is for one that would not work
//! otherwise. Nothing that is put together here is a secret.

use std::collections::BTreeMap;

use bellglass_protocol::wire::{EGRESS_PORT, Equipment};

use super::BoundSecret;
use crate::image::{ASK_FOR_TARGETS, debian_sources};

/// Where this host's package tools look, if it is not where they would look by themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageSources {
    /// The address of a Python package index.
    pub python_index: Option<String>,
    /// The address of an npm registry.
    pub npm_registry: Option<String>,
    /// What `apt-get` says when it is called with [`PackageSources::ASK_APT`].
    pub apt_targets: String,
}

impl PackageSources {
    pub const ASK_APT: [&str; 4] = ASK_FOR_TARGETS;
}

/// Where Debian and all that comes from it has its list of authorities.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Where the sandbox's user keeps what apt fetched.
const APT_STATE: &str = "/var/tmp/apt";

/// The equipment of a sandbox. `certificates` is everything that it is to trust, as PEM;
/// `codename` is the Debian release of its image.
pub fn equipment(
    packages: &PackageSources,
    certificates: String,
    codename: Option<&str>,
    secrets: &[BoundSecret],
) -> Equipment {
    let mut environment: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: &str| drop(environment.insert(name.into(), value.into()));
    let proxy = format!("http://127.0.0.1:{EGRESS_PORT}");
    // Programs do not agree on the case of these names, so both are there.
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        set(name, &proxy);
        set(&name.to_uppercase(), &proxy);
    }
    for name in ["no_proxy", "NO_PROXY"] {
        set(name, "localhost,127.0.0.1,::1");
    }
    // Node's own fetch and http know of a proxy only if they are told to look.
    set("NODE_USE_ENV_PROXY", "1");
    let mut files = BTreeMap::new();
    if !certificates.is_empty() {
        for name in [
            "SSL_CERT_FILE",       // OpenSSL, and whoever learnt from it: Python, Ruby, Go, uv
            "CURL_CA_BUNDLE",      // curl
            "GIT_SSL_CAINFO",      // git
            "REQUESTS_CA_BUNDLE",  // requests, which carries a list of its own
            "PIP_CERT",            // pip, for the same reason
            "NODE_EXTRA_CA_CERTS", // node and npm, whose own list stays in force
            "DENO_CERT",           // deno
            "CARGO_HTTP_CAINFO",   // cargo
            "AWS_CA_BUNDLE",       // boto
        ] {
            set(name, BUNDLE);
        }
        files.insert(BUNDLE.to_owned(), certificates);
    }
    if let Some(index) = &packages.python_index {
        set("PIP_INDEX_URL", &without_credentials(index));
        set("UV_DEFAULT_INDEX", &without_credentials(index));
    }
    if let Some(registry) = &packages.npm_registry {
        // npm takes either; Deno reads the second only.
        for name in ["npm_config_registry", "NPM_CONFIG_REGISTRY"] {
            set(name, &without_credentials(registry));
        }
    }
    for secret in secrets {
        set(&secret.variable, &secret.placeholder());
    }
    files.insert("/etc/apt/apt.conf.d/90bellglass".to_owned(), apt_settings(&proxy));
    let sources = codename.map(|codename| debian_sources(&packages.apt_targets, codename));
    if let Some(sources) = sources.filter(|sources| !sources.is_empty()) {
        let sources = without_credentials(&(sources.join("\n") + "\n"));
        files.insert("/etc/apt/sources.list".to_owned(), sources);
    }
    let folders = ["lists/partial", "cache/archives/partial"];
    let folders = folders.map(|folder| format!("{APT_STATE}/{folder}")).into();
    Equipment { environment, files, folders }
}

/// Where Chromium looks, which reads no list of authorities: a policy, and what it says.
pub fn trust_of_chromium(certificates: &str) -> (String, String) {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let certificates: Vec<String> = certificates
        .split(BEGIN)
        .skip(1)
        .filter_map(|part| part.split_once(END))
        .map(|(body, _)| body.split_whitespace().collect())
        .collect();
    let policy = serde_json::json!({ "CACertificates": certificates });
    ("/etc/chromium/policies/managed/bellglass.json".into(), policy.to_string())
}

/// A text without the user names and passwords of the addresses in it: those are the host's own.
fn without_credentials(text: &str) -> String {
    let mut parts = text.split("://");
    let mut cleaned = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(part.len());
        let start = part[..end].rfind('@').map_or(0, |at| at + 1);
        cleaned.push_str("://");
        cleaned.push_str(&part[start..]);
    }
    cleaned
}

/// Lets the sandbox's user, who is not root, fetch lists and packages.
fn apt_settings(proxy: &str) -> String {
    format!(
        "Acquire::http::Proxy \"{proxy}\";\n\
         Acquire::https::Proxy \"{proxy}\";\n\
         Acquire::https::CaInfo \"{BUNDLE}\";\n\
         Dir::State::lists \"{APT_STATE}/lists\";\n\
         Dir::Cache \"{APT_STATE}/cache\";\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_credentials() {
        for (text, expected) in [
            ("https://a.example/x", "https://a.example/x"),
            ("https://u:p@a.example/x@y", "https://a.example/x@y"),
            ("deb http://u@a/ x\ndeb http://u:p@b c", "deb http://a/ x\ndeb http://b c"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    #[test]
    fn chromium_gets_every_certificate_by_itself() {
        let one = "# a name\n-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n";
        let (_, policy) = trust_of_chromium(&format!("{one}{}", one.replace("AAAA", "CCCC")));
        assert_eq!(policy, r#"{"CACertificates":["AAAABBBB","CCCCBBBB"]}"#);
        assert_eq!(trust_of_chromium("").1, r#"{"CACertificates":[]}"#);
    }

    #[test]
    fn every_tool_finds_its_own_words() {
        let packages = PackageSources {
            python_index: Some("https://python.example/simple".into()),
            npm_registry: Some("https://me:word@npm.example/all/".into()),
            apt_targets: "http://me:word@mirror.example/debian|bookworm|bookworm|main|Debian\n"
                .into(),
        };
        let made = equipment(&packages, "PEM".into(), Some("bookworm"), &[]);
        for (name, value) in [
            ("https_proxy", "http://127.0.0.1:3128"),
            ("HTTPS_PROXY", "http://127.0.0.1:3128"),
            ("PIP_CERT", BUNDLE),
            ("PIP_INDEX_URL", "https://python.example/simple"),
            ("npm_config_registry", "https://npm.example/all/"),
            ("NPM_CONFIG_REGISTRY", "https://npm.example/all/"),
        ] {
            assert_eq!(made.environment.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(made.files[BUNDLE], "PEM");
        let sources = "deb http://mirror.example/debian bookworm main\n";
        assert_eq!(made.files["/etc/apt/sources.list"], sources);
        // A host without a list of authorities leaves the image's own in force.
        let bare = equipment(&PackageSources::default(), String::new(), Some("bookworm"), &[]);
        assert!(!bare.files.contains_key(BUNDLE) && !bare.environment.contains_key("PIP_CERT"));
        assert!(!bare.files.contains_key("/etc/apt/sources.list"));
        assert!(!bare.environment.contains_key("NPM_CONFIG_REGISTRY"));
    }
}
