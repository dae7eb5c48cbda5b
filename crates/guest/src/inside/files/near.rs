//! Finds a text in a file that has it in other blanks only: spaces at the ends of lines, `\r\n` for
//! `\n`, or another indentation; and makes a replacement that is written as the file is.
//!
//! What differs in anything else is not found, and what is found is never one of several.

use std::ops::Range;

use super::indentation::Indentation;

/// What came of looking for a text that does not stand in the file exactly.
pub(super) enum Sought {
    Nowhere,
    Once(Near),
    /// From these lines on, at least.
    Often(Vec<usize>),
    /// It is there, from this line on, but a replacement cannot be written as the file is.
    Unclear(usize, &'static str),
}

/// The one place that a text has in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Near {
    pub(super) range: Range<usize>,
    pub(super) line: usize,
    /// What to put there.
    pub(super) replacement: Vec<u8>,
    /// What is other in the file than in the text that was looked for.
    pub(super) differs: Vec<&'static str>,
}

/// So many places are named when there is more than one.
const PLACES_NAMED: usize = 20;

/// Looks for the text as it is but for the ends of its lines; then, as whole lines, but for their
/// indentation too. `given_up` is asked now and then.
pub(super) fn find(content: &[u8], old: &str, new: &str, given_up: impl Fn() -> bool) -> Sought {
    let wanted: Vec<&[u8]> = old.as_bytes().split(|byte| *byte == b'\n').collect();
    if wanted.iter().all(|line| line.trim_ascii().is_empty()) {
        return Sought::Nowhere;
    }
    let lines = Lines::of(content);
    for fit in [fits_but_for_ends, fits_but_for_indentation] {
        let mut found = Vec::new();
        for first in 0..lines.starts.len() {
            if first % 1024 == 0 && given_up() {
                return Sought::Nowhere;
            }
            found.extend(fit(&lines, first, &wanted).map(|range| (first, range)));
            if found.len() == PLACES_NAMED {
                break;
            }
        }
        match &found[..] {
            [] => {}
            [(first, range)] => return written(&lines, *first, range.clone(), &wanted, new),
            several => return Sought::Often(several.iter().map(|(first, _)| first + 1).collect()),
        }
    }
    Sought::Nowhere
}

/// A file as lines, none of which is copied.
struct Lines<'a> {
    content: &'a [u8],
    starts: Vec<u32>,
}

/// The offsets of one line.
struct Line {
    start: usize,
    /// Where the blanks at its end begin.
    solid: usize,
    /// Where the line break begins, of which `\r` is a part.
    end: usize,
    /// Where the next line begins; nothing if there is no line break.
    next: Option<usize>,
}

impl Line {
    fn ends_with_return(&self) -> bool {
        self.next.is_some_and(|next| next - self.end == b"\r\n".len())
    }
}

impl<'a> Lines<'a> {
    fn of(content: &'a [u8]) -> Self {
        let breaks = memchr::memchr_iter(b'\n', content).map(|at| at as u32 + 1);
        Self { content, starts: std::iter::once(0).chain(breaks).collect() }
    }

    fn get(&self, index: usize) -> Option<Line> {
        let start = *self.starts.get(index)? as usize;
        let next = self.starts.get(index + 1).map(|next| *next as usize);
        let text = &self.content[start..next.map_or(self.content.len(), |next| next - 1)];
        let end = match next {
            Some(_) => text.strip_suffix(b"\r").unwrap_or(text).len(),
            None => text.len(),
        };
        Some(Line { start, solid: start + without_end(text).len(), end: start + end, next })
    }

    fn solid(&self, line: &Line) -> &'a [u8] {
        &self.content[line.start..line.solid]
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

fn without_end(line: &[u8]) -> &[u8] {
    let length = line.iter().rposition(|byte| !is_blank(byte)).map_or(0, |at| at + 1);
    &line[..length]
}

/// A line as its indentation and the rest.
fn parted(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len()))
}

/// Where the text ends in its last line, if that line begins with the text's last.
fn end_in(lines: &Lines<'_>, index: usize, last: &[u8]) -> Option<usize> {
    let line = lines.get(index)?;
    let solid = without_end(last);
    if solid.len() < last.len() {
        // Blanks that end the text are those that end the line.
        return (lines.solid(&line) == solid).then_some(line.end);
    }
    lines.content[line.start..line.end].starts_with(last).then_some(line.start + last.len())
}

