//! Texts compared without their numbers: times, process ids, ports and sizes differ at each run of the
//! same program. Pure.

/// A text with one mark in place of each number, however long the number is.
pub(crate) fn without_numbers(text: &str) -> String {
    marked(text, |_, _, _| false)
}

/// The same, but for whole numbers beside a word that says what they count: how many tests passed or
/// failed, how many errors there were, and the code that a program ended with.
pub(crate) fn without_chance(text: &str) -> String {
    marked(text, |before, number, after| {
        let is_whole = number.bytes().all(|byte| byte.is_ascii_digit());
        is_whole && (counts_what_follows(after) || counts_for(before))
    })
}

/// Such as `7 passed`, `1 error`.
fn counts_what_follows(after: &str) -> bool {
    let word = after.trim_start_matches(' ');
    word.len() < after.len() && COUNTED.contains(&&*first_word(word))
}

/// Such as `pass 6`, `failures=1`, `exit code: 2`; but not `test 12ms`, which is a time.
fn counts_for(before: &str) -> bool {
    let start = match before.strip_suffix('=') {
        Some(start) => start,
        None => {
            let start = before.trim_end_matches(' ');
            if start.len() == before.len() {
                return false;
            }
            start.strip_suffix(':').unwrap_or(start)
        }
    };
    let word: String = start.chars().rev().take_while(|c| c.is_alphabetic()).take(16).collect();
    COUNTED.contains(&&*word.chars().rev().collect::<String>().to_lowercase())
}

/// What a program counts the same way each time.
const COUNTED: [&str; 15] = [
    "pass", "passed", "passing", "fail", "failed", "failing", "failure", "failures", "error",
    "errors", "test", "tests", "skipped", "code", "status",
];

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphabetic()).take(16).collect::<String>().to_lowercase()
}

/// Puts a mark in place of each number that is not kept. Whoever decides sees what is before and behind it.
fn marked(text: &str, is_kept: impl Fn(&str, &str, &str) -> bool) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(start) = text[at..].find(|c: char| c.is_ascii_digit()) {
        let start = at + start;
        let end = start + length_of_number(&text[start..]);
        kept.push_str(&text[at..start]);
        let (before, number, after) = (&text[..start], &text[start..end], &text[end..]);
        match is_kept(before, number, after) && !after.starts_with(char::is_alphabetic) {
            true => kept.push_str(number),
            false => kept.push('#'),
        }
        at = end;
    }
    kept.push_str(&text[at..]);
    kept
}

/// Points and colons between digits belong to the number: 1.5, 12:30.
fn length_of_number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    loop {
        match bytes.get(end) {
            Some(byte) if byte.is_ascii_digit() => end += 1,
            Some(b'.' | b':') if is_digit(end + 1) => end += 1,
            _ => return end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_marks_however_long() {
        for (one, other, same) in [
            ("took 1.25 s", "took 10 s", true),
            ("at 12:30:01.", "at 9:05:59.", true),
            ("3 passed", "4 passed", true),
            ("passed", "failed", false),
            ("1 2", "12", false),
            ("a1", "a", false),
            ("", "", true),
            ("é1é", "é22é", true),
        ] {
            assert_eq!(without_numbers(one) == without_numbers(other), same, "{one} {other}");
        }
    }

    #[test]
    fn what_a_program_counts_is_no_chance() {
        for (one, other, same) in [
            ("3 passed in 0.06s", "3 passed in 1.20s", true),
            ("3 passed in 0.06s", "4 passed in 0.06s", false),
            ("1 failed, 5 passed", "2 failed, 5 passed", false),
            ("ℹ pass 6\nℹ fail 0", "ℹ pass 6\nℹ fail 1", false),
            ("Ran 7 tests in 0.001s", "Ran 8 tests in 0.001s", false),
            ("FAILED (failures=1)", "FAILED (failures=2)", false),
            ("[exit code 1]", "[exit code 2]", false),
            ("ℹ duration_ms 59.7", "ℹ duration_ms 61.2", true),
            ("✔ it passes (12ms)", "✔ it passes (9ms)", true),
            ("test 12ms", "test 9ms", true),
            ("(node:internal/test:1402:25)", "(node:internal/test:1410:3)", true),
            ("pid 27 on port 4711", "pid 31 on port 8080", true),
            ("[step 3 succeeded in 0.1 s]", "[step 3 succeeded in 2.0 s]", true),
            ("Nov 17 22:30", "Nov 18 09:12", true),
        ] {
            assert_eq!(without_chance(one) == without_chance(other), same, "{one} {other}");
        }
    }
}
