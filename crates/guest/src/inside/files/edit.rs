//! `edit_file` and `multi_edit`: replace a piece of text in a file, as it stands there or, where it
//! stands nowhere so, in other blanks (`near.rs`). A text that could mean several places means none.

use std::io::{Read, Write};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::{Edit, EditFile};
use memchr::memmem::{self, Finder};

use super::near::{self, Near, Sought};
use super::replace::Replacement;
use super::text::{counted, shown};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

/// Files are edited in memory; larger ones have better tools.
const LARGEST_FILE: u64 = 16 << 20;
/// Line numbers that are named when a text occurs more than once.
const LINES_NAMED: usize = 20;
/// Changed lines that are shown.
const LINES_SHOWN: usize = 20;
const LINE_SHOWN: usize = 200;
/// Edits in other blanks, out of several, that are told of one by one.
const NOTES_SHOWN: usize = 20;

pub(super) fn edit(
    workspace: &Workspace,
    call: &EditFile,
    stop: &Stop,
) -> Result<String, ToolError> {
    let content = load(workspace, &call.path)?;
    let edit = Edit { old: call.old.clone(), new: call.new.clone(), replace_all: call.replace_all };
    let made = apply(&call.path, &content, &edit, stop)?;
    store(workspace, &call.path, &made.content)?;
    Ok(confirmation(&call.path, &made))
}

/// Makes all edits in memory first, so that the file gets all of them or none.
pub(super) fn edit_all(
    workspace: &Workspace,
    path: &str,
    edits: &[Edit],
    stop: &Stop,
) -> Result<String, ToolError> {
    if edits.is_empty() {
        return Err(failure("invalid_argument", "`edits` is empty; give at least one"));
    }
    let mut content = load(workspace, path)?;
    let (mut places, mut notes) = (0, Vec::new());
    for (number, edit) in (1..).zip(edits) {
        let made = apply(path, &content, edit, stop).map_err(|error| {
            let message = format!("edit {number}: {}; the file is unchanged", error.message);
            failure(&error.code, message)
        })?;
        places += made.places;
        if let Some(note) = made.note {
            notes.push(format!("\nedit {number}: {note}"));
        }
        content = made.content;
    }
    store(workspace, path, &content)?;
    let (edits, places) =
        (counted(edits.len(), "edit", "edits"), counted(places, "place", "places"));
    if let Some(left) = notes.len().checked_sub(NOTES_SHOWN).filter(|left| *left > 0) {
        notes.truncate(NOTES_SHOWN);
        notes.push(format!("\n[the same of {left} more]"));
    }
    Ok(format!("edited {path}: {edits} in {places}{}", notes.concat()))
}

/// An edit that was made.
struct Made {
    content: Vec<u8>,
    places: usize,
    /// Where the first one is, and how long it is now.
    start: usize,
    length: usize,
    /// What the caller should know about it.
    note: Option<String>,
}

fn apply(path: &str, content: &[u8], edit: &Edit, stop: &Stop) -> Result<Made, ToolError> {
    if edit.old.is_empty() {
        return Err(failure("invalid_argument", "`old` is empty; write_file creates whole files"));
    }
    if edit.old == edit.new {
        return Err(failure("nothing_to_change", "`old` and `new` are the same text"));
    }
    let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
    let found = match edit.replace_all {
        true => memmem::find_iter(content, old).collect(),
        false => first_occurrences(content, old),
    };
    match found[..] {
        [] => apply_near(path, content, edit, stop),
        [start] => made(content, &found, old.len(), start, new),
        [start, ..] if edit.replace_all => made(content, &found, old.len(), start, new),
        _ => Err(not_unique(content, path, &found)),
    }
}

