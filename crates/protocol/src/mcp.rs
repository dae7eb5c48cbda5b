//! MCP servers whose tools a task's model may use beside ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::Seconds;
use crate::request::{RequestError, invalid};

/// An MCP server: a `command` that is started inside the sandbox, or a `url` that the worker speaks
/// to. Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// Program and arguments of a server on standard input and output. Runs in the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// More variables of its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The address of a server that speaks streamable HTTP. Must be public, unless the operator
    /// configured the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// How long it may take to start, and to answer a call; a minute by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

/// What stands before the name of a tool of an MCP server, with the server's name after it.
pub const MCP_PREFIX: &str = "mcp__";

const MOST_SERVERS: usize = 16;

/// Checks the servers that a job asks for.
pub(crate) fn check(servers: &BTreeMap<String, McpServer>) -> Result<(), RequestError> {
    if servers.len() > MOST_SERVERS {
        return Err(invalid("mcp", "has more than 16 servers"));
    }
    for (name, server) in servers {
        let place = format!("mcp.{name}");
        server.check(name).map_err(|why| invalid(&place, &why))?;
    }
    Ok(())
}

impl McpServer {
    /// What is wrong with a server of this name.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if name.is_empty() || name.len() > 24 || !name.chars().all(fits) {
            return Err("must have a name of 1 to 24 letters, digits and `-`".into());
        }
        match (&self.command[..], &self.url) {
            ([], None) => Err("needs a `command` or a `url`".into()),
            ([_, ..], Some(_)) => Err("has a `command` and a `url`; give one of them".into()),
            ([program, ..], None) if program.trim().is_empty() => {
                Err("has an empty program in `command`".into())
            }
            ([_, ..], None) => match self.command.iter().any(|word| word.contains('\0')) {
                true => Err("has a NUL character in `command`".into()),
                false => Ok(()),
            },
            ([], Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                match self.env.is_empty() {
                    true => Ok(()),
                    false => Err("has `env`, which is for a `command`".into()),
                }
            }
            ([], Some(_)) => Err("must have a `url` that begins with http:// or https://".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_command_or_an_address() {
        for (name, server, fault) in [
            ("a", r#"{"command":["x","y"],"env":{"A":"b"},"timeout":"5s"}"#, None),
            ("a", r#"{"url":"https://example.com/mcp"}"#, None),
            ("a", "{}", Some("needs")),
            ("a", r#"{"command":["x"],"url":"http://x"}"#, Some("one of them")),
            ("a", r#"{"command":[" "]}"#, Some("empty")),
            ("a", r#"{"url":"file:///x"}"#, Some("http://")),
            ("a", r#"{"url":"http://x","env":{"A":"b"}}"#, Some("env")),
            ("a b", r#"{"command":["x"]}"#, Some("name")),
            ("a__b", r#"{"command":["x"]}"#, Some("name")),
        ] {
            let server: McpServer = serde_json::from_str(server).unwrap();
            let found = server.check(name);
            match fault {
                None => assert_eq!(found, Ok(()), "{name} {server:?}"),
                Some(part) => assert!(found.unwrap_err().contains(part), "{name} {server:?}"),
            }
        }
    }
}
