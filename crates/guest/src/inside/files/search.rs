//! `search_files`: lines that match a regular expression, by ripgrep's engine.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
/// Hands that search at most, files that are worth one, and how many are looked for to know.
const MOST_HANDS: usize = 4;
const WORTH_A_HAND: usize = 8;
const FIRST_LOOK: usize = MOST_HANDS * WORTH_A_HAND;
/// Files that a hand takes at a time.
const A_FEW: usize = 8;
/// How far hands may be ahead of a file that takes long: each file may leave a page of lines.
const FARTHEST_AHEAD: usize = 64;
const FOR_THE_SLOW: Duration = Duration::from_millis(1);
const STACK: usize = 256 << 10;

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
    let files = start.walk(None).filter(|entry| {
        let wanted = filter.as_ref().is_none_or(|filter| filter.matches(&entry.path));
        wanted && entry.kind() == FileType::RegularFile
    });
    Ok(search_all(files, &matcher, stop).finish())
}

/// Searches files by as many hands as there are processors. What they found is taken in the order of the files,
/// so that nobody sees how many hands there were.
fn search_all(
    mut files: impl Iterator<Item = walk::Found> + Send,
    matcher: &RegexMatcher,
    stop: &Stop,
) -> Page {
    let first: VecDeque<walk::Found> = files.by_ref().take(FIRST_LOOK).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let helpers = processors.min(MOST_HANDS).min(first.len() / WORTH_A_HAND).saturating_sub(1);
    let table = Mutex::new(Table {
        files: first.into_iter().chain(files),
        handed_out: 0,
        found: BTreeMap::new(),
        taken_in: 0,
        page: Page { text: String::new(), matches: 0, skipped: 0, full: false },
    });
    let work = || search_some(&table, matcher, stop);
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            let name = std::thread::Builder::new().name("search".into());
            // Where there is no room for another thread, this one does it all.
            let _ = name.stack_size(STACK).spawn_scoped(scope, work);
        }
        work();
    });
    table.into_inner().unwrap_or_else(PoisonError::into_inner).page
}

/// What all hands share.
struct Table<F> {
    files: F,
    handed_out: usize,
    /// What was found in files that come after one which is still looked at.
    found: BTreeMap<usize, io::Result<Vec<String>>>,
    taken_in: usize,
    page: Page,
}

/// One hand: takes a few files at a time until there are no more, or enough was found.
fn search_some<F: Iterator<Item = walk::Found>>(
    table: &Mutex<Table<F>>,
    matcher: &RegexMatcher,
    stop: &Stop,
) {
    let table = || table.lock().unwrap_or_else(PoisonError::into_inner);
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(LONGEST_LINE))
        .build();
    let mut files = Vec::with_capacity(A_FEW);
    loop {
        let start = {
            let mut table = table();
            if table.page.full || stop.is_requested() {
                return;
            }
            if table.handed_out - table.taken_in > FARTHEST_AHEAD {
                drop(table);
                std::thread::sleep(FOR_THE_SLOW);
                continue;
            }
            files.extend(table.files.by_ref().take(A_FEW));
            let start = table.handed_out;
            table.handed_out += files.len();
            start
        };
        if files.is_empty() {
            return;
        }
        let search = |file: walk::Found| {
            let mut found = Found { lines: Vec::new(), bytes: 0, matcher, path: &file.path };
            let opened = file.open().map_err(io::Error::from);
            let searched = opened.and_then(|open| searcher.search_file(matcher, &open, &mut found));
            searched.map(|()| found.lines)
        };
        let found: Vec<_> = (start..).zip(files.drain(..).map(search)).collect();
        let mut table = table();
        table.found.extend(found);
        let mut next = table.taken_in;
        while let Some(found) = table.found.remove(&next) {
            table.page.add(found);
            next += 1;
        }
        table.taken_in = next;
    }
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
    fn add(&mut self, found: io::Result<Vec<String>>) {
        let Ok(lines) = found else {
            self.skipped += usize::from(!self.full);
            return;
        };
        for line in lines {
            if self.matches == MOST_MATCHES || self.text.len() + line.len() > MOST_TEXT {
                self.full = true;
            }
            if self.full {
                return;
            }
            self.text.push_str(&line);
            self.matches += 1;
        }
    }

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

/// What one file has, up to one line more than a page holds.
struct Found<'a> {
    lines: Vec<String>,
    bytes: usize,
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
        self.bytes += line.len();
        self.lines.push(line);
        Ok(self.lines.len() <= MOST_MATCHES && self.bytes <= MOST_TEXT)
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
