//! What the host's apt is configured for: its Debian mirrors, proxies and certificates.
//!
//! apt itself is asked, so every form of its configuration is understood.

use std::process::Output;

use crate::image::program::host_command;

/// Arguments of `apt-get` that make it say where it looks, for [`debian_sources`].
pub(crate) const ASK_FOR_TARGETS: [&str; 4] = [
    "indextargets",
    "--format",
    "$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)",
    "Created-By: Packages",
];

/// The part of the host's apt configuration that an image build follows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostApt {
    /// Lines in the form of sources.list; empty on a host that is not Debian.
    pub sources: Vec<String>,
    /// Settings in the form of apt.conf.
    pub settings: Vec<String>,
}

impl HostApt {
    /// Asks the host's apt. What it does not answer is left to mmdebstrap's own defaults.
    pub(super) async fn ask(suite: &str) -> Self {
        let mut targets = host_command("apt-get");
        targets.args(ASK_FOR_TARGETS);
        let mut settings = host_command("apt-config");
        settings.arg("dump");
        let (targets, settings) = tokio::join!(targets.output(), settings.output());
        let text = |output: std::io::Result<Output>| {
            output.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).into())
        };
        Self {
            sources: debian_sources(&text(targets), suite),
            settings: network_settings(&text(settings)),
        }
    }
}

/// Debian's own archives of a suite. Sources of others are left out: what they would bring is
/// not in the recipe, and their keys are not in the image.
pub(crate) fn debian_sources(targets: &str, suite: &str) -> Vec<String> {
    let wanted = [suite.to_owned(), format!("{suite}-updates"), format!("{suite}-security")];
    let mut sources = Vec::new();
    for target in targets.lines() {
        let fields: Vec<&str> = target.split('|').collect();
        let [uri, release, codename, "main", origin] = fields[..] else { continue };
        // Before the first `apt-get update` apt cannot tell whose archive it is.
        let is_debian = match origin {
            "Debian" => true,
            "$(ORIGIN)" => uri
                .trim_end_matches('/')
                .rsplit('/')
                .take(2)
                .any(|part| part == "debian" || part == "debian-security"),
            _ => false,
        };
        let source = format!("deb {uri} {release} main");
        if is_debian
            && wanted.iter().any(|name| name == release || name == codename)
            && !sources.contains(&source)
        {
            sources.push(source);
        }
    }
    sources
}

/// How the host reaches its mirrors. Other settings are the host's own matter.
fn network_settings(dump: &str) -> Vec<String> {
    const FOLLOWED: [&str; 5] = [
        "Acquire::http::",
        "Acquire::https::",
        "Acquire::Check-Valid-Until ",
        "Acquire::ForceIPv4 ",
        "Acquire::ForceIPv6 ",
    ];
    dump.lines()
        .filter(|line| FOLLOWED.iter().any(|start| line.starts_with(start)))
        // A key without a value is only a heading.
        .filter(|line| !line.ends_with(" \"\";"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debians_own_archives_of_the_suite_are_taken() {
        let targets = "\
http://mirror/debian/|bookworm|bookworm|main|Debian
http://mirror/debian/|bookworm|bookworm|contrib|Debian
http://mirror/debian/|bookworm-updates|bookworm-updates|main|Debian
http://mirror/debian/|bookworm-backports|bookworm-backports|main|Debian Backports
http://mirror/debian-security/|stable-security|bookworm-security|main|Debian
http://vendor/apt/|bookworm|bookworm|main|Vendor
http://vendor/node/|nodistro|nodistro|main|Vendor
http://mirror/debian/|bookworm|bookworm|main|Debian
";
        assert_eq!(
            debian_sources(targets, "bookworm"),
            [
                "deb http://mirror/debian/ bookworm main",
                "deb http://mirror/debian/ bookworm-updates main",
                "deb http://mirror/debian-security/ stable-security main",
            ]
        );
        assert!(debian_sources(targets, "trixie").is_empty());
    }

    #[test]
    fn before_the_first_update_the_address_decides() {
        let targets = "\
http://mirror/debian/|bookworm|$(CODENAME)|main|$(ORIGIN)
http://vendor/apt/|bookworm|$(CODENAME)|main|$(ORIGIN)
";
        assert_eq!(
            debian_sources(targets, "bookworm"),
            ["deb http://mirror/debian/ bookworm main"]
        );
    }

    #[test]
    fn proxies_and_certificates_of_the_host_are_followed() {
        let dump = "\
Acquire::http \"\";
Acquire::http::Proxy \"http://proxy:3128\";
Acquire::http::Proxy::mirror \"DIRECT\";
Acquire::https::CAInfo \"/etc/ssl/own.pem\";
Acquire::https::Proxy \"\";
Acquire::Check-Valid-Until \"false\";
Acquire::Languages:: \"none\";
DPkg::Post-Invoke:: \"something\";
";
        assert_eq!(
            network_settings(dump),
            [
                "Acquire::http::Proxy \"http://proxy:3128\";",
                "Acquire::http::Proxy::mirror \"DIRECT\";",
                "Acquire::https::CAInfo \"/etc/ssl/own.pem\";",
                "Acquire::Check-Valid-Until \"false\";",
            ]
        );
    }
}
