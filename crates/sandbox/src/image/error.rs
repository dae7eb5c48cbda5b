//! What can go wrong with images, said so that a person knows what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::program::Outcome;
use super::progress::Stage;
use super::recipe::RecipeError;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Recipe(#[from] RecipeError),

    #[error(
        "building an image needs the program `{program}`, which is not installed; \
         install it with: apt-get install {package}"
    )]
    MissingProgram { program: &'static str, package: &'static str },

    #[error(
        "building an image as a plain user needs subordinate ids, but {file} has no line for \
         {user}; add them with: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    )]
    NoSubordinateIds { user: String, file: &'static str },

    #[error("images cannot be built for this machine's architecture, only for amd64 and arm64")]
    UnsupportedArchitecture,

    #[error(
        "{stage}: the {registry} cannot be reached:\n{output}\n\
         Check this host's network and proxy, and {advice}. Nothing was left behind; \
         run the build again when it can be reached."
    )]
    Unreachable { stage: Stage, registry: &'static str, advice: &'static str, output: String },

    #[error("{stage}: {program} failed ({status}):\n{output}")]
    ProgramFailed { stage: Stage, program: &'static str, status: String, output: String },

    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("{path} is not the manifest of an image: {source}; build the image again")]
    BadManifest { path: PathBuf, source: serde_json::Error },
}

/// Where a program fetches from, for telling a registry that is away from other failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registry {
    Debian,
    Python,
    Npm,
}

impl Registry {
    fn name(self) -> &'static str {
        match self {
            Self::Debian => "Debian mirror",
            Self::Python => "Python package index",
            Self::Npm => "npm registry",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Debian => "that `apt-get update` works (sources in /etc/apt)",
            Self::Python => "that `pip download requests` works (see `pip config list`)",
            Self::Npm => "that `npm ping` works (see `npm config get registry`)",
        }
    }
}

/// What the network's failures look like in the words of apt, pip and npm.
const NETWORK_FAILURES: [&str; 20] = [
    "Could not connect",
    "Unable to connect",
    "Connection refused",
    "Connection timed out",
    "connection timed out",
    "Connection failed",
    "Could not resolve",
    "Temporary failure",
    "Network is unreachable",
    "Max retries exceeded",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "ECONNREFUSED",
    "ECONNRESET",
    "ENOTFOUND",
    "ETIMEDOUT",
    "EAI_AGAIN",
    "EHOSTUNREACH",
];

impl ImageError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// The error of a program that ended badly, seen from what it printed last.
    pub(super) fn of_outcome(
        stage: Stage,
        program: &'static str,
        registry: Option<Registry>,
        outcome: &Outcome,
    ) -> Self {
        let is_network = |line: &String| NETWORK_FAILURES.iter().any(|words| line.contains(words));
        let output = telling_lines(&outcome.last_lines);
        match registry {
            Some(registry) if outcome.last_lines.iter().any(is_network) => Self::Unreachable {
                stage,
                registry: registry.name(),
                advice: registry.advice(),
                output,
            },
            _ => Self::ProgramFailed { stage, program, status: outcome.status.to_string(), output },
        }
    }
}

/// The last lines that speak of a problem, or simply the last ones where none does.
fn telling_lines(lines: &[String]) -> String {
    const KEPT: usize = 6;
    const LONGEST: usize = 300;
    // What mmdebstrap says of itself when a program that it ran has failed.
    let is_noise = |line: &str| {
        line.starts_with("I: ")
            || line.contains("-oAPT::Status-Fd=")
            || line == "E: mmdebstrap failed to run"
    };
    let tells = |line: &&String| {
        if is_noise(line) {
            return false;
        }
        let line = line.to_ascii_lowercase();
        ["err", "fail", "unable", "cannot", "could not", "not found", "e: ", "refused", "no space"]
            .iter()
            .any(|word| line.contains(word))
    };
    let mut told: Vec<&String> = lines.iter().filter(tells).collect();
    if told.is_empty() {
        told = lines.iter().collect();
    }
    told.dedup();
    let kept: Vec<String> = told
        .iter()
        .skip(told.len().saturating_sub(KEPT))
        .map(|line| without_credentials(line.trim()).chars().take(LONGEST).collect::<String>())
        .map(|line| format!("  {line}"))
        .collect();
    kept.join("\n")
}

/// Mirrors may be configured with a user and a password in their address.
fn without_credentials(line: &str) -> String {
    let mut pieces = line.split("://");
    let mut clean = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let authority = piece.find(['/', ' ', '\'', '"']).unwrap_or(piece.len());
        let host = piece[..authority].rfind('@').map_or(0, |at| at + 1);
        clean.push_str("://");
        clean.push_str(&piece[host..]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn error_after(registry: Registry, lines: &[&str]) -> String {
        let outcome = Outcome {
            status: std::process::ExitStatus::from_raw(0x100),
            last_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        ImageError::of_outcome(Stage::Packages, "a program", Some(registry), &outcome).to_string()
    }

    #[test]
    fn an_unreachable_registry_is_named_with_what_to_do() {
        for (registry, line, name, advice) in [
            (
                Registry::Debian,
                "E: Failed to fetch x  Could not connect to 127.0.0.1:9 (127.0.0.1).",
                "Debian mirror",
                "apt-get update",
            ),
            (
                Registry::Python,
                "WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
                "Python package index",
                "pip config list",
            ),
            (Registry::Npm, "npm error code ECONNREFUSED", "npm registry", "npm config get"),
        ] {
            let error = error_after(registry, &["all was well", line]);
            for part in [name, "cannot be reached", line, advice] {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
            assert!(!error.contains("all was well"), "{error}");
        }
    }

    #[test]
    fn another_failure_shows_the_status_and_the_last_lines() {
        let error = error_after(
            Registry::Debian,
            &["Get:1", "E: Unable to locate package cowsya", "E: mmdebstrap failed to run"],
        );
        assert_eq!(
            error,
            "packages: a program failed (exit status: 1):\n  E: Unable to locate package cowsya"
        );
        assert!(error_after(Registry::Npm, &["one", "two"]).ends_with("  one\n  two"));
    }

    #[test]
    fn credentials_of_a_mirror_are_not_shown() {
        let error = error_after(Registry::Debian, &["Err http://me:secret@mirror/debian x@y"]);
        assert!(error.contains("Err http://mirror/debian x@y"), "{error}");
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = ImageError::MissingProgram { program: "newuidmap", package: "uidmap" };
        assert!(error.to_string().ends_with("apt-get install uidmap"));
    }
}