/// The text from somewhere in this line on, where blanks before line breaks do not count.
fn fits_but_for_ends(lines: &Lines<'_>, index: usize, wanted: &[&[u8]]) -> Option<Range<usize>> {
    let (first, rest) = wanted.split_first()?;
    let line = lines.get(index)?;
    let solid = without_end(first);
    if !lines.solid(&line).ends_with(solid) {
        return None;
    }
    let start = if solid.is_empty() { line.end } else { line.solid - solid.len() };
    let Some((last, between)) = rest.split_last() else {
        return (solid.len() < first.len()).then_some(start..line.end);
    };
    for (line, wanted) in (index + 1..).zip(between) {
        if lines.solid(&lines.get(line)?) != without_end(wanted) {
            return None;
        }
    }
    Some(start..end_in(lines, index + wanted.len() - 1, last)?)
}

/// The text as whole lines from this one on, where blanks at their beginnings do not count either.
fn fits_but_for_indentation(
    lines: &Lines<'_>,
    index: usize,
    wanted: &[&[u8]],
) -> Option<Range<usize>> {
    let (last, before) = wanted.split_last()?;
    let fits =
        |line: &Line, wanted: &[u8]| parted(lines.solid(line)).1 == parted(without_end(wanted)).1;
    let start = lines.get(index)?.start;
    for (line, wanted) in (index..).zip(before) {
        if !fits(&lines.get(line)?, wanted) {
            return None;
        }
    }
    let line = lines.get(index + before.len())?;
    if last.is_empty() {
        return Some(start..line.start);
    }
    let end = if without_end(last).len() < last.len() { line.end } else { line.solid };
    fits(&line, last).then_some(start..end)
}

/// The replacement for a text that was found, in the file's own blanks.
fn written(
    lines: &Lines<'_>,
    first: usize,
    range: Range<usize>,
    wanted: &[&[u8]],
    new: &str,
) -> Sought {
    let there: Vec<&[u8]> = lines.content[range.clone()].split(|byte| *byte == b'\n').collect();
    let new: Vec<&[u8]> = new.as_bytes().split(|byte| *byte == b'\n').collect();
    let line = first + 1;

    let mut indentation = Indentation::default();
    let mut is_alike = true;
    for (wanted, there) in wanted.iter().zip(&there) {
        let ((wanted, text), (there, _)) = (parted(wanted), parted(there));
        is_alike &= text.is_empty() || indentation.learn(wanted, there);
    }
    if !is_alike || !(indentation.is_the_same() || indentation.keeps_its_shape()) {
        return Sought::Unclear(line, "its lines are nested in another way");
    }
    let broken = &there[..there.len() - 1];
    let with_return = match broken.first() {
        Some(line) => ends_with_return(line),
        None => lines.get(first).is_some_and(|line| line.ends_with_return()),
    };
    if broken.iter().any(|line| ends_with_return(line) != with_return) {
        return Sought::Unclear(line, "some of its lines end with \\r\\n and some with \\n");
    }
    let takes_return = with_return || wanted.iter().any(ends_with_return);

    // Lines that the caller wants as they were stay as they are.
    let most = wanted.len().min(new.len());
    let same = |(old, new): &(&&[u8], &&[u8])| old == new;
    let kept = wanted.iter().zip(&new).take(most - 1).take_while(same).count();
    let ends = wanted.iter().rev().zip(new.iter().rev()).take(most - kept).take_while(same).count();

    let mut made: Vec<Vec<u8>> = there[..kept].iter().map(|line| line.to_vec()).collect();
    for (index, text) in new.iter().enumerate().take(new.len() - ends).skip(kept) {
        let text = match takes_return {
            true => text.strip_suffix(b"\r").unwrap_or(text),
            false => text,
        };
        let (blanks, rest) = parted(text);
        let indented = if rest.is_empty() { Some(blanks.to_vec()) } else { indentation.of(blanks) };
        let Some(mut text) = indented else {
            return Sought::Unclear(line, "nothing says how `new` would be indented there");
        };
        text.extend_from_slice(rest);
        if with_return && index + 1 < new.len() {
            text.push(b'\r');
        }
        made.push(text);
    }
    made.extend(there[there.len() - ends..].iter().map(|line| line.to_vec()));
    let differs = differences(wanted, &there, &indentation);
    Sought::Once(Near { range, line, replacement: made.join(&b'\n'), differs })
}

fn ends_with_return(line: &&[u8]) -> bool {
    line.ends_with(b"\r")
}

fn differences(wanted: &[&[u8]], there: &[&[u8]], indentation: &Indentation) -> Vec<&'static str> {
    let pairs = || wanted.iter().zip(there);
    let blanks = |line: &[u8]| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        line.len() - without_end(line).len()
    };
    let mut differs = Vec::new();
    if !indentation.is_the_same() {
        differs.push("indentations");
    }
    if pairs().any(|(wanted, there)| blanks(wanted) != blanks(there)) {
        differs.push("spaces at the ends of lines");
    }
    if pairs().any(|(wanted, there)| ends_with_return(wanted) != ends_with_return(there)) {
        differs.push("line breaks (\\r\\n)");
    }
    differs
}

#[cfg(test)]
mod tests;
