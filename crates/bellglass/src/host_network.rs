//! What this host itself knows about the network: its package registries and its proxy.
//!
//! No registry is named in this program. Those that the host's own package tools use are the ones
//! that sandboxes may reach under the policy `registries`, so mirrors are honoured everywhere. Where the
//! host does not have a tool, the one in the image is looked at.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use bellglass_protocol::network::HostRule;
use bellglass_sandbox::egress::{EgressSettings, PackageSources, Secret, Upstream};
use bellglass_worker::NetworkSource;
use tokio::sync::{OnceCell, watch};

use crate::image_registries::ImageRegistries;

/// What the configuration says about the network.
#[derive(Clone, Debug)]
pub(crate) struct NetworkConfig {
    pub(crate) registries: Vec<HostRule>,
    pub(crate) private_exceptions: Vec<IpAddr>,
    pub(crate) upstream: Upstream,
    /// The file with the authorities that this host trusts, if it is not where it usually is.
    pub(crate) certificates: Option<PathBuf>,
    pub(crate) secrets: BTreeMap<String, Arc<Secret>>,
}

/// Finds out what is not configured when a job first needs it.
pub(crate) struct HostNetwork {
    current: RwLock<Arc<Current>>,
    changes: watch::Sender<()>,
    /// The root of the image that most sandboxes have.
    image: Option<PathBuf>,
}

struct Current {
    config: NetworkConfig,
    whole: OnceCell<Arc<EgressSettings>>,
}

impl HostNetwork {
    pub(crate) fn new(config: NetworkConfig) -> Self {
        let current = Arc::new(Current { config, whole: OnceCell::new() });
        Self { current: RwLock::new(current), changes: watch::Sender::new(()), image: None }
    }

    /// Asks the tools of this image where the host has none. It need not be there yet.
    pub(crate) fn with_image(self, rootfs: PathBuf) -> Self {
        Self { image: Some(rootfs), ..self }
    }

    /// Puts another configuration in force, also for jobs that run. Their secrets stay as they are.
    pub(crate) fn replace(&self, config: NetworkConfig) {
        let current = Arc::new(Current { config, whole: OnceCell::new() });
        *self.current.write().expect("no code panics while it holds this lock") = current;
        self.changes.send_replace(());
    }

    fn current(&self) -> Arc<Current> {
        self.current.read().expect("no code panics while it holds this lock").clone()
    }
}

#[async_trait]
impl NetworkSource for HostNetwork {
    async fn settings(&self) -> Arc<EgressSettings> {
        let current = self.current();
        let find = || async {
            let (config, image) = (current.config.clone(), self.image.clone());
            let looking = move || look_around(config, image.as_deref());
            let found = tokio::task::spawn_blocking(looking).await;
            Arc::new(found.unwrap_or_default())
        };
        current.whole.get_or_init(find).await.clone()
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.current().config.secrets.get(name).cloned()
    }
}

/// Adds what this host itself knows to what is configured.
fn look_around(config: NetworkConfig, image: Option<&Path>) -> EgressSettings {
    let packages = package_sources();
    let of_image = image.map(ImageRegistries::read).unwrap_or_default();
    let found = find_registries(&packages, of_image);
    let shown: Vec<String> = found.iter().map(HostRule::to_string).collect();
    tracing::info!(hosts = shown.join(" "), "found the registries that this host uses");
    EgressSettings {
        registries: config.registries.into_iter().chain(found).collect(),
        private_exceptions: config.private_exceptions,
        upstream: config.upstream,
        certificates: certificates(config.certificates.as_deref()),
        packages: packages.sources,
    }
}

/// The authorities that this host trusts: where it says that they are, or where they usually are.
fn certificates(named: Option<&Path>) -> String {
    const USUAL: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let files = named.into_iter().chain(USUAL.iter().map(Path::new));
    let found = files.filter_map(|file| std::fs::read_to_string(file).ok()).next();
    if found.is_none() {
        tracing::warn!(
            "this host has no list of authorities; sandboxes trust those of their image"
        );
    }
    found.unwrap_or_default()
}

/// What the package tools of this host answered.
struct Found {
    sources: PackageSources,
    /// Where pip looks when nothing is configured.
    python_defaults: Option<String>,
}

