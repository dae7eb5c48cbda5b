//! Configuration: flags before environment before `bellglass.toml` before defaults.
//!
//! Every key is documented in `docs/configuration.md`; a test keeps that page current.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bellglass_agent::model::catalogue::Catalogue;
use bellglass_protocol::job::{Budget, DEFAULT_IMAGE, IsolationLevel, Limits};
use bellglass_protocol::model_offer::ModelOffer;
use bellglass_protocol::network::HostRule;
use bellglass_protocol::quantity::{ByteSize, Seconds};
use bellglass_protocol::request::Offer;
use bellglass_sandbox::pool::PoolSize;
use bellglass_server::{Quotas, Secret, ServerSettings, VncSettings};
use bellglass_worker::OperatorServer;
use serde::Deserialize;

use crate::cli;
use crate::cluster_config::{ClusterSection, ClusterSettings};
use crate::host_network::{HostNetwork, NetworkConfig};
use crate::installation::{Pace, SandboxSettings, WarmSettings};
use crate::mcp_config::{self, McpSection};
use crate::model_config::{self, MemorySection, ModelEnvironment, ModelSection};
use crate::port_range::PortRange;
use crate::proxy_config::ProxyEnvironment;
use crate::secret_config::{Hidden, SecretSection};
use crate::storage_config::{
    ArtifactSection, Sharing, StorageEnvironment, StorageSettings, StoreSection,
};

/// What `bellglass.toml` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    pub(crate) data: Option<PathBuf>,
    pub(crate) images: Option<PathBuf>,
    pub(crate) server: ServerSection,
    /// What each user may use.
    pub(crate) quotas: Quotas,
    pub(crate) worker: WorkerSection,
    pub(crate) store: StoreSection,
    pub(crate) artifacts: ArtifactSection,
    pub(crate) cluster: ClusterSection,
    pub(crate) sandbox: SandboxSection,
    pub(crate) image: ImageSection,
    pub(crate) model: ModelSection,
    /// What a task may spend when it does not say.
    pub(crate) budget: Budget,
    pub(crate) network: NetworkSection,
    pub(crate) secrets: BTreeMap<String, SecretSection>,
    pub(crate) mcp: BTreeMap<String, McpSection>,
    pub(crate) memory: MemorySection,
    /// What a job gets when it does not say.
    pub(crate) limits: Limits,
    /// What a job may ask for at the most.
    pub(crate) max_limits: PartialLimits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerSection {
    pub(crate) listen: String,
    pub(crate) token: Option<String>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) sandbox_domain: Option<String>,
    pub(crate) vnc_ports: Option<PortRange>,
    pub(crate) vnc_password: Option<String>,
    pub(crate) body_limit: ByteSize,
    pub(crate) upload_limit: ByteSize,
}

