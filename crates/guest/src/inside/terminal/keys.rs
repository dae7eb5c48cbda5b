//! The bytes that a terminal sends for a key.

use bellglass_protocol::step::ToolError;

use crate::inside::failure::failure;

/// Everything that `text` and `keys` mean, in the order in which it is typed.
pub(super) fn input(text: Option<&str>, keys: &[String]) -> Result<Vec<u8>, ToolError> {
    // The enter key sends a carriage return; programs that read lines see a line feed.
    let mut bytes = text.unwrap_or_default().replace("\r\n", "\r").replace('\n', "\r").into_bytes();
    for key in keys {
        let sent = key_bytes(key).ok_or_else(|| {
            failure(
                "unknown_key",
                format!(
                    "there is no key `{key}`; use enter, tab, escape, backspace, up, down, left, \
                     right, home, end, page-up, page-down, insert, delete, f1 to f12, ctrl-a to \
                     ctrl-z, alt-… or one character"
                ),
            )
        })?;
        bytes.extend(sent);
    }
    Ok(bytes)
}

fn key_bytes(key: &str) -> Option<Vec<u8>> {
    let lower = key.to_ascii_lowercase().replace(['_', '+'], "-");
    let named: &[u8] = match lower.as_str() {
        "enter" | "return" => b"\r",
        "tab" => b"\t",
        "shift-tab" => b"\x1b[Z",
        "escape" | "esc" => b"\x1b",
        "space" => b" ",
        "backspace" => b"\x7f",
        "up" => b"\x1b[A",
        "down" => b"\x1b[B",
        "right" => b"\x1b[C",
        "left" => b"\x1b[D",
        "home" => b"\x1b[H",
        "end" => b"\x1b[F",
        "page-up" | "pageup" => b"\x1b[5~",
        "page-down" | "pagedown" => b"\x1b[6~",
        "insert" => b"\x1b[2~",
        "delete" => b"\x1b[3~",
        "f1" => b"\x1bOP",
        "f2" => b"\x1bOQ",
        "f3" => b"\x1bOR",
        "f4" => b"\x1bOS",
        "f5" => b"\x1b[15~",
        "f6" => b"\x1b[17~",
        "f7" => b"\x1b[18~",
        "f8" => b"\x1b[19~",
        "f9" => b"\x1b[20~",
        "f10" => b"\x1b[21~",
        "f11" => b"\x1b[23~",
        "f12" => b"\x1b[24~",
        _ => return modified(key, &lower),
    };
    Some(named.to_vec())
}

fn modified(key: &str, lower: &str) -> Option<Vec<u8>> {
    if let Some(letter) = lower.strip_prefix("ctrl-").or_else(|| lower.strip_prefix("c-")) {
        return match letter.as_bytes() {
            [letter @ b'a'..=b'z'] => Some(vec![letter - b'a' + 1]),
            b"@" | b"space" => Some(vec![0]),
            b"[" => Some(vec![0x1b]),
            b"\\" => Some(vec![0x1c]),
            b"]" => Some(vec![0x1d]),
            _ => None,
        };
    }
    if lower.starts_with("alt-") {
        let mut bytes = vec![0x1b];
        bytes.extend(key_bytes(key.get(4..)?)?);
        return Some(bytes);
    }
    let mut characters = key.chars();
    match (characters.next(), characters.next()) {
        (Some(_), None) => Some(key.as_bytes().to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_bytes() {
        for (key, bytes) in [
            ("enter", &b"\r"[..]),
            ("Ctrl-C", b"\x03"),
            ("ctrl+d", b"\x04"),
            ("alt-x", b"\x1bx"),
            ("UP", b"\x1b[A"),
            ("é", "é".as_bytes()),
            ("-", b"-"),
            ("ctrl-\\", b"\x1c"),
        ] {
            assert_eq!(key_bytes(key).as_deref(), Some(bytes), "{key}");
        }
        assert!(input(None, &["warp".into()]).is_err());
        assert!(key_bytes("").is_none() && key_bytes("ctrl-é").is_none());
        assert_eq!(input(Some("a\nb"), &["enter".into()]).unwrap(), b"a\rb\r");
    }
}
