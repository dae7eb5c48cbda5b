//! What can be reached inside a sandbox from outside: its ports, its services, its terminals.
//!
//! Who is let in, and what is written down about it, is decided outside.

use serde::{Deserialize, Serialize};

use crate::job::Screen;
use crate::wire::EGRESS_PORT;

/// Byte streams into one sandbox at once, terminals among them. The wire has room for more, which
/// the job itself needs.
pub const MAX_TUNNELS: usize = 128;

/// Ports that are taken from a guest's list, and the longest name of a program.
pub const MAX_PORTS: usize = 500;
pub const MAX_PROGRAM: usize = 64;

/// Something inside a sandbox that takes connections. Never anything beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "inside")]
pub enum Inside {
    /// A port on the sandbox's loopback.
    Port { port: AppPort },
    /// The VNC server of the desktop, which is started with this screen unless it runs.
    Desktop { screen: Screen },
    /// JupyterLab, which is started unless it runs.
    Jupyter,
}

/// A port of the sandbox that may be connected to from outside: any but the one that leads out of
/// the sandbox, or a visitor of one sandbox's pages could use its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct AppPort(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {0} is no app's; choose one that a program in the sandbox listens on")]
pub struct NotAnApp(pub u16);

impl TryFrom<u16> for AppPort {
    type Error = NotAnApp;

    fn try_from(port: u16) -> Result<Self, NotAnApp> {
        match port {
            0 | EGRESS_PORT => Err(NotAnApp(port)),
            port => Ok(Self(port)),
        }
    }
}

impl From<AppPort> for u16 {
    fn from(port: AppPort) -> Self {
        port.0
    }
}

impl std::fmt::Display for AppPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What of a sandbox a person opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LivePlace {
    Desktop,
    /// A shell of the person's own.
    Terminal,
    /// The terminal of a session that a tool opened.
    Session(String),
    /// A page of a program that listens on this port.
    Port(u16),
    Jupyter,
}

impl std::fmt::Display for LivePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Desktop => f.write_str("the desktop"),
            Self::Terminal => f.write_str("a terminal"),
            Self::Session(name) => write!(f, "the session {name}"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Jupyter => f.write_str("JupyterLab"),
        }
    }
}

/// A terminal for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "terminal")]
pub enum Terminal {
    /// A shell of the person's own, which ends with the stream.
    Shell { size: TerminalSize },
    /// The terminal of a session that a tool opened: it keeps its size and goes on without the
    /// person.
    Session { name: String },
}

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

impl TerminalSize {
    const LARGEST: u16 = 1000;

    /// The same, within what programs can draw on.
    pub fn bounded(self) -> Self {
        let bound = |count: u16| count.clamp(1, Self::LARGEST);
        Self { columns: bound(self.columns), rows: bound(self.rows) }
    }
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { columns: 120, rows: 40 }
    }
}

/// A port on which a program in the sandbox listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListeningPort {
    pub port: u16,
    /// The address that it listens on.
    pub address: String,
    /// The program, as far as it is known.
    pub program: Option<String>,
}

impl ListeningPort {
    /// The same with texts as long as they may be.
    pub fn bounded(mut self) -> Self {
        self.address.truncate(self.address.floor_char_boundary(MAX_PROGRAM));
        if let Some(program) = &mut self.program {
            program.truncate(program.floor_char_boundary(MAX_PROGRAM));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_no_app() {
        assert!(AppPort::try_from(EGRESS_PORT).is_err());
        assert!(AppPort::try_from(0).is_err());
        assert_eq!(AppPort::try_from(8000).map(u16::from), Ok(8000));
        let text = format!(r#"{{"inside":"port","port":{EGRESS_PORT}}}"#);
        assert!(serde_json::from_str::<Inside>(&text).is_err());
    }

    #[test]
    fn what_is_inside_reads_back() {
        for inside in [
            Inside::Port { port: AppPort(8080) },
            Inside::Desktop { screen: Screen::default() },
            Inside::Jupyter,
        ] {
            let text = serde_json::to_string(&inside).unwrap();
            assert_eq!(serde_json::from_str::<Inside>(&text).unwrap(), inside, "{text}");
        }
    }
}
