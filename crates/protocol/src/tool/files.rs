//! Calls of the file tools. Paths are words here; whoever opens them keeps them inside the workspace.

use serde::{Deserialize, Serialize};

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
    /// The text to replace, as it stands in the file, without line numbers. It must occur once.
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
pub struct MultiEdit {
    /// Path inside the workspace.
    pub path: String,
    /// The replacements, in the order in which they are made: each finds what the ones before it
    /// left.
    pub edits: Vec<Edit>,
}

/// One replacement of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The text to replace, as it stands in the file, without line numbers. It must occur once.
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
pub struct CopyFile {
    /// The file or folder to copy: a path inside the workspace.
    pub from: String,
    /// The path of the copy; nothing may stand there yet.
    pub to: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FindFiles {
    /// A glob such as `*.rs` (by the name) or `src/**/*.py` (by the path).
    pub glob: String,
    /// The folder to look in; the workspace itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiffFiles {
    /// The file as it was: a path inside the workspace.
    pub from: String,
    /// The file as it is: a path inside the workspace.
    pub to: String,
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