/// The edit of a text that stands in the file in other blanks.
fn apply_near(path: &str, content: &[u8], edit: &Edit, stop: &Stop) -> Result<Made, ToolError> {
    let Near { range, line, replacement, differs } =
        match near::find(content, &edit.old, &edit.new, || stop.is_requested()) {
            Sought::Once(near) => near,
            sought => return Err(not_found(content, path, &edit.old, &sought)),
        };
    if content[range.clone()] == replacement {
        let words = format!("`{path}` has `new` at line {line} already");
        return Err(failure("nothing_to_change", words));
    }
    let note = format!(
        "`old` does not stand there exactly: it was found at line {line}, where only {} differ, and `new` \
         was written as the file is",
        differs.join(" and "),
    );
    let made = made(content, &[range.start], range.len(), range.start, &replacement)?;
    Ok(Made { note: Some(note), ..made })
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

/// Where the text stands, each place counted: also one that begins within another, for nobody can say
/// which of the two is meant. No more are looked for than are named.
fn first_occurrences(content: &[u8], old: &[u8]) -> Vec<usize> {
    let finder = Finder::new(old);
    let mut found: Vec<usize> = Vec::new();
    let mut from = 0;
    while found.len() <= LINES_NAMED
        && let Some(at) = finder.find(&content[from..])
    {
        found.push(from + at);
        from += at + 1;
    }
    found
}

fn made(
    content: &[u8],
    found: &[usize],
    old_length: usize,
    start: usize,
    new: &[u8],
) -> Result<Made, ToolError> {
    let removed = found.len() * old_length;
    let length = (content.len() - removed).saturating_add(found.len().saturating_mul(new.len()));
    // Known before it is made: much can come of little.
    if length as u64 > LARGEST_FILE {
        return Err(failure("file_too_large", "the file would have more than 16 MiB"));
    }
    let mut edited = Vec::with_capacity(length);
    let mut copied = 0;
    for start in found {
        edited.extend_from_slice(&content[copied..*start]);
        edited.extend_from_slice(new);
        copied = start + old_length;
    }
    edited.extend_from_slice(&content[copied..]);
    Ok(Made { content: edited, places: found.len(), start, length: new.len(), note: None })
}

fn line_of(content: &[u8], offset: usize) -> usize {
    1 + memchr::memchr_iter(b'\n', &content[..offset]).count()
}

fn not_found(content: &[u8], path: &str, old: &str, sought: &Sought) -> ToolError {
    let hint = match sought {
        Sought::Often(lines) => {
            let words = format!(
                "`old` does not stand in `{path}` exactly, and in other blanks more than once (lines \
                 {}); read it and copy it exactly, with more text around it",
                named(lines)
            );
            return failure("not_unique", words);
        }
        Sought::Unclear(line, why) => {
            format!("it is at line {line} in other blanks, but {why}; read it and copy it exactly")
        }
        Sought::Nowhere | Sought::Once(_) => match memmem::find(content, old.trim().as_bytes())
            .is_some()
        {
            true => "it is there with other spaces or line breaks around it; copy it exactly",
            false => {
                "read the file and copy the text exactly, spaces included and line numbers left \
                     out"
            }
        }
        .to_owned(),
    };
    failure("not_found_in_file", format!("`old` does not occur in `{path}`: {hint}"))
}

fn not_unique(content: &[u8], path: &str, found: &[usize]) -> ToolError {
    let lines: Vec<usize> = found.iter().map(|at| line_of(content, *at)).collect();
    let count = match found.len() > LINES_NAMED {
        true => format!("more than {LINES_NAMED}"),
        false => found.len().to_string(),
    };
    failure(
        "not_unique",
        format!(
            "`old` occurs {count} times in `{path}` (lines {}); add text around it until it occurs \
             once, or set replace_all",
            named(&lines),
        ),
    )
}

fn named(lines: &[usize]) -> String {
    let named: Vec<String> = lines.iter().take(LINES_NAMED).map(usize::to_string).collect();
    let more = if lines.len() > LINES_NAMED { ", …" } else { "" };
    named.join(", ") + more
}

fn confirmation(path: &str, made: &Made) -> String {
    let Made { content: edited, start, length, .. } = made;
    let places = counted(made.places, "place", "places");
    let mut text = format!("edited {path} in {places}");
    // Offsets before the first change are the same in the new content.
    let first = line_of(edited, *start);
    let line_start = memchr::memrchr(b'\n', &edited[..*start]).map_or(0, |at| at + 1);
    let end = start + length;
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
    if let Some(note) = &made.note {
        text.push_str(&format!("\n[{note}]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_to(content: &str, old: &str, new: &str, replace_all: bool) -> Result<String, String> {
        let edit = Edit { old: old.into(), new: new.into(), replace_all };
        match apply("f", content.as_bytes(), &edit, &Stop::default()) {
            Ok(made) => Ok(String::from_utf8(made.content).unwrap()),
            Err(error) => Err(error.code),
        }
    }

    #[test]
    fn places_that_overlap_are_two() {
        let not_unique = Err("not_unique".to_owned());
        assert_eq!(apply_to("}\n}\n}\n", "}\n}\n", "x", false), not_unique);
        assert_eq!(apply_to("aaa", "aa", "b", false), not_unique);
        assert_eq!(apply_to("aab", "aa", "b", false), Ok("bb".into()));
        assert_eq!(apply_to("aaaa!", "aa", "b", true), Ok("bb!".into()));
        assert_eq!(line_of(b"a\nb\nc", 4), 3);
    }

    #[test]
    fn many_places_are_counted_no_further_than_they_are_named() {
        assert_eq!(first_occurrences(&[b'a'; 1 << 20], &[b'a'; 1 << 19]).len(), LINES_NAMED + 1);
    }
}
