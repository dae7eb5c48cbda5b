//! The section `[secrets]`: what jobs may use without ever seeing it, and where it may go.
//!
//! No error here repeats a value, and nothing here can be printed with one.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use bellglass_sandbox::egress::{PathPrefix, Place, Secret, SecretValue};
use reqwest::header::{self, HeaderName};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// One secret as `bellglass.toml` describes it. Exactly one of `env`, `file` and `value` is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretSection {
    /// The value itself.
    value: Option<Hidden>,
    /// A variable of the server's environment that holds the value.
    env: Option<String>,
    /// A file that holds the value.
    file: Option<PathBuf>,
    /// The only hosts that the value is sent to.
    hosts: Vec<String>,
    /// Where the paths of requests must begin.
    path: Option<String>,
    /// The header that the value is part of.
    header: Option<String>,
    /// What requests get that do not have the header, with `{}` in the value's place.
    format: Option<String>,
}

impl SecretSection {
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Secret> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        ensure!(
            !name.is_empty() && name.len() <= 64 && name.chars().all(fits),
            "its name must be lower-case letters, digits, `-` and `_`, at most 64 long"
        );
        ensure!(!self.hosts.is_empty(), "`hosts` is empty; name the hosts that it is for");
        let places: Result<Vec<Place>, String> =
            self.hosts.iter().map(|host| Place::parse(host)).collect();
        let path = self.path.as_deref().map(PathPrefix::parse).transpose();
        if let Some(format) = &self.format {
            ensure!(format.contains("{}"), "`format` needs `{{}}` where the value goes");
        }
        Ok(Secret {
            value: SecretValue::new(self.value()?).map_err(anyhow::Error::msg)?,
            places: places.map_err(anyhow::Error::msg)?,
            path: path.map_err(anyhow::Error::msg)?,
            header: read_header(self.header.as_deref().unwrap_or("authorization"))?,
            format: self.format.clone(),
        })
    }

    fn value(&self) -> anyhow::Result<String> {
        match (&self.value, &self.env, &self.file) {
            (Some(Hidden(value)), None, None) => Ok(value.clone()),
            (None, Some(variable), None) => std::env::var(variable)
                .ok()
                .with_context(|| format!("the environment variable {variable} is not set")),
            (None, None, Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("cannot read {}", file.display()))?;
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            _ => bail!("give exactly one of `env`, `file` and `value`"),
        }
    }
}

/// Some headers say how a request is to be read; those are not for secrets.
fn read_header(name: &str) -> anyhow::Result<HeaderName> {
    const OTHERS: [HeaderName; 6] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::HOST,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let name: HeaderName =
        name.parse().ok().with_context(|| format!("`{name}` is not the name of a header"))?;
    ensure!(!OTHERS.contains(&name), "the header `{name}` cannot carry a secret");
    Ok(name)
}

/// A text that is not shown.
#[derive(Clone)]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Self(text)),
            // The usual error would quote what stands there.
            _ => Err(D::Error::custom("the value of a secret is a text in quotes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Secret, String> {
        let section: SecretSection = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        section.read("github").map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn secrets_read_as_documented() {
        let text = "value = \"hush\"\nhosts = [\"api.example.com\"]\npath = \"/v1\"\n\
                    header = \"X-Key\"\nformat = \"Key {}\"\n";
        let secret = read(text).unwrap();
        assert_eq!(secret.value, SecretValue::new("hush").unwrap());
        assert_eq!(secret.header, "x-key");
        assert_eq!(secret.places.len(), 1);
        let secret = read("value = \"hush\"\nhosts = [\"a.example\"]\n").unwrap();
        assert_eq!((secret.header, secret.format), (header::AUTHORIZATION, None));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from a file\n").unwrap();
        let text = format!("file = {:?}\nhosts = [\"a.example\"]\n", file.path());
        assert_eq!(read(&text).unwrap().value, SecretValue::new("from a file").unwrap());
    }

    #[test]
    fn no_mistake_shows_a_value() {
        for (text, expected) in [
            ("value = 73313\nhosts = [\"a\"]", "a text in quotes"),
            ("value = \"73313\"\nhosts = []", "`hosts` is empty"),
            ("value = \"73313\"\nhosts = [\"*.a\"]", "is not a host"),
            ("value = \"73313\"\nenv = \"X\"\nhosts = [\"a\"]", "exactly one of"),
            ("hosts = [\"a\"]", "exactly one of"),
            ("env = \"NO_SUCH_VARIABLE\"\nhosts = [\"a\"]", "NO_SUCH_VARIABLE is not set"),
            ("file = \"/no/such/file\"\nhosts = [\"a\"]", "cannot read /no/such/file"),
            ("value = \"73313\\n\"\nhosts = [\"a\"]", "a line break"),
            ("value = \"73313\"\nhosts = [\"a\"]\nheader = \"host\"", "cannot carry"),
            ("value = \"73313\"\nhosts = [\"a\"]\nheader = \"a b\"", "name of a header"),
            ("value = \"73313\"\nhosts = [\"a\"]\nformat = \"x\"", "`format` needs"),
            ("value = \"73313\"\nhosts = [\"a\"]\npath = \"v1\"", "not a plain path"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("73313"), "{error}");
        }
        let section: SecretSection = toml::from_str("value = \"73313\"\nhosts = []").unwrap();
        assert!(!format!("{section:?}").contains("73313"));
    }
}
