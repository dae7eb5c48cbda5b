//! `edit_file`: replaces an exact piece of text in a file.

use std::io::{Read, Write};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::{Edit, EditFile};

use super::replace::Replacement;
use super::text::{counted, shown};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::workspace::Workspace;

/// Files are edited in memory; larger ones have better tools.
const LARGEST_FILE: u64 = 16 << 20;
/// Line numbers that are named when a text occurs more than once.
const LINES_NAMED: usize = 20;
/// Changed lines that are shown.
const LINES_SHOWN: usize = 20;
const LINE_SHOWN: usize = 200;

pub(super) fn edit(workspace: &Workspace, call: &EditFile) -> Result<String, ToolError> {
    let content = load(workspace, &call.path)?;
    let edit = Edit { old: call.old.clone(), new: call.new.clone(), replace_all: call.replace_all };
    let (edited, found) = apply(&call.path, &content, &edit)?;
    store(workspace, &call.path, &edited)?;
    Ok(confirmation(&call.path, &edit, &edited, &found))
}

/// Makes all edits in memory first, so that the file gets all of them or none.
pub(super) fn edit_all(
    workspace: &Workspace,
    path: &str,
    edits: &[Edit],
) -> Result<String, ToolError> {
    if edits.is_empty() {
        return Err(failure("invalid_argument", "`edits` is empty; give at least one"));
    }
    let mut content = load(workspace, path)?;
    let mut places = 0;
    for (index, edit) in edits.iter().enumerate() {
        let (edited, found) = apply(path, &content, edit).map_err(|error| {
            let message = format!("edit {}: {}; the file is unchanged", index + 1, error.message);
            failure(&error.code, message)
        })?;
        if edited.len() as u64 > LARGEST_FILE {
            return Err(failure("file_too_large", "the file would have more than 16 MiB"));
        }
        places += found.len();
        content = edited;
    }
    store(workspace, path, &content)?;
    let (edits, places) =
        (counted(edits.len(), "edit", "edits"), counted(places, "place", "places"));
    Ok(format!("edited {path}: {edits} in {places}"))
}

/// The content after an edit, and where in the old content it was made.
fn apply(path: &str, content: &[u8], edit: &Edit) -> Result<(Vec<u8>, Vec<usize>), ToolError> {
    if edit.old.is_empty() {
        return Err(failure("invalid_argument", "`old` is empty; write_file creates whole files"));
    }
    if edit.old == edit.new {
        return Err(failure("nothing_to_change", "`old` and `new` are the same text"));
    }
    let found = occurrences(content, edit.old.as_bytes());
    match found.len() {
        0 => return Err(not_found(content, path, &edit.old)),
        1 => {}
        _ if edit.replace_all => {}
        count => return Err(not_unique(content, path, &found, count)),
    }
    let edited = replaced(content, &found, edit.old.len(), edit.new.as_bytes());
    Ok((edited, found))
}

fn store(workspace: &Workspace, path: &str, content: &[u8]) -> Result<(), ToolError> {
    let mut file = Replacement::begin(workspace, path)?;
    file.write_all(content).map_err(|error| path_io_failure(path, &error))?;
    file.commit(false)
}

fn load(workspace: &Workspace, path: &str) -> Result<Vec<u8>, ToolError> {
    let (file, _) = workspace.open_file(path)?;
    let mut content = Vec::new();
    // The limit is on what is read, for the size may change meanwhile.
    file.take(LARGEST_FILE + 1)
        .read_to_end(&mut content)
        .map_err(|error| path_io_failure(path, &error))?;
    if content.len() as u64 > LARGEST_FILE {
        return Err(failure(
            "file_too_large",
            format!("`{path}` has more than 16 MiB; edit it with a program such as sed or python"),
        ));
    }
    Ok(content)
}

fn occurrences(content: &[u8], old: &[u8]) -> Vec<usize> {
    let finder = memchr::memmem::Finder::new(old);
    finder.find_iter(content).collect()
}

