//! Keys by the names that X programs and people call them.

pub(super) const SHIFT: u32 = 0xffe1;
pub(super) const INSERT: u32 = 0xff63;
pub(super) const RETURN: u32 = 0xff0d;
pub(super) const TAB: u32 = 0xff09;

/// The X server's number for a character.
pub(super) fn symbol_of(c: char) -> u32 {
    match u32::from(c) {
        code @ (0x20..=0x7e | 0xa0..=0xff) => code,
        code => 0x0100_0000 + code,
    }
}

/// The X server's number for a key of this name, whatever its capitals.
pub(super) fn symbol_named(name: &str) -> Option<u32> {
    let mut characters = name.chars();
    if let (Some(only), None) = (characters.next(), characters.next()) {
        return Some(symbol_of(only));
    }
    let lower = name.to_ascii_lowercase();
    let numbered = |letter: &str| lower.strip_prefix(letter)?.parse::<u32>().ok();
    if let Some(number) = numbered("f") {
        return (1..=24).contains(&number).then_some(0xffbd + number);
    }
    if let Some(number) = numbered("kp_") {
        return (0..=9).contains(&number).then_some(0xffb0 + number);
    }
    let mut known = KEYS.iter().chain(CHARACTERS);
    known.find(|(name, _)| *name == lower).map(|(_, symbol)| *symbol)
}

const KEYS: &[(&str, u32)] = &[
    ("return", RETURN),
    ("enter", RETURN),
    ("tab", TAB),
    ("escape", 0xff1b),
    ("esc", 0xff1b),
    ("backspace", 0xff08),
    ("delete", 0xffff),
    ("del", 0xffff),
    ("insert", INSERT),
    ("home", 0xff50),
    ("left", 0xff51),
    ("up", 0xff52),
    ("right", 0xff53),
    ("down", 0xff54),
    ("page_up", 0xff55),
    ("pageup", 0xff55),
    ("prior", 0xff55),
    ("page_down", 0xff56),
    ("pagedown", 0xff56),
    ("next", 0xff56),
    ("end", 0xff57),
    ("pause", 0xff13),
    ("print", 0xff61),
    ("menu", 0xff67),
    ("caps_lock", 0xffe5),
    ("num_lock", 0xff7f),
    ("scroll_lock", 0xff14),
    ("kp_enter", 0xff8d),
    ("kp_multiply", 0xffaa),
    ("kp_add", 0xffab),
    ("kp_subtract", 0xffad),
    ("kp_decimal", 0xffae),
    ("kp_divide", 0xffaf),
    ("shift", SHIFT),
    ("shift_l", SHIFT),
    ("shift_r", 0xffe2),
    ("ctrl", 0xffe3),
    ("control", 0xffe3),
    ("control_l", 0xffe3),
    ("control_r", 0xffe4),
    ("alt", 0xffe9),
    ("alt_l", 0xffe9),
    ("alt_r", 0xffea),
    ("super", 0xffeb),
    ("super_l", 0xffeb),
    ("super_r", 0xffec),
    ("cmd", 0xffeb),
    ("meta", 0xffeb),
    ("win", 0xffeb),
];

/// Characters that have names, as `plus` because combinations are joined by it.
const CHARACTERS: &[(&str, u32)] = &[
    ("space", 0x20),
    ("exclam", 0x21),
    ("quotedbl", 0x22),
    ("numbersign", 0x23),
    ("dollar", 0x24),
    ("percent", 0x25),
    ("ampersand", 0x26),
    ("apostrophe", 0x27),
    ("parenleft", 0x28),
    ("parenright", 0x29),
    ("asterisk", 0x2a),
    ("plus", 0x2b),
    ("comma", 0x2c),
    ("minus", 0x2d),
    ("period", 0x2e),
    ("slash", 0x2f),
    ("colon", 0x3a),
    ("semicolon", 0x3b),
    ("less", 0x3c),
    ("equal", 0x3d),
    ("greater", 0x3e),
    ("question", 0x3f),
    ("at", 0x40),
    ("bracketleft", 0x5b),
    ("backslash", 0x5c),
    ("bracketright", 0x5d),
    ("asciicircum", 0x5e),
    ("underscore", 0x5f),
    ("grave", 0x60),
    ("braceleft", 0x7b),
    ("bar", 0x7c),
    ("braceright", 0x7d),
    ("asciitilde", 0x7e),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_characters_have_symbols() {
        assert_eq!(symbol_named("a"), Some(0x61));
        assert_eq!(symbol_named("é"), Some(0xe9));
        assert_eq!(symbol_named("λ"), Some(0x0100_03bb));
        assert_eq!(symbol_named("F5"), Some(0xffc2));
        assert_eq!(symbol_named("KP_7"), Some(0xffb7));
        assert_eq!(symbol_named("Page_Down"), Some(0xff56));
        assert_eq!(symbol_named("Control_R"), Some(0xffe4));
        assert_eq!(symbol_named("comma"), Some(0x2c));
        assert_eq!(symbol_named("f99"), None);
        assert_eq!(symbol_named("warp"), None);
    }
}
