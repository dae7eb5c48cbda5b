//! What reading from either database has in common: patterns to look for.

/// A pattern for LIKE that matches whatever contains the text, taken literally.
pub(crate) fn contains_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    pattern.push('%');
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::contains_pattern;

    #[test]
    fn patterns_take_text_literally() {
        for (text, pattern) in
            [("abc", "%abc%"), ("50%", r"%50\%%"), ("a_b", r"%a\_b%"), (r"c:\", r"%c:\\%")]
        {
            assert_eq!(contains_pattern(text), pattern);
        }
    }
}