fn replaced(content: &[u8], found: &[usize], old_length: usize, new: &[u8]) -> Vec<u8> {
    let mut edited = Vec::with_capacity(content.len() + new.len());
    let mut copied = 0;
    for start in found {
        edited.extend_from_slice(&content[copied..*start]);
        edited.extend_from_slice(new);
        copied = start + old_length;
    }
    edited.extend_from_slice(&content[copied..]);
    edited
}

fn line_of(content: &[u8], offset: usize) -> usize {
    1 + memchr::memchr_iter(b'\n', &content[..offset]).count()
}

fn not_found(content: &[u8], path: &str, old: &str) -> ToolError {
    let with_carriage_returns = old.replace('\n', "\r\n");
    let hint = if memchr::memmem::find(content, with_carriage_returns.as_bytes()).is_some() {
        "its lines end with \\r\\n; write them so in `old` and in `new`".to_owned()
    } else if let Some(line) = line_but_for_spaces(content, old) {
        format!(
            "the text at line {line} differs in spaces or indentation only; read it and copy it exactly"
        )
    } else if memchr::memmem::find(content, old.trim().as_bytes()).is_some() {
        "it is there with other spaces or line breaks around it; copy it exactly".to_owned()
    } else {
        "read the file and copy the text exactly, spaces included and line numbers left out"
            .to_owned()
    };
    failure("not_found_in_file", format!("`old` does not occur in `{path}`: {hint}"))
}

/// The line from which on the text stands in the file if blanks at the ends of lines do not count.
fn line_but_for_spaces(content: &[u8], old: &str) -> Option<usize> {
    let wanted: Vec<&[u8]> =
        old.trim().as_bytes().split(|b| *b == b'\n').map(<[u8]>::trim_ascii).collect();
    let lines: Vec<&[u8]> = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).collect();
    lines.windows(wanted.len()).position(|window| window == wanted).map(|index| index + 1)
}

fn not_unique(content: &[u8], path: &str, found: &[usize], count: usize) -> ToolError {
    let lines: Vec<String> =
        found.iter().take(LINES_NAMED).map(|at| line_of(content, *at).to_string()).collect();
    let more = if count > LINES_NAMED { ", …" } else { "" };
    failure(
        "not_unique",
        format!(
            "`old` occurs {count} times in `{path}` (lines {}{more}); add text around it until it \
             occurs once, or set replace_all",
            lines.join(", "),
        ),
    )
}

fn confirmation(path: &str, edit: &Edit, edited: &[u8], found: &[usize]) -> String {
    let places = counted(found.len(), "place", "places");
    let mut text = format!("edited {path} in {places}");
    // Offsets before the first change are the same in the new content.
    let Some(start) = found.first().copied() else { return text };
    let first = line_of(edited, start);
    let line_start = memchr::memrchr(b'\n', &edited[..start]).map_or(0, |at| at + 1);
    let end = start + edit.new.len();
    let line_end = memchr::memchr(b'\n', &edited[end..]).map_or(edited.len(), |at| end + at);
    let lines = edited[line_start..line_end].split(|byte| *byte == b'\n');
    let (mut shown_lines, mut left) = (0, 0);
    for line in lines {
        if shown_lines == LINES_SHOWN {
            left += 1;
            continue;
        }
        let cut = &line[..line.len().min(LINE_SHOWN)];
        text.push_str(&format!("\n{:>6}\t{}", first + shown_lines, shown(cut)));
        if cut.len() < line.len() {
            text.push('…');
        }
        shown_lines += 1;
    }
    if left > 0 {
        text.push_str(&format!("\n[{} more]", counted(left, "line", "lines")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_do_not_overlap() {
        assert_eq!(occurrences(b"aaaa", b"aa"), [0, 2]);
        assert_eq!(replaced(b"aaaa!", &[0, 2], 2, b"b"), b"bb!");
        assert_eq!(line_of(b"a\nb\nc", 4), 3);
    }

    #[test]
    fn text_with_other_spaces_is_found_for_the_hint_only() {
        let content = b"fn f() {\n\tone();\n\ttwo();\n}\n";
        assert_eq!(line_but_for_spaces(content, "    one();\n    two();"), Some(2));
        assert_eq!(line_but_for_spaces(content, "three();"), None);
    }
}
