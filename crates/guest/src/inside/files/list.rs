//! `list_files`: a folder as a tree, folders first, leaving out what .gitignore names.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ListFiles;
use rustix::fs::FileType;

use super::LONGEST_TEXT;
use super::text::{name, shown, size};
use super::walk::{self, Found};
use crate::inside::failure::failure;
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

const DEFAULT_DEPTH: u32 = 3;
/// Entries that an answer shows.
const MOST_SHOWN: usize = 1000;
/// Entries that are looked at; past this a tree is too large to be put in order.
const MOST_WALKED: usize = 50_000;

pub(super) fn list(
    workspace: &Workspace,
    call: &ListFiles,
    stop: &Stop,
) -> Result<String, ToolError> {
    let start = walk::start(workspace, call.path.as_deref())?;
    if !start.is_folder() {
        let path = call.path.as_deref().unwrap_or_default();
        return Err(failure("not_a_folder", format!("`{path}` is a file; read_file reads it")));
    }
    let depth = call.depth.unwrap_or(DEFAULT_DEPTH).max(1) as usize;
    let mut tree = Node::default();
    let mut walked = 0;
    for found in start.walk(Some(depth)) {
        let Ok(relative) = found.path.strip_prefix(start.path()) else { continue };
        if stop.is_requested() || walked == MOST_WALKED {
            break;
        }
        walked += 1;
        tree.insert(relative.iter(), &found);
    }
    if walked == 0 {
        return Ok("[the folder is empty]\n".into());
    }
    let mut page = Page { text: String::new(), shown: 0 };
    tree.show(&mut page, 0);
    if page.shown < walked {
        let more = if walked == MOST_WALKED { "at least " } else { "" };
        page.text.push_str(&format!(
            "[{} of {more}{walked} entries; list a folder in it by `path`, or less of it by `depth`]\n",
            page.shown
        ));
    }
    Ok(page.text)
}

#[derive(Default)]
struct Node {
    folders: BTreeMap<OsString, Node>,
    /// Each file with what stands behind its name.
    files: BTreeMap<OsString, String>,
}

struct Page {
    text: String,
    shown: usize,
}

impl Page {
    fn line(&mut self, depth: usize, line: &str) {
        if self.is_full() {
            return;
        }
        self.shown += 1;
        self.text.push_str(&"  ".repeat(depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn is_full(&self) -> bool {
        // A line has at most a name, a symlink's target and its indentation.
        self.shown == MOST_SHOWN || self.text.len() > LONGEST_TEXT - 16_384
    }
}

impl Node {
    fn insert<'a>(&mut self, mut path: impl Iterator<Item = &'a OsStr>, found: &Found) {
        let Some(part) = path.next() else { return };
        let mut node = self;
        let mut last = part;
        for part in path {
            node = node.folders.entry(last.to_owned()).or_default();
            last = part;
        }
        if found.kind() == FileType::Directory {
            node.folders.entry(last.to_owned()).or_default();
        } else {
            node.files.insert(last.to_owned(), note(found));
        }
    }

    fn show(&self, page: &mut Page, depth: usize) {
        for (folder, node) in &self.folders {
            if page.is_full() {
                return;
            }
            page.line(depth, &format!("{}/", line_name(folder)));
            node.show(page, depth + 1);
        }
        for (file, note) in &self.files {
            page.line(depth, &format!("{}{note}", line_name(file)));
        }
    }
}

/// A line break in a name must not look like another entry.
fn line_name(text: &OsStr) -> String {
    shown(name(text.as_bytes()).replace('\n', "␊").as_bytes())
}

fn note(found: &Found) -> String {
    match found.kind() {
        FileType::Symlink => {
            let target = found.symlink_target().unwrap_or_default();
            format!(" -> {}", line_name(&target))
        }
        FileType::RegularFile => format!("  {}", size(found.stat.st_size as u64)),
        _ => "  (not a plain file)".into(),
    }
}
