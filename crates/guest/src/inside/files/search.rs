//! `search_files`: lines that match a regular expression, by ripgrep's engine.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::SearchFiles;
use globset::{GlobBuilder, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use rustix::fs::FileType;

use super::text::{name, shown};
use super::walk;
use crate::inside::failure::failure;
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

const MOST_MATCHES: usize = 200;
const MOST_TEXT: usize = 64 << 10;
/// Of a long line, this much is shown around its first match.
const LINE_SHOWN: usize = 400;
const LINE_BEFORE_MATCH: usize = 100;
/// A file with a longer line than this is not text that anybody reads.
const LONGEST_LINE: usize = 8 << 20;

pub(super) fn search(
    workspace: &Workspace,
    call: &SearchFiles,
    stop: &Stop,
) -> Result<String, ToolError> {
    let matcher = RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .build(&call.pattern)
        .map_err(|error| {
            failure(
                "invalid_pattern",
                format!("{error}; a pattern matches within one line; escape ( ) [ ] {{ }} . * + ? | \\ with \\ to mean them literally"),
            )
        })?;
    let filter = call.glob.as_deref().map(Filter::new).transpose()?;
    let start = walk::start(workspace, call.path.as_deref())?;
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(LONGEST_LINE))
        .build();
    let mut page = Page { text: String::new(), matches: 0, skipped: 0, full: false };
    for entry in start.walk(None) {
        if page.full || stop.is_requested() {
            break;
        }
        let path = entry.path.as_path();
        let wanted = filter.as_ref().is_none_or(|filter| filter.matches(path));
        if !wanted || entry.kind() != FileType::RegularFile {
            continue;
        }
        let mut found = Found { page: &mut page, matcher: &matcher, path };
        let searched = entry
            .open()
            .map_err(io::Error::from)
            .and_then(|file| searcher.search_file(&matcher, &file, &mut found));
        page.skipped += usize::from(searched.is_err());
    }
    Ok(page.finish())
}

/// A glob over names if it has no `/`, over paths of the workspace otherwise.
pub(super) struct Filter {
    glob: GlobMatcher,
    whole_path: bool,
}

impl Filter {
    pub(super) fn new(pattern: &str) -> Result<Self, ToolError> {
        let whole_path = pattern.contains('/');
        let pattern = pattern.trim_start_matches("./").trim_start_matches("/workspace/");
        let glob = GlobBuilder::new(pattern).literal_separator(true).build().map_err(|error| {
            failure("invalid_glob", format!("{error}; write for example `*.rs` or `src/**/*.py`"))
        })?;
        Ok(Self { glob: glob.compile_matcher(), whole_path })
    }

    pub(super) fn matches(&self, path: &Path) -> bool {
        let subject = if self.whole_path { Some(path.as_os_str()) } else { path.file_name() };
        subject.is_some_and(|subject| self.glob.is_match(subject))
    }
}

struct Page {
    text: String,
    matches: usize,
    skipped: usize,
    full: bool,
}

impl Page {
    fn finish(mut self) -> String {
        if self.matches == 0 {
            self.text.push_str("[no line matches]\n");
        }
        if self.full {
            self.text.push_str(&format!(
                "[the first {} matches; narrow the search by `path`, `glob` or `pattern`]\n",
                self.matches
            ));
        }
        if self.skipped > 0 {
            self.text.push_str(&format!("[{} files could not be read]\n", self.skipped));
        }
        self.text
    }
}

struct Found<'a> {
    page: &'a mut Page,
    matcher: &'a RegexMatcher,
    path: &'a Path,
}

impl Sink for Found<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let path = name(self.path.as_os_str().as_bytes());
        let number = found.line_number().unwrap_or(0);
        let line = excerpt(self.matcher, found.bytes());
        let line = format!("{}:{number}:{line}\n", shown(path.as_bytes()));
        if self.page.matches == MOST_MATCHES || self.page.text.len() + line.len() > MOST_TEXT {
            self.page.full = true;
            return Ok(false);
        }
        self.page.text.push_str(&line);
        self.page.matches += 1;
        Ok(true)
    }
}

/// The line, or of a long one the part around its first match.
fn excerpt(matcher: &RegexMatcher, line: &[u8]) -> String {
    use grep_matcher::Matcher as _;
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= LINE_SHOWN {
        return shown(line);
    }
    let first = matcher.find(line).ok().flatten().map_or(0, |found| found.start());
    let start = first.saturating_sub(LINE_BEFORE_MATCH).min(line.len() - LINE_SHOWN);
    let end = start + LINE_SHOWN;
    let before = if start > 0 { "…" } else { "" };
    let after = if end < line.len() { "…" } else { "" };
    format!("{before}{}{after} [a line of {} bytes]", shown(&line[start..end]), line.len())
}