impl Default for ServerSection {
    fn default() -> Self {
        let settings = ServerSettings::default();
        Self {
            listen: "127.0.0.1:8000".into(),
            token: None,
            allowed_hosts: Vec::new(),
            sandbox_domain: None,
            vnc_ports: None,
            vnc_password: None,
            body_limit: settings.body_limit,
            upload_limit: settings.upload_limit,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkerSection {
    pub(crate) slots: Option<usize>,
    pub(crate) lease: Seconds,
    /// How often sandboxes that no job needs are looked for.
    pub(crate) sweep: Seconds,
    /// How long jobs may go on after the worker was told to stop.
    pub(crate) grace: Option<Seconds>,
    /// How many days jobs are kept after their end.
    pub(crate) keep_days: Option<u32>,
}

impl Default for WorkerSection {
    fn default() -> Self {
        let (lease, sweep) = (Seconds::whole(8), Seconds::whole(10));
        Self { slots: None, lease, sweep, grace: None, keep_days: None }
    }
}

/// Sandboxes that are made ahead of their jobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WarmSection {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl Default for WarmSection {
    fn default() -> Self {
        Self { min: 1, max: 4 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ImageSection {
    /// The image of jobs that name none.
    pub(crate) default: String,
    /// How many replaced builds of each image are kept; all if nothing is said.
    pub(crate) keep: Option<usize>,
}

impl Default for ImageSection {
    fn default() -> Self {
        Self { default: DEFAULT_IMAGE.into(), keep: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NetworkSection {
    /// Hosts that the policy `registries` means, beside those that this host's tools use.
    pub(crate) registries: Vec<String>,
    /// Addresses that sandboxes may reach although they are not public.
    pub(crate) private_exceptions: Vec<IpAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxSection {
    /// The least isolation of jobs that demand none.
    pub(crate) isolation: IsolationLevel,
    /// gVisor's executable: a path, or a name that is looked for in PATH.
    pub(crate) runsc: PathBuf,
    pub(crate) warm: WarmSection,
}

impl Default for SandboxSection {
    fn default() -> Self {
        let warm = WarmSection::default();
        Self { isolation: IsolationLevel::default(), runsc: "runsc".into(), warm }
    }
}

/// Limits of which some are named.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PartialLimits {
    memory: Option<ByteSize>,
    disk: Option<ByteSize>,
    processes: Option<u32>,
    cpus: Option<f64>,
    open_files: Option<u32>,
    time: Option<Seconds>,
    step_time: Option<Seconds>,
    output: Option<ByteSize>,
    total_output: Option<ByteSize>,
    checkpoints: Option<ByteSize>,
}

impl PartialLimits {
    /// Generous bounds where none are named, but never below the defaults of jobs.
    fn complete(&self, defaults: &Limits) -> Limits {
        let day = Seconds::whole(86_400);
        let larger = |a: f64, b: f64| if a > b { a } else { b };
        let longer = |a: Seconds, b: Seconds| if a > b { a } else { b };
        Limits {
            memory: self.memory.unwrap_or(ByteSize::gib(16).max(defaults.memory)),
            disk: self.disk.unwrap_or(ByteSize::gib(16).max(defaults.disk)),
            processes: self.processes.unwrap_or(4096.max(defaults.processes)),
            cpus: self.cpus.unwrap_or(larger(cores() as f64, defaults.cpus)),
            open_files: self.open_files.unwrap_or(16_384.max(defaults.open_files)),
            time: self.time.unwrap_or(longer(day, defaults.time)),
            step_time: self.step_time.unwrap_or(longer(day, defaults.step_time)),
            output: self.output.unwrap_or(ByteSize::gib(1).max(defaults.output)),
            total_output: self.total_output.unwrap_or(ByteSize::gib(16).max(defaults.total_output)),
            checkpoints: self.checkpoints.unwrap_or(ByteSize::gib(16).max(defaults.checkpoints)),
        }
    }
}

/// Everything decided, wherever it came from.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file that was named, if one was.
    pub(crate) named: Option<PathBuf>,
    pub(crate) file: ConfigFile,
    environment: Environment,
}

/// What the environment says that clap does not read for us.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    data_home: Option<PathBuf>,
    config_home: Option<PathBuf>,
    models: ModelEnvironment,
    token: Option<String>,
    proxies: ProxyEnvironment,
    /// The file with the authorities that this host trusts, where it says so.
    certificates: Option<PathBuf>,
    pub(crate) cluster: Option<String>,
    storage: StorageEnvironment,
    cluster_secret: Option<Hidden>,
    /// Where programs are looked for.
    programs: Vec<PathBuf>,
    /// Whether somebody sits before a screen on which a browser can show itself.
    has_screen: bool,
    /// The browser that the user wants.
    browser: Option<PathBuf>,
}

impl Environment {
    fn read() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from);
        let under_home = |folder| home.as_ref().map(|home| home.join(folder));
        let xdg = |name, folder| variable(name).map(PathBuf::from).or_else(|| under_home(folder));
        let kubeconfig = under_home(".kube/config").filter(|file| file.exists());
        Self {
            data_home: xdg("XDG_DATA_HOME", ".local/share"),
            config_home: xdg("XDG_CONFIG_HOME", ".config"),
            models: ModelEnvironment::read(),
            storage: StorageEnvironment::read(),
            cluster_secret: std::env::var("BELLGLASS_CLUSTER_SECRET")
                .ok()
                .filter(|secret| !secret.is_empty())
                .map(Hidden),
            token: std::env::var("BELLGLASS_TOKEN").ok().filter(|token| !token.is_empty()),
            proxies: ProxyEnvironment::read(),
            certificates: variable("SSL_CERT_FILE").map(PathBuf::from),
            cluster: variable("KUBECONFIG")
                .map(|_| "KUBECONFIG".to_owned())
                .or_else(|| kubeconfig.map(|file| file.display().to_string()))
                .or_else(|| variable("KUBERNETES_SERVICE_HOST").map(|_| "this pod".to_owned())),
            programs: variable("PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
            has_screen: variable("DISPLAY").or_else(|| variable("WAYLAND_DISPLAY")).is_some(),
            browser: variable("BROWSER").map(PathBuf::from),
        }
    }

    /// The path of a program that is given by its name. One that is not found stays as it is.
    fn program(&self, name: &Path) -> PathBuf {
        if name.components().count() > 1 {
            return std::path::absolute(name).unwrap_or_else(|_| name.to_path_buf());
        }
        let usual =
            ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin"].map(PathBuf::from);
        let folders = self.programs.iter().chain(&usual);
        let mut places = folders.map(|folder| folder.join(name));
        places.find(|place| place.is_file()).unwrap_or_else(|| name.to_path_buf())
    }
}

impl Config {
    /// Reads the file that was named, or the first that exists where one is expected.
    pub(crate) fn load(named: Option<&Path>) -> anyhow::Result<Self> {
        let environment = Environment::read();
        let file = match named {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                parse(&text, path)?
            }
            None => match first_of(expected_files(&environment))? {
                Some((path, text)) => parse(&text, &path)?,
                None => ConfigFile::default(),
            },
        };
        Ok(Self { named: named.map(Into::into), file, environment })
    }

    pub(crate) fn cluster(&self) -> Option<&str> {
        self.environment.cluster.as_deref()
    }

    /// A program that shows an address in a browser, if there is one and a screen for it.
    pub(crate) fn browser(&self) -> Option<PathBuf> {
        if let Some(wanted) = &self.environment.browser {
            return Some(self.environment.program(wanted));
        }
        let opener = self.environment.program(Path::new("xdg-open"));
        (self.environment.has_screen && opener.is_file()).then_some(opener)
    }

    /// The models that tasks can have.
    pub(crate) fn models(&self, data: &Path) -> anyhow::Result<Catalogue> {
        let file = &self.file;
        model_config::catalogue(&file.model, &file.memory, &self.environment.models, data)
    }

    /// The MCP servers that every task gets.
    pub(crate) fn mcp(&self) -> anyhow::Result<BTreeMap<String, OperatorServer>> {
        mcp_config::servers(&self.file.mcp)
    }

    pub(crate) fn data(&self, flag: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
        match flag.or(self.file.data.as_ref()) {
            Some(folder) => absolute(folder),
            None => Ok(self.data_home()?.join("bellglass")),
        }
    }

    pub(crate) fn images(&self, flag: &cli::ImageFolder) -> anyhow::Result<PathBuf> {
        match flag.folder.as_ref().or(self.file.images.as_ref()) {
            Some(folder) => absolute(folder),
            None => Ok(self.data_home()?.join("bellglass/images")),
        }
    }

    /// What sandboxes may reach of the network, as far as the operator decides it.
    pub(crate) fn network(&self) -> anyhow::Result<HostNetwork> {
        Ok(HostNetwork::new(self.network_config()?))
    }

    pub(crate) fn network_config(&self) -> anyhow::Result<NetworkConfig> {
        let section = &self.file.network;
        let rules: Result<Vec<HostRule>, String> =
            section.registries.iter().map(|rule| HostRule::parse(rule)).collect();
        let read = |(name, secret): (&String, &SecretSection)| {
            let context = || format!("the secret `{name}` under [secrets] is wrong");
            Ok((name.clone(), Arc::new(secret.read(name).with_context(context)?)))
        };
        Ok(NetworkConfig {
            registries: rules
                .map_err(anyhow::Error::msg)
                .context("`registries` under [network] is wrong")?,
            private_exceptions: section.private_exceptions.clone(),
            upstream: self.environment.proxies.upstream()?,
            certificates: self.environment.certificates.clone(),
            secrets: self.file.secrets.iter().map(read).collect::<anyhow::Result<_>>()?,
        })
    }

    pub(crate) fn sandboxes(&self) -> SandboxSettings {
        let SandboxSection { isolation, runsc, .. } = &self.file.sandbox;
        let runsc = self.environment.program(runsc);
        SandboxSettings { isolation: *isolation, runsc, warm: None }
    }

    fn data_home(&self) -> anyhow::Result<&Path> {
        let home = self.environment.data_home.as_deref();
        home.context("HOME is not set; say where data goes with --data and --images")
    }

    pub(crate) fn listen(&self, flag: Option<&str>) -> anyhow::Result<SocketAddr> {
        let text = flag.unwrap_or(&self.file.server.listen).trim();
        let text = text.replace("localhost", "127.0.0.1");
        text.parse().with_context(|| {
            format!("`{text}` is no address to listen on; write for example 127.0.0.1:8000")
        })
    }

    /// The settings of the HTTP side. Refuses to serve the world without a token.
    pub(crate) fn server_settings(
        &self,
        listen: SocketAddr,
        data: &Path,
    ) -> anyhow::Result<ServerSettings> {
        let section = &self.file.server;
        let token = self.environment.token.as_ref().or(section.token.as_ref());
        if let Some(token) = token
            && (token.len() < 16 || !token.chars().all(|c| c.is_ascii_graphic()))
        {
            bail!(
                "the token must be at least 16 visible ASCII characters; try `openssl rand -hex 32`"
            );
        }
        let loopback_only = listen.ip().is_loopback();
        if !loopback_only && token.is_none() {
            bail!(
                "{listen} can be reached from other machines, so a token is required: set \
                 BELLGLASS_TOKEN (try `openssl rand -hex 32`), or listen on 127.0.0.1"
            );
        }
        Ok(ServerSettings {
            token: token.map(Secret::new),
            allowed_hosts: section.allowed_hosts.clone(),
            sandbox_domain: section.sandbox_domain.clone(),
            app_key: Some(data.join("app-key")),
            vnc: section.vnc_ports.map(|PortRange { first, last }| VncSettings {
                ports: first..=last,
                password: section.vnc_password.as_ref().map(Secret::new),
                record: data.join("vnc-ports.json"),
            }),
            body_limit: section.body_limit,
            upload_limit: section.upload_limit,
            loopback_only,
            quotas: self.file.quotas.clone(),
        })
    }

    /// What holds for requests that other servers pass on: they have seen to all else.
    pub(crate) fn relayed_settings(&self) -> ServerSettings {
        let ServerSection { body_limit, upload_limit, .. } = self.file.server;
        ServerSettings { body_limit, upload_limit, ..ServerSettings::default() }
    }

    pub(crate) fn slots(&self, flag: Option<usize>) -> anyhow::Result<usize> {
        match flag.or(self.file.worker.slots) {
            Some(0) => bail!("`slots` must be at least 1"),
            Some(slots) => Ok(slots.min(10_000)),
            None => Ok(2 * cores()),
        }
    }

    /// How many sandboxes are kept ready.
    pub(crate) fn warm(&self, flag: Option<usize>) -> WarmSettings {
        let WarmSection { min, max } = self.file.sandbox.warm;
        WarmSettings {
            size: PoolSize { min, max: flag.unwrap_or(max).min(1000) },
            image: self.file.image.default.clone(),
            limits: self.file.limits,
        }
    }

    /// Where jobs and what they leave are kept.
    pub(crate) fn storage(&self) -> anyhow::Result<StorageSettings> {
        let ConfigFile { store, artifacts, .. } = &self.file;
        StorageSettings::read(store, artifacts, &self.environment.storage)
    }

    /// How this process reaches the others that share its store, if it does.
    pub(crate) fn shared_by(&self) -> anyhow::Result<Option<ClusterSettings>> {
        self.file.cluster.read(self.environment.cluster_secret.as_ref())
    }

    /// How long jobs may go on after the worker was told to stop. Alone it starts again and finds
    /// them; elsewhere the step that runs would be interrupted.
    pub(crate) fn grace(&self, sharing: Sharing) -> Duration {
        match (self.file.worker.grace, sharing) {
            (Some(grace), _) => grace.duration(),
            (None, Sharing::Alone) => Duration::ZERO,
            (None, Sharing::Shared) => Duration::from_secs(30),
        }
    }

    fn lease(&self) -> Duration {
        self.file.worker.lease.duration().max(Duration::from_secs(1))
    }

    fn sweep_every(&self) -> Duration {
        self.file.worker.sweep.duration().max(Duration::from_millis(100))
    }

    pub(crate) fn pace(&self, slots: usize, grace: Duration) -> Pace {
        let days = self.file.worker.keep_days.map(|days| u64::from(days) * 86_400);
        let keep_jobs = days.map(Duration::from_secs);
        Pace { slots, lease: self.lease(), sweep_every: self.sweep_every(), grace, keep_jobs }
    }

    /// What jobs are offered here.
    pub(crate) fn offer(&self, models: ModelOffer) -> anyhow::Result<Offer> {
        let defaults = self.file.limits;
        let offer = Offer {
            defaults,
            maxima: self.file.max_limits.complete(&defaults),
            default_image: self.file.image.default.clone(),
            isolation: self.file.sandbox.isolation,
            secrets: self.file.secrets.keys().cloned().collect(),
            models,
            budget: self.file.budget.or(default_budget()),
        };
        offer.check().context("[limits] or [max_limits] in bellglass.toml is wrong")?;
        Ok(offer)
    }
}

/// Enough for long work, and an end for what never ends.
fn default_budget() -> Budget {
    Budget { steps: Some(1000), ..Budget::default() }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn expected_files(environment: &Environment) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("bellglass.toml")];
    files
        .extend(environment.config_home.as_ref().map(|home| home.join("bellglass/bellglass.toml")));
    files.push("/etc/bellglass/bellglass.toml".into());
    files
}

/// The first file that is there. One that is there and cannot be read may hold a token, so the
/// server must not start as if there were none.
fn first_of(files: Vec<PathBuf>) -> anyhow::Result<Option<(PathBuf, String)>> {
    for path in files {
        match std::fs::read_to_string(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    Ok(None)
}

/// Reads the text of a file. An error names the file, the line and the column.
fn parse(text: &str, path: &Path) -> anyhow::Result<ConfigFile> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let offset = error.span().map_or(0, |span| span.start);
        let before = &text[..offset.min(text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        anyhow::anyhow!("{}:{line}:{column}: {}", path.display(), error.message())
    })
}

/// The same folder for programs that are started elsewhere.
fn absolute(folder: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(folder).with_context(|| format!("{} names no folder", folder.display()))
}

#[cfg(test)]
mod tests;
