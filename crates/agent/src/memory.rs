//! What is kept of a task for later ones: read from a model's answer, bounded, and without what looks
//! like a secret. Pure.

use serde_json::Value;

/// Memories of one task, and the length of each.
const MOST: usize = 8;
const LONGEST: usize = 600;

/// The texts that a model wants to keep: a JSON array of strings, perhaps with words around it.
pub(crate) fn read(answer: &str) -> Vec<String> {
    let (Some(start), Some(end)) = (answer.find('['), answer.rfind(']')) else { return Vec::new() };
    let Some(array) = answer.get(start..=end) else { return Vec::new() };
    let Ok(Value::Array(items)) = serde_json::from_str(array) else { return Vec::new() };
    let texts =
        items.iter().filter_map(Value::as_str).map(one_line).filter(|text| !text.is_empty());
    texts.take(MOST).collect()
}

/// A text as it is kept: on one line, not too long, and without what looks like a secret.
pub fn one_line(text: &str) -> String {
    let text = redact(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// A text in which every word that looks like a key, a token or a password is covered.
pub fn redact(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut is_named = false;
    for word in text.split(' ') {
        // Several may stand in one word, as in an address or an object.
        let pieces = word.split_inclusive([',', ';', '&', '{', '}', '?']);
        words.push(pieces.map(|piece| covered(piece, is_named)).collect());
        // "The password is X": the little word says nothing.
        let is_little = matches!(word, "is" | "was" | "=" | ":" | "to");
        is_named = names_a_secret(word) || is_named && is_little;
    }
    words.join(" ")
}

fn covered(piece: &str, is_named: bool) -> String {
    let (name, value) = split_name(piece);
    let bare = value.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_given = !bare.is_empty() && names_a_secret(name);
    if is_given || is_secret(value) || is_named && is_value(value) {
        let end = value.trim_end_matches([',', ';', '&', '}']).len();
        return format!("{name}[redacted]{}", &value[end..]);
    }
    piece.to_owned()
}

/// A word such as `TOKEN=x`, taken apart after the sign.
fn split_name(word: &str) -> (&str, &str) {
    // An address may hold a password before its host.
    match word.find(['=', ':']) {
        Some(at) if !word[at..].starts_with("://") => word.split_at(at + 1),
        _ => ("", word),
    }
}

fn names_a_secret(word: &str) -> bool {
    let word = word.to_lowercase();
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    // How many tokens a model reads is no secret.
    if word.ends_with("tokens") {
        return false;
    }
    let within = ["passw", "secret", "credential", "api_key", "apikey", "api-key", "private_key"];
    let ends = ["token", "bearer", "_key", "-key", "_pass", "pwd"];
    within.iter().any(|name| word.contains(name)) || ends.iter().any(|name| word.ends_with(name))
}

/// Whether a word that stands where a secret would is one: not a common word of a sentence.
fn is_value(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    word.len() >= 6 && word.chars().any(|c| c.is_ascii_digit() || c.is_ascii_uppercase())
        || word.len() >= 16
}

fn is_secret(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let starts = [
        "sk-",
        "pk-",
        "rk_",
        "sk_live",
        "sk_test",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "xoxp-",
        "AKIA",
        "ASIA",
        "AIza",
        "eyJ",
        "npm_",
        "pypi-",
        "hf_",
        "-----BEGIN",
    ];
    if starts.iter().any(|start| bare.starts_with(start) && bare.len() >= 16) {
        return true;
    }
    // user:password@host
    if let Some((_, rest)) = word.split_once("://")
        && let Some((user, _)) = rest.split_once('@')
        && user.contains(':')
    {
        return true;
    }
    // Long, and of letters and digits mixed, as no word of a language is.
    let mixed = |test: fn(&char) -> bool| bare.chars().filter(test).count() >= 4;
    let is_one_word = bare.chars().all(|c| c.is_ascii_alphanumeric() || "+/=_-".contains(c));
    bare.len() >= 32
        && is_one_word
        && mixed(char::is_ascii_digit)
        && mixed(|c| c.is_ascii_alphabetic())
        && !bare.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_with_words_around_it() {
        for (answer, texts) in [
            (r#"["a b", "c"]"#, &["a b", "c"][..]),
            ("Sure:\n```json\n[\"one\\ntwo\", 3, \"\"]\n```", &["one two"]),
            ("[]", &[]),
            ("nothing", &[]),
            ("] [", &[]),
        ] {
            assert_eq!(read(answer), texts, "{answer}");
        }
        assert_eq!(read(&serde_json::to_string(&vec!["x"; 50]).unwrap()).len(), MOST);
        assert_eq!(one_line(&"é".repeat(1000)).len(), LONGEST);
    }

    #[test]
    fn what_looks_like_a_secret_is_covered() {
        for (text, kept) in [
            ("tests run with make test", "tests run with make test"),
            ("the key is sk-proj-1234567890abcdef", "the key is [redacted]"),
            ("use TOKEN=abc123def now", "use TOKEN=[redacted] now"),
            ("password: Hunter22!", "password: [redacted]"),
            ("the token expires after an hour", "the token expires after an hour"),
            ("db is postgres://me:pw@host/x", "db is [redacted]"),
            (
                "hash 3f9c0d1e7b3f9c0d1e7b3f9c0d1e7b3f9c0d1e7b stays secret",
                "hash [redacted] stays secret",
            ),
            (
                "src/components/very-long-component-name-for-a-file.tsx",
                "src/components/very-long-component-name-for-a-file.tsx",
            ),
            ("authorization: Bearer abcDEF123456", "authorization: Bearer [redacted]"),
            (r#"{"user":"ada","password":"hunter22"}"#, r#"{"user":"ada","password":[redacted]}"#),
            ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=[redacted]"),
            ("DB_PASS=x1 and SECRET_KEY=y", "DB_PASS=[redacted] and SECRET_KEY=[redacted]"),
            ("password=correcthorse", "password=[redacted]"),
            ("the password is Hunter22", "the password is [redacted]"),
            ("max_tokens=1000 is enough", "max_tokens=1000 is enough"),
            ("/login?user=ada&token=abc&x=1", "/login?user=ada&token=[redacted]&x=1"),
        ] {
            assert_eq!(redact(text), kept);
        }
    }
}
