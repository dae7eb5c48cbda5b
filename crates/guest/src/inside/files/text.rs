//! How the bytes of files and of names are shown as text.

use bellglass_protocol::quantity::ByteSize;

/// How many bytes decide whether a file is text.
pub(super) const SAMPLE: usize = 8 << 10;

/// Text has no NUL bytes; nearly everything else has one early.
pub(super) fn is_binary(sample: &[u8]) -> bool {
    sample[..sample.len().min(SAMPLE)].contains(&0)
}

/// Bytes as text. Control characters become visible, which also bounds their size on the wire.
pub(super) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(visible).collect()
}

fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\0'..='\x1f' => char::from_u32(0x2400 + character as u32).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        other => other,
    }
}

/// A file name as text that reads the same everywhere: bytes that are no UTF-8 become `%XX`.
pub(super) fn name(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

pub(super) fn counted(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_made_visible() {
        assert_eq!(shown(b"a\tb\x1b[31m\r\xff"), "a\tb␛[31m␍\u{fffd}");
        assert_eq!(name(b"na\xffme"), "na%FFme");
        assert_eq!(name("naïve".as_bytes()), "naïve");
        assert!(is_binary(b"\x7fELF\0"));
        assert!(!is_binary("Grüße".as_bytes()));
    }
}
