//! `read_file`: lines of a text file with their numbers, by range.
//!
//! The file is read through a buffer and only the wanted lines are kept, so its size does not matter.

use std::fs::File;
use std::io::{BufRead, BufReader};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ReadFile;

use super::LONGEST_TEXT;
use super::text::{is_binary, shown, size};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

const DEFAULT_LINES: u64 = 2000;
/// More of one line is of no use to a reader.
const LONGEST_LINE: usize = 4096;
/// Kept free for the note at the end.
const NOTE: usize = 512;

pub(super) fn read(
    workspace: &Workspace,
    call: &ReadFile,
    stop: &Stop,
) -> Result<String, ToolError> {
    let (file, stat) = workspace.open_file(&call.path)?;
    let first = call.offset.unwrap_or(1).max(1);
    let limit = call.limit.unwrap_or(DEFAULT_LINES).max(1);
    let mut lines = Lines { reader: BufReader::with_capacity(64 << 10, file), number: 0 };
    let failed = |error: std::io::Error| path_io_failure(&call.path, &error);

    if is_binary(lines.reader.fill_buf().map_err(failed)?) {
        return Err(failure(
            "binary_file",
            format!(
                "`{}` is a binary file ({}); look at it with a program such as file, xxd or python",
                call.path,
                size(stat.st_size as u64)
            ),
        ));
    }
    while lines.number + 1 < first {
        if stop.is_requested() {
            return Ok(String::new());
        }
        if !lines.skip().map_err(failed)? {
            return past_end(call, lines.number);
        }
    }

    let mut text = String::new();
    let mut taken = 0;
    while taken < limit && !stop.is_requested() {
        let Some(line) = lines.next().map_err(failed)? else {
            return if taken == 0 { past_end(call, lines.number) } else { Ok(text) };
        };
        let line = format!("{:>6}\t{}\n", lines.number, line.text());
        if text.len() + line.len() > LONGEST_TEXT - NOTE {
            lines.number -= 1;
            text.push_str(&go_on(&lines, "this is as much text as one answer holds"));
            return Ok(text);
        }
        text.push_str(&line);
        taken += 1;
    }
    if !lines.reader.fill_buf().map_err(failed)?.is_empty() {
        text.push_str(&go_on(&lines, "the file has more lines"));
    }
    Ok(text)
}

fn go_on(lines: &Lines, why: &str) -> String {
    format!("[{why}; go on with offset {}]\n", lines.number + 1)
}

fn past_end(call: &ReadFile, lines: u64) -> Result<String, ToolError> {
    if lines == 0 && call.offset.unwrap_or(1) <= 1 {
        return Ok("[the file is empty]\n".into());
    }
    Err(failure(
        "past_end",
        format!("`{}` has only {lines} lines; use a smaller offset", call.path),
    ))
}

struct Lines {
    reader: BufReader<File>,
    /// The number of the line that was read last.
    number: u64,
}

/// The head of a line, and how long it is in all.
struct Line {
    head: Vec<u8>,
    length: usize,
}

impl Line {
    fn text(&self) -> String {
        // A line break of Windows is a line break.
        let whole = self.head.len() == self.length;
        let head = self.head.strip_suffix(b"\r").filter(|_| whole).unwrap_or(&self.head);
        let text = shown(head);
        if whole { text } else { format!("{text}… [a line of {} bytes]", self.length) }
    }
}

impl Lines {
    fn next(&mut self) -> std::io::Result<Option<Line>> {
        let mut line = Line { head: Vec::new(), length: 0 };
        let found = self.each_piece(|piece| {
            line.length += piece.len();
            let room = LONGEST_LINE - line.head.len();
            line.head.extend_from_slice(&piece[..piece.len().min(room)]);
        })?;
        Ok(found.then_some(line))
    }

    fn skip(&mut self) -> std::io::Result<bool> {
        self.each_piece(|_| {})
    }

    /// Goes through one line without holding it; false at the end of the file.
    fn each_piece(&mut self, mut take: impl FnMut(&[u8])) -> std::io::Result<bool> {
        let mut found = false;
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            found = true;
            let end = memchr::memchr(b'\n', buffer);
            take(&buffer[..end.unwrap_or(buffer.len())]);
            let used = end.map_or(buffer.len(), |at| at + 1);
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        self.number += u64::from(found);
        Ok(found)
    }
}
