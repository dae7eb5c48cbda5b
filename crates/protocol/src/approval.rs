//! What waits for the user's word: calls of tools, and connections to hosts.

use serde::{Deserialize, Serialize};

/// Something that is done only if the user allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Approval {
    /// The user's decision names it.
    pub id: String,
    #[serde(flatten)]
    pub wish: Wish,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The model wants to call a tool.
    Tool { name: String, arguments: String },
    /// A program in the sandbox wants to reach a host, such as `example.com:443`.
    Host(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Refuse,
}

/// Whether the user wants to be asked before a tool of this name is called. A name that ends with a
/// `*` stands for all that begin so.
pub fn is_named(names: &[String], tool: &str) -> bool {
    names.iter().any(|name| match name.strip_suffix('*') {
        Some(start) => tool.starts_with(start),
        None => name == tool,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_all_that_begin_so() {
        let names = ["shell".to_owned(), "mcp__git__*".to_owned()];
        for (tool, named) in
            [("shell", true), ("shells", false), ("mcp__git__push", true), ("python", false)]
        {
            assert_eq!(is_named(&names, tool), named, "{tool}");
        }
        assert!(is_named(&["*".into()], "anything"));
    }
}
