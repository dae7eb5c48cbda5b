//! How a step ended, and the rules about paths and output that both sides of the glass apply.

use base64::Engine as _;
use serde::{Deserialize, Serialize};

/// How a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    Running,
    Succeeded,
    /// The tool reported an error, or the command ended with another code than 0.
    Failed,
    TimedOut,
    Cancelled,
    /// The sandbox was lost while the step ran.
    Interrupted,
}

impl StepStatus {
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Running | Self::Succeeded)
    }
}

/// Why a tool could not do what it was asked. Data for the model, not an error of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolError {
    /// A stable word such as `not_found`.
    pub code: String,
    pub message: String,
}

/// What the record of a step says about its end. All texts are bounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepOutcome {
    pub status: StepStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the process, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Head and tail of what was written to standard output.
    pub stdout: String,
    /// Head and tail of what was written to standard error.
    pub stderr: String,
    /// What a model would be shown.
    pub output: String,
    /// How many bytes the step wrote in all.
    pub output_bytes: u64,
    /// How many of them are not in `stdout` and `stderr`.
    pub dropped_bytes: u64,
    /// How many bytes nobody has any more: they came after as much as may be kept in full.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unkept_bytes: u64,
    /// The artifact that holds the output in full, where it did not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_output: Option<String>,
    /// Images and other things beside text that the step gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
    pub duration_ms: u64,
}

/// Something that a step gave beside text, such as a screenshot or a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attachment {
    /// What it is, such as `image/png`, as the sandbox tells it.
    pub media_type: String,
    pub bytes: u64,
    /// The artifact that holds it.
    pub artifact: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Which of a process's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Says why a text cannot name something inside the workspace; `Ok` if it can.
///
/// This is the rule about the words of a path. That no symlink leads out is kept by whoever opens it.
pub fn check_workspace_path(path: &str) -> Result<(), &'static str> {
    let relative = workspace_relative(path);
    if path.is_empty() || relative.is_empty() {
        return Err("is empty");
    }
    if path.contains('\0') {
        return Err("contains a NUL character");
    }
    if path.len() > 4000 || relative.split('/').any(|part| part.len() > 255) {
        return Err("is too long");
    }
    if relative.starts_with('/') {
        return Err("is outside of the workspace; use a path relative to /workspace");
    }
    if relative.split('/').any(|part| part == "..") {
        return Err("contains `..`; use a path below /workspace");
    }
    Ok(())
}

/// A path as the tools take it, without a leading `/workspace/` or `./`.
pub fn workspace_relative(path: &str) -> &str {
    let path = match path.strip_prefix("/workspace") {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    };
    let mut path = path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest.trim_start_matches('/');
    }
    if path == "." { "" } else { path }
}

/// Standard base64.
pub fn encode_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Decodes standard base64; line breaks are allowed.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let compact: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    base64::engine::general_purpose::STANDARD.decode(compact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_by_their_words() {
        for good in ["a", "a/b", "./a", "/workspace/a", "a..b", ".hidden", "/workspace//a"] {
            assert_eq!(check_workspace_path(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "/workspace", "/etc/passwd", "../a", "a/../b", "a\0b", "/workspacex/a"]
        {
            assert!(check_workspace_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn relative_forms() {
        for (path, relative) in
            [("/workspace/a/b", "a/b"), ("./x", "x"), (".", ""), ("/workspace", ""), ("/x", "/x")]
        {
            assert_eq!(workspace_relative(path), relative);
        }
    }
}
