//! The host names under which content of sandboxes is served, one for each app of each job.
//!
//! A browser keeps what has different host names apart. So nothing that a sandbox serves ever shares
//! an origin with the API, nor with another sandbox.

use axum::http::uri::Authority;
use bellglass_protocol::id::JobId;
use bellglass_protocol::tunnel::{AppPort, Inside, LivePlace};

/// Browsers resolve all names under this to the machine that they run on.
const LOCAL: &str = "localhost";

const JUPYTER: &str = "jupyter";

/// Something of one job that serves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppName {
    pub job: JobId,
    pub service: Service,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Port(AppPort),
    Jupyter,
}

impl Service {
    pub(crate) fn inside(self) -> Inside {
        match self {
            Self::Port(port) => Inside::Port { port },
            Self::Jupyter => Inside::Jupyter,
        }
    }

    pub(crate) fn place(self) -> LivePlace {
        match self {
            Self::Port(port) => LivePlace::Port(port.into()),
            Self::Jupyter => LivePlace::Jupyter,
        }
    }
}

impl AppName {
    /// The first part of its host name. A job's id has 36 characters and a part may have 63.
    pub(crate) fn label(&self) -> String {
        match self.service {
            Service::Port(port) => format!("{}-{port}", self.job),
            Service::Jupyter => format!("{}-{JUPYTER}", self.job),
        }
    }

    /// Only the one way in which [`AppName::label`] writes a name is read, so that an app has one
    /// origin.
    fn parse(label: &str) -> Option<Self> {
        let label = label.to_ascii_lowercase();
        let (job, service) = label.rsplit_once('-')?;
        let service = match service {
            JUPYTER => Service::Jupyter,
            port => Service::Port(AppPort::try_from(port.parse::<u16>().ok()?).ok()?),
        };
        let name = Self { job: job.parse().ok()?, service };
        (name.label() == label).then_some(name)
    }
}

/// Where the names of apps lie.
#[derive(Clone, Debug)]
pub(crate) struct AppDomain {
    /// A domain whose subdomains all lead to this server, perhaps with a port.
    configured: Option<String>,
}

impl AppDomain {
    pub(crate) fn new(configured: Option<&str>) -> Self {
        Self { configured: configured.map(str::to_ascii_lowercase) }
    }

    /// The app that a host name means; nothing if it is no name of an app.
    pub(crate) fn app(&self, host: &Authority) -> Option<AppName> {
        let (label, domain) = host.host().split_once('.')?;
        let configured = self.configured.as_deref().map(without_port);
        let known = [Some(LOCAL), configured].into_iter().flatten();
        let is_known = known.into_iter().any(|known| known.eq_ignore_ascii_case(domain));
        is_known.then(|| AppName::parse(label)).flatten()
    }

    /// The domain of apps for somebody who came under this host name; nothing if there is none.
    pub(crate) fn beside(&self, main: &Authority) -> Option<String> {
        let is_local = matches!(main.host(), LOCAL | "127.0.0.1" | "[::1]");
        match (&self.configured, is_local) {
            // Who came to this very machine needs no name service.
            (_, true) => Some(match main.port_u16() {
                Some(port) => format!("{LOCAL}:{port}"),
                None => LOCAL.into(),
            }),
            (configured, false) => configured.clone(),
        }
    }
}

fn without_port(domain: &str) -> &str {
    domain.split_once(':').map_or(domain, |(domain, _)| domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn app(host: &str) -> Option<String> {
        let domain = AppDomain::new(Some("apps.example.org:8443"));
        domain.app(&host.parse().unwrap()).map(|name| name.label())
    }

    #[test]
    fn names_of_apps_are_read_in_one_form_only() {
        let label = format!("{JOB}-8080");
        for host in ["localhost", "localhost:8000", "apps.example.org", "APPS.example.org:1"] {
            assert_eq!(app(&format!("{label}.{host}")), Some(label.clone()), "{host}");
        }
        assert_eq!(app(&format!("{JOB}-jupyter.localhost")), Some(format!("{JOB}-jupyter")));
        for host in [
            "localhost:8000".into(),
            format!("{label}.evil.example"),
            format!("{label}.localhost.evil.example"),
            format!("{JOB}-08080.localhost"),
            format!("{JOB}-+8080.localhost"),
            format!("{JOB}-0.localhost"),
            format!("{JOB}-3128.localhost"),
            format!("{JOB}.localhost"),
            format!("x.{label}.localhost"),
            "127.0.0.1:8000".into(),
            "[::1]:8000".into(),
        ] {
            assert_eq!(app(&host), None, "{host}");
        }
        assert!(label.len() <= 63);
    }

    #[test]
    fn the_domain_lies_beside_the_name_by_which_the_user_came() {
        let beside = |configured: Option<&str>, main: &str| {
            AppDomain::new(configured).beside(&main.parse().unwrap())
        };
        assert_eq!(beside(None, "localhost:8000").as_deref(), Some("localhost:8000"));
        assert_eq!(beside(None, "127.0.0.1:9").as_deref(), Some("localhost:9"));
        assert_eq!(beside(None, "[::1]").as_deref(), Some("localhost"));
        assert_eq!(beside(None, "bell.example"), None);
        let configured = Some("apps.example.org");
        assert_eq!(beside(configured, "bell.example").as_deref(), configured);
        assert_eq!(beside(configured, "localhost:1").as_deref(), Some("localhost:1"));
    }
}
