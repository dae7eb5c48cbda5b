//! `find_files`: files whose name or path matches a glob.

use std::os::unix::ffi::OsStrExt;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::FindFiles;
use rustix::fs::FileType;

use super::search::Filter;
use super::text::{name, shown};
use super::walk;
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

const MOST_FOUND: usize = 1000;
const MOST_TEXT: usize = 128 << 10;

pub(super) fn find(
    workspace: &Workspace,
    call: &FindFiles,
    stop: &Stop,
) -> Result<String, ToolError> {
    let filter = Filter::new(&call.glob)?;
    let start = walk::start(workspace, call.path.as_deref())?;
    let mut text = String::new();
    let mut found = 0;
    for entry in start.walk(None) {
        if stop.is_requested() {
            break;
        }
        if entry.kind() == FileType::Directory || !filter.matches(&entry.path) {
            continue;
        }
        if found == MOST_FOUND || text.len() > MOST_TEXT {
            text.push_str(&format!("[the first {found}; narrow it by `path` or `glob`]\n"));
            return Ok(text);
        }
        found += 1;
        // A line break in a name must not look like another file.
        let path = name(entry.path.as_os_str().as_bytes()).replace('\n', "␊");
        text.push_str(&shown(path.as_bytes()));
        text.push('\n');
    }
    Ok(if found == 0 { "[no file matches]\n".into() } else { text })
}
