//! The tools: what a step may ask for. One definition for playbooks, for models and for the guest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::Seconds;

/// One tool call as a client, a model or a playbook writes it: `{"tool": "shell", "command": "ls"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "tool", rename_all = "snake_case")]
pub enum ToolCall {
    /// Runs a command line in bash.
    Shell(Shell),
    /// Runs Python code.
    Python(Code),
    /// Runs TypeScript code.
    #[serde(rename = "typescript")]
    TypeScript(Code),
    /// Creates a file or replaces its content.
    WriteFile(WriteFile),
    /// Reads lines of a text file.
    ReadFile(ReadFile),
    /// Replaces an exact piece of text in a file.
    EditFile(EditFile),
    /// Moves or renames a file or a folder.
    MoveFile(MoveFile),
    /// Deletes a file, or a folder with all that is in it.
    DeleteFile(DeleteFile),
    /// Lists a folder as a tree, leaving out what .gitignore names.
    ListFiles(ListFiles),
    /// Finds lines that match a regular expression.
    SearchFiles(SearchFiles),
}

impl ToolCall {
    /// Every tool's name, in the order in which documents list them.
    pub const NAMES: [&str; 10] = [
        "shell",
        "python",
        "typescript",
        "write_file",
        "read_file",
        "edit_file",
        "move_file",
        "delete_file",
        "list_files",
        "search_files",
    ];

    pub fn name(&self) -> &'static str {
        match self {
            Self::Shell(_) => "shell",
            Self::Python(_) => "python",
            Self::TypeScript(_) => "typescript",
            Self::WriteFile(_) => "write_file",
            Self::ReadFile(_) => "read_file",
            Self::EditFile(_) => "edit_file",
            Self::MoveFile(_) => "move_file",
            Self::DeleteFile(_) => "delete_file",
            Self::ListFiles(_) => "list_files",
            Self::SearchFiles(_) => "search_files",
        }
    }

    /// The time limit that the call itself asks for.
    pub fn timeout(&self) -> Option<Seconds> {
        match self {
            Self::Shell(shell) => shell.timeout,
            Self::Python(code) | Self::TypeScript(code) => code.timeout,
            _ => None,
        }
    }

    /// The call's fields without the tool's name.
    pub fn arguments(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("tool");
        }
        value
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// The command line, given to `bash -c`.
    pub command: String,
    /// Where to run it; relative to the workspace. The workspace itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// More environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Seconds until the command and all it started is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// The source text. It runs with the workspace as its current folder.
    pub code: String,
    /// Seconds until it and all it started is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Path inside the workspace; missing folders are made.
    pub path: String,
    /// The whole content of the file.
    pub content: String,
    /// How `content` is written: plain text, or base64 for binary content.
    #[serde(default, skip_serializing_if = "Encoding::is_text")]
    pub encoding: Encoding,
    /// Whether the file may be executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// How a file's content is written inside JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    #[default]
    Text,
    Base64,
}

impl Encoding {
    fn is_text(&self) -> bool {
        *self == Self::Text
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Path inside the workspace.
    pub path: String,
    /// First line to read, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How many lines to read at the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// Path inside the workspace.
    pub path: String,
    /// The text to replace, exactly as it stands in the file. It must occur once.
    pub old: String,
    /// What to put in its place.
    pub new: String,
    /// Replace every occurrence instead of exactly one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_all: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// What to move: a path inside the workspace.
    pub from: String,
    /// The new path; nothing may stand there yet.
    pub to: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteFile {
    /// Path inside the workspace.
    pub path: String,
    /// Needed for a folder that is not empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The folder; the workspace itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How many levels deep to go; 3 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SearchFiles {
    /// A regular expression in Rust's (ripgrep's) syntax.
    pub pattern: String,
    /// The file or folder to search; the workspace itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only files whose path matches this glob, such as `**/*.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_read_as_documented() {
        let call: ToolCall =
            serde_json::from_str(r#"{"tool":"shell","command":"ls","timeout":2}"#).unwrap();
        assert_eq!(call.name(), "shell");
        assert_eq!(call.timeout().unwrap().get(), 2.0);
        assert_eq!(call.arguments(), serde_json::json!({"command": "ls", "timeout": 2.0}));
    }

    #[test]
    fn unknown_fields_and_tools_are_refused() {
        for bad in [
            r#"{"tool":"shell","command":"ls","sudo":true}"#,
            r#"{"tool":"teleport"}"#,
            r#"{"tool":"shell"}"#,
            r#"{"command":"ls"}"#,
            r#"{"tool":"shell","command":5}"#,
        ] {
            assert!(serde_json::from_str::<ToolCall>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_list_of_names_is_complete() {
        let error = serde_json::from_str::<ToolCall>(r#"{"tool":"?"}"#).unwrap_err().to_string();
        for name in ToolCall::NAMES {
            assert!(error.contains(&format!("`{name}`")), "{name} is not in: {error}");
        }
        assert_eq!(error.matches('`').count(), 2 * (ToolCall::NAMES.len() + 1));
    }
}
