//! `diff_files`: how two text files differ.

use std::io::Read as _;
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::DiffFiles;
use similar::TextDiff;

use super::LONGEST_TEXT;
use super::text::{is_binary, shown};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::workspace::Workspace;

/// Larger files have better tools.
const LARGEST_FILE: u64 = 4 << 20;
/// After so long the smallest difference is not looked for any more; a larger one is as true.
const LOOKING: Duration = Duration::from_secs(5);

pub(super) fn diff(workspace: &Workspace, call: &DiffFiles) -> Result<String, ToolError> {
    let (from, to) = (load(workspace, &call.from)?, load(workspace, &call.to)?);
    if from == to {
        return Ok("[the files are the same]\n".into());
    }
    let diff = TextDiff::configure().timeout(LOOKING).diff_lines(from.as_slice(), to.as_slice());
    let mut unified = diff.unified_diff();
    let unified = unified.context_radius(3).header(&call.from, &call.to);
    let mut bytes = Vec::new();
    unified.to_writer(&mut bytes).map_err(|error| path_io_failure(&call.from, &error))?;
    let mut text = shown(&bytes);
    if text.len() > LONGEST_TEXT - 100 {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT - 100));
        text.push_str("\n[the rest of the diff is left out; use the shell's diff]\n");
    }
    Ok(text)
}

fn load(workspace: &Workspace, path: &str) -> Result<Vec<u8>, ToolError> {
    let (file, _) = workspace.open_file(path)?;
    let mut content = Vec::new();
    let read = file.take(LARGEST_FILE + 1).read_to_end(&mut content);
    read.map_err(|error| path_io_failure(path, &error))?;
    if content.len() as u64 > LARGEST_FILE {
        let words = format!("`{path}` has more than 4 MiB; use the shell's diff or cmp");
        return Err(failure("file_too_large", words));
    }
    if is_binary(&content) {
        let words = format!("`{path}` is a binary file; compare it with cmp in the shell");
        return Err(failure("binary_file", words));
    }
    Ok(content)
}