/// Asks all of them at once, since each takes its time to start.
fn package_sources() -> Found {
    // Where nothing is configured, pip knows best where it looks.
    const PIP_DEFAULTS: &str = "from pip._internal.models.index import PyPI; \
        print(PyPI.simple_url, 'https://' + PyPI.file_storage_domain)";
    let address = |text: Option<String>| {
        text.map(|text| text.trim().to_owned()).filter(|text| text.starts_with("http"))
    };
    let index = || {
        let ask_pip = || ask("python3", &["-m", "pip", "config", "get", "global.index-url"]);
        std::env::var("PIP_INDEX_URL").ok().or_else(ask_pip)
    };
    std::thread::scope(|scope| {
        let index = scope.spawn(index);
        let defaults = scope.spawn(|| ask("python3", &["-c", PIP_DEFAULTS]));
        let npm = scope.spawn(|| ask("npm", &["config", "get", "registry"]));
        let apt = scope.spawn(|| ask("apt-get", &PackageSources::ASK_APT));
        let answer =
            |asked: std::thread::ScopedJoinHandle<'_, Option<String>>| asked.join().ok().flatten();
        let sources = PackageSources {
            python_index: address(answer(index)),
            npm_registry: address(answer(npm)),
            apt_targets: answer(apt).unwrap_or_default(),
        };
        Found { sources, python_defaults: answer(defaults) }
    })
}

/// The hosts of the registries that apt, pip, npm and cargo use here, and those of pip and npm in the
/// image where the host has none.
fn find_registries(found: &Found, of_image: ImageRegistries) -> Vec<HostRule> {
    let Found { sources, python_defaults } = found;
    let mut texts = apt_sources();
    texts.extend(sources.npm_registry.clone().or(of_image.npm));
    texts.extend(sources.python_index.clone());
    texts.extend(python_defaults.clone().or(of_image.python));
    texts.extend(cargo_indexes());
    let mut hosts: Vec<HostRule> = texts
        .iter()
        .flat_map(|text| hosts_in(text))
        .filter_map(|place| HostRule::parse(&place).ok())
        .collect();
    hosts.sort_by_key(HostRule::to_string);
    hosts.dedup();
    hosts
}

fn apt_sources() -> Vec<String> {
    let parts = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let parts = parts.map(|entry| entry.path());
    let files = parts.chain([PathBuf::from("/etc/apt/sources.list")]);
    files.filter_map(|file| std::fs::read_to_string(file).ok()).map(uncommented).collect()
}

fn uncommented(text: String) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// What cargo wrote down about the indexes that it has used.
fn cargo_indexes() -> Vec<String> {
    let folder = ask("sh", &["-c", "echo \"${CARGO_HOME:-$HOME/.cargo}\""]).unwrap_or_default();
    let indexes = std::fs::read_dir(PathBuf::from(folder.trim()).join("registry/index"));
    indexes
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|index| {
            // The folder is named after the index's host, and holds where packages are.
            let name = index.file_name().to_string_lossy().into_owned();
            let host = name.rsplit_once('-').map(|(host, _)| format!("https://{host}/"));
            let content = std::fs::read(index.path().join("config.json"));
            let content = content.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            [host, content.ok()]
        })
        .flatten()
        .collect()
}

fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// The hosts of all web addresses in a text. One that is named with a port keeps it: a mirror in a
/// private network is often a port of a machine that has others.
fn hosts_in(text: &str) -> Vec<String> {
    text.split("://")
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| {
                !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '@'))
            });
            let place = &rest[..end.unwrap_or(rest.len())];
            let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
            match place.split_once(':') {
                Some((host, port)) if port.parse::<u16>().is_err() => host.to_owned(),
                _ => place.to_owned(),
            }
        })
        .filter(|host| !host.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_every_kind_of_text() {
        for (text, expected) in [
            ("deb http://mirror.example/debian stable main", vec!["mirror.example"]),
            (
                "URIs: https://a.example:8443/x http://b.example",
                vec!["a.example:8443", "b.example"],
            ),
            ("https://user:secret@c.example/simple", vec!["c.example"]),
            (
                "https://user:1@c.example:8081/simple http://e.example:/",
                vec!["c.example:8081", "e.example"],
            ),
            ("{\"dl\":\"https://d.example/crates\"}", vec!["d.example"]),
            ("nothing", vec![]),
        ] {
            assert_eq!(hosts_in(text), expected, "{text}");
        }
        assert_eq!(uncommented("# http://x.example\ndeb".into()), "deb");
    }

    #[test]
    fn the_image_answers_for_what_the_host_does_not_have() {
        let of_image = || ImageRegistries {
            python: Some("https://pip.example/ https://files.example/".into()),
            npm: Some("https://npm.example/".into()),
        };
        let allowed = |found: &Found| {
            let rules = find_registries(found, of_image());
            let hosts = ["pip.example", "files.example", "npm.example", "own.example"];
            hosts.map(|host| rules.iter().any(|rule| rule.matches(host, 443)))
        };
        let nothing = Found { sources: PackageSources::default(), python_defaults: None };
        assert_eq!(allowed(&nothing), [true, true, true, false]);
        let sources =
            PackageSources { npm_registry: Some("https://own.example/".into()), ..nothing.sources };
        let asked = Found { sources, python_defaults: Some("https://own.example/".into()) };
        assert_eq!(allowed(&asked), [false, false, false, true]);
    }
}
