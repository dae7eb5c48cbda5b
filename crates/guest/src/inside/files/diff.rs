//! `diff_files`: how two text files differ.

use std::io::Read as _;
use std::time::Duration;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::DiffFiles;
use similar::{ChangeTag, TextDiff};

use super::LONGEST_TEXT;
use super::text::{is_binary, shown};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::workspace::Workspace;

/// Larger files have better tools.
const LARGEST_FILE: u64 = 4 << 20;
/// After so long the smallest difference is not looked for any more; a larger one is as true.
const LOOKING: Duration = Duration::from_secs(5);
/// Lines before and after a change that are shown with it.
const LINES_AROUND: usize = 3;

pub(super) fn diff(workspace: &Workspace, call: &DiffFiles) -> Result<String, ToolError> {
    let (from, to) = (load(workspace, &call.from)?, load(workspace, &call.to)?);
    if from == to {
        return Ok("[the files are the same]\n".into());
    }
    let head = format!("--- {}\n+++ {}\n", named(&call.from), named(&call.to));
    let bytes = [head.as_bytes(), &hunks(&from, &to)].concat();
    let (text, is_whole) = match String::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => (shown(error.as_bytes()), false),
    };
    let end = bounded(&text);
    Ok(match (end < text.len(), is_whole) {
        (true, _) => format!("{}\n[the rest is left out; use the shell's diff]\n", &text[..end]),
        (false, true) => text,
        (false, false) => format!(
            "{text}[some bytes are no UTF-8 and shown as they can be; `patch` needs the shell's diff]\n"
        ),
    })
}

/// What differs, with lines around it. Only `\n` ends a line, as for `patch`.
fn hunks(from: &[u8], to: &[u8]) -> Vec<u8> {
    let lines = |content| <[u8]>::split_inclusive(content, |byte| *byte == b'\n').collect();
    let (from, to): (Vec<&[u8]>, Vec<&[u8]>) = (lines(from), lines(to));
    let diff = TextDiff::configure().timeout(LOOKING).diff_slices(&from, &to);
    let mut text = Vec::new();
    for group in diff.grouped_ops(LINES_AROUND) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let old = extent(first.old_range().start, last.old_range().end);
        let new = extent(first.new_range().start, last.new_range().end);
        text.extend_from_slice(format!("@@ -{old} +{new} @@\n").as_bytes());
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Equal => b' ',
                ChangeTag::Delete => b'-',
                ChangeTag::Insert => b'+',
            };
            text.push(sign);
            text.extend_from_slice(change.value());
            if !change.value().ends_with(b"\n") {
                text.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
    }
    text
}

/// Lines as a hunk's head counts them: from 1 on, and an empty piece by the line before it.
fn extent(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

/// A path as `patch` reads it: one with spaces ends at a tab, one with worse is quoted.
fn named(path: &str) -> String {
    if !path.contains(|c: char| c.is_control() || c == '"' || c == '\\') {
        return if path.contains(' ') { format!("{path}\t") } else { path.to_owned() };
    }
    let mut quoted = String::from('"');
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            byte => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted + "\""
}

/// Where a text is cut so that it fits into a frame, in which control characters take six bytes.
fn bounded(text: &str) -> usize {
    let mut room = LONGEST_TEXT - 100;
    let past = text.char_indices().find(|(_, c)| {
        let bytes = if c.is_ascii_control() { 6 } else { c.len_utf8() };
        let fits = room.checked_sub(bytes);
        room = fits.unwrap_or(0);
        fits.is_none()
    });
    past.map_or(text.len(), |(at, _)| at)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_what_patch_reads() {
        for (from, to, expected) in [
            ("a\nb\nc\n", "a\nB\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"),
            ("", "a\n", "@@ -0,0 +1 @@\n+a\n"),
            ("a\n", "a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n"),
            // Only a line feed ends a line.
            ("a\rb\r\n", "a\rc\r", "@@ -1 +1 @@\n-a\rb\r\n+a\rc\r\n\\ No newline at end of file\n"),
        ] {
            let text = hunks(from.as_bytes(), to.as_bytes());
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn paths_are_named_so_that_they_are_read_back() {
        for (path, expected) in
            [("a/b", "a/b"), ("a b", "a b\t"), ("a\n\"é", "\"a\\012\\\"\\303\\251\"")]
        {
            assert_eq!(named(path), expected);
        }
    }

    #[test]
    fn a_text_of_control_characters_fits_into_a_frame() {
        assert_eq!(bounded(&"a".repeat(1000)), 1000);
        assert!(bounded(&"\u{1}".repeat(LONGEST_TEXT)) <= LONGEST_TEXT / 6);
        assert!(bounded(&"é".repeat(LONGEST_TEXT)) <= LONGEST_TEXT);
    }
}
