//! `search_files`: lines that match a regular expression, by ripgrep's engine.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

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
/// Files that are looked at together: each may hold a folder open, and a page of lines.
const AT_ONCE: usize = 64;
/// Hands that search at most, and files that are worth one.
const MOST_HANDS: usize = 4;
const WORTH_A_HAND: usize = 8;
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
    let mut files = start.walk(None).filter(|entry| {
        let wanted = filter.as_ref().is_none_or(|filter| filter.matches(&entry.path));
        wanted && entry.kind() == FileType::RegularFile
    });
    let mut page = Page { text: String::new(), matches: 0, skipped: 0, full: false };
    while !page.full && !stop.is_requested() {
        let batch: Vec<walk::Found> = files.by_ref().take(AT_ONCE).collect();
        if batch.is_empty() {
            break;
        }
        for found in search_batch(&batch, &matcher, stop) {
            page.add(found);
        }
    }
    Ok(page.finish())
}

/// Searches some files, by as many hands as there are processors. What they found comes in the order of
/// the files, so that nobody sees how many hands there were.
fn search_batch(
    batch: &[walk::Found],
    matcher: &RegexMatcher,
    stop: &Stop,
) -> Vec<io::Result<Vec<String>>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LONGEST_LINE))
            .build();
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = batch.get(index).filter(|_| !stop.is_requested()) else {
                return done;
            };
            let mut found = Found { lines: Vec::new(), bytes: 0, matcher, path: &entry.path };
            let searched = entry
                .open()
                .map_err(io::Error::from)
                .and_then(|file| searcher.search_file(matcher, &file, &mut found));
            done.push((index, searched.map(|()| found.lines)));
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let helpers = processors.min(MOST_HANDS).min(batch.len() / WORTH_A_HAND).saturating_sub(1);
    let mut done = std::thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers)
            // Where there is no room for another thread, this one does it all.
            .filter_map(|_| {
                let name = std::thread::Builder::new().name("search".into());
                name.stack_size(STACK).spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut done = work();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_default());
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, found)| found).collect()
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
