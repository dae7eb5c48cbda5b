//! The one line under which a job is listed. Pure text; knows nothing of where it is shown.

use bellglass_protocol::job::Work;

/// How many characters a title has at the most, the sign of shortening included.
pub(crate) const MAX_CHARS: usize = 120;

/// Stands at the end of a title that does not say everything.
pub(crate) const SHORTENED: char = '…';

/// The task, or the first step, in one short line.
pub(crate) fn title_of(work: &Work) -> String {
    match work {
        Work::Task(task) => one_line([task.as_str()]),
        Work::Session(_) => "a session".into(),
        Work::Steps(steps) => match steps.first() {
            None => "no steps".into(),
            Some(call) => match call.subject() {
                "" => call.name().into(),
                subject => one_line([call.name(), ": ", subject]),
            },
        },
    }
}

/// Joins the parts, makes every run of blanks one space, drops what would not be visible or would
/// rearrange the rest, and shortens.
fn one_line<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut title = String::new();
    let mut length = 0;
    let mut gap = false;
    for c in parts.into_iter().flat_map(str::chars) {
        if c.is_whitespace() {
            gap = length > 0;
            continue;
        }
        if c.is_control() || is_invisible(c) {
            continue;
        }
        let needed = if gap { 2 } else { 1 };
        if length + needed > MAX_CHARS {
            let kept = title.char_indices().nth(MAX_CHARS - 1).map_or(title.len(), |(at, _)| at);
            title.truncate(kept);
            title.push(SHORTENED);
            return title;
        }
        if gap {
            title.push(' ');
            gap = false;
        }
        title.push(c);
        length += needed;
    }
    title
}

/// Marks that have no width or change the direction of what follows: a title could lie with them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::tool::{ListFiles, Shell, ToolCall};

    fn task(text: &str) -> String {
        title_of(&Work::Task(text.into()))
    }

    #[test]
    fn titles_are_one_clean_line() {
        for (text, title) in [
            ("Build me a todo app", "Build me a todo app"),
            ("  first\n\n\tsecond  ", "first second"),
            ("a\u{1b}[31mb\0c\u{202e}d", "a[31mbcd"),
            ("", ""),
        ] {
            assert_eq!(task(text), title);
        }
    }

    #[test]
    fn long_titles_are_shortened_by_characters() {
        let exact = "é".repeat(MAX_CHARS);
        assert_eq!(task(&exact), exact);
        let long = task(&format!("{exact} and more"));
        assert_eq!(long.chars().count(), MAX_CHARS);
        assert!(long.ends_with(SHORTENED));
    }

    #[test]
    fn a_steps_job_is_named_after_its_first_step() {
        let command = "ls -la /app".to_owned();
        let shell = Shell { command, ..Default::default() };
        let steps = |call| title_of(&Work::Steps(vec![call]));
        assert_eq!(steps(ToolCall::Shell(shell)), "shell: ls -la /app");
        assert_eq!(steps(ToolCall::ListFiles(ListFiles::default())), "list_files");
        assert_eq!(title_of(&Work::Steps(vec![])), "no steps");
    }
}
