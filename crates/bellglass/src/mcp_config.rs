//! The section `[mcp]`: MCP servers whose tools every task gets.

use std::collections::BTreeMap;

use anyhow::Context as _;
use bellglass_agent::model::Secret;
use bellglass_protocol::mcp::McpServer;
use bellglass_protocol::quantity::Seconds;
use bellglass_worker::OperatorServer;
use serde::Deserialize;

/// One server as `bellglass.toml` describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct McpSection {
    command: Vec<String>,
    env: BTreeMap<String, String>,
    url: Option<String>,
    timeout: Option<Seconds>,
    /// A variable of the server's environment that holds what is sent as `Authorization`.
    authorization_env: Option<String>,
}

pub(crate) fn servers(
    sections: &BTreeMap<String, McpSection>,
) -> anyhow::Result<BTreeMap<String, OperatorServer>> {
    let mut servers = BTreeMap::new();
    for (name, section) in sections {
        let server = McpServer {
            command: section.command.clone(),
            env: section.env.clone(),
            url: section.url.clone(),
            timeout: section.timeout,
        };
        let wrong = || format!("[mcp.{name}] in bellglass.toml is wrong");
        server.check(name).map_err(anyhow::Error::msg).with_context(wrong)?;
        let mut headers = BTreeMap::new();
        if let Some(variable) = &section.authorization_env {
            let value = std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
            let value =
                value.with_context(|| format!("{variable} is not set")).with_context(wrong)?;
            headers.insert("authorization".to_owned(), Secret::new(value.trim()));
        }
        servers.insert(name.clone(), OperatorServer { server, headers });
    }
    Ok(servers)
}
