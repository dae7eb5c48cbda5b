//! Keys by their names and characters, pressed through the X server's own test extension.

use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{ConnectionExt as _, KEY_PRESS_EVENT, KEY_RELEASE_EVENT};
use x11rb::protocol::xtest::ConnectionExt as _;

use super::display::Display;
use super::selections::LARGEST_SELECTION;
use super::{Broken, Done};

/// How long a program may take to ask for what is pasted into it. One that has not asked until then
/// did not take the keys for it. They are not pressed again: a program that is only slow would paste
/// twice.
const PASTING: Duration = Duration::from_secs(10);

const SHIFT: u32 = 0xffe1;
const INSERT: u32 = 0xff63;
const RETURN: u32 = 0xff0d;
const TAB: u32 = 0xff09;

/// A key of the keyboard as it is laid out now.
#[derive(Clone, Copy)]
struct Key {
    code: u8,
    shifted: bool,
}

/// Which key makes which symbol.
pub(super) struct Keyboard {
    first: u8,
    per_key: usize,
    symbols: Vec<u32>,
}

impl Keyboard {
    pub(super) fn of(display: &Display) -> Done<Self> {
        let setup = display.connection.setup();
        let (first, last) = (setup.min_keycode, setup.max_keycode);
        let mapping = display.connection.get_keyboard_mapping(first, last - first + 1)?.reply()?;
        let per_key = usize::from(mapping.keysyms_per_keycode);
        Ok(Self { first, per_key, symbols: mapping.keysyms })
    }

    fn key(&self, symbol: u32) -> Option<Key> {
        let codes = self.first..=u8::MAX;
        let keys = || codes.clone().zip(self.symbols.chunks(self.per_key.max(1)));
        let at = |column: usize| {
            keys().find(|(_, symbols)| symbols.get(column) == Some(&symbol)).map(|(code, _)| code)
        };
        let plain = at(0).map(|code| Key { code, shifted: false });
        plain.or_else(|| at(1).map(|code| Key { code, shifted: true }))
    }

    /// Types a text: what the keyboard has by its keys, everything else by pasting it.
    pub(super) fn type_text(
        &self,
        display: &Display,
        text: &str,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Done<()> {
        let pieces = pieces(text);
        let pastes = pieces.iter().any(|(line, _)| self.keys_of(line).is_none());
        // Other content than text cannot be put back.
        let clipboard = if pastes { display.clipboard().unwrap_or_default() } else { None };
        for (line, end) in pieces {
            if stop() || Instant::now() >= until {
                return Err(Broken("the time was up before all of it was typed".into()));
            }
            match self.keys_of(line) {
                Some(keys) => {
                    keys.into_iter().try_for_each(|key| self.press_and_release(display, key))?;
                }
                None => self.paste(display, line, until.min(Instant::now() + PASTING), stop)?,
            }
            end.map_or(Ok(()), |symbol| self.tap(display, symbol))?;
        }
        if pastes {
            display.give_back(clipboard)?;
        }
        display.settle()
    }

    /// The keys of a line, if the keyboard has all of them.
    fn keys_of(&self, line: &str) -> Option<Vec<Key>> {
        line.chars().map(|c| self.key(symbol_of(c)).filter(|_| !c.is_control())).collect()
    }

    /// Shift and insert paste everywhere: in terminals what is selected, elsewhere the clipboard.
    fn paste(
        &self,
        display: &Display,
        text: &str,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Done<()> {
        if text.len() > LARGEST_SELECTION {
            return Err(Broken("the text is longer than 200 KiB; write it to a file".into()));
        }
        let into = display.offer_for_pasting(text)?;
        self.press(display, "shift+Insert")?;
        if display.wait_until_pasted(into, until, stop) {
            return Ok(());
        }
        display.withdraw()?;
        Err(Broken(
            "the window that has the keyboard took nothing that was pasted; click into a text \
             field first"
                .into(),
        ))
    }

    /// Presses combinations such as `ctrl+a Delete`.
    pub(super) fn press(&self, display: &Display, combinations: &str) -> Done<()> {
        for combination in combinations.split_whitespace() {
            let keys = self.combination(combination)?;
            self.all_down(display, &keys)?;
            self.all_up(display, &keys)?;
        }
        display.settle()
    }

    /// Holds keys while something is done.
    pub(super) fn holding(
        &self,
        display: &Display,
        combination: Option<&str>,
        act: impl FnOnce() -> Done<()>,
    ) -> Done<()> {
        let keys = combination.map_or(Ok(Vec::new()), |keys| self.combination(keys))?;
        self.all_down(display, &keys)?;
        // What is not sent yet is not held.
        display.connection.flush()?;
        let acted = act();
        self.all_up(display, &keys)?;
        display.settle()?;
        acted
    }

    fn combination(&self, combination: &str) -> Done<Vec<u8>> {
        // A plus sign at the end is the key itself.
        let (names, plus) = match combination.strip_suffix('+') {
            Some(rest) => (rest.trim_end_matches('+'), Some("plus")),
            None => (combination, None),
        };
        let mut codes = Vec::new();
        for name in names.split('+').chain(plus).filter(|name| !name.is_empty()) {
            let key = symbol_named(name).and_then(|symbol| self.key(symbol));
            let key = key.ok_or_else(|| {
                Broken(format!(
                    "there is no key `{name}`; use names such as Return, Escape, Tab, Up, F5, ctrl, \
                     shift, alt, super, or single characters, joined by `+`"
                ))
            })?;
            if key.shifted
                && let Some(shift) = self.key(SHIFT)
            {
                codes.push(shift.code);
            }
            codes.push(key.code);
        }
        Ok(codes)
    }

    fn all_down(&self, display: &Display, codes: &[u8]) -> Done<()> {
        codes.iter().try_for_each(|code| fake(display, KEY_PRESS_EVENT, *code))
    }

    fn all_up(&self, display: &Display, codes: &[u8]) -> Done<()> {
        codes.iter().rev().try_for_each(|code| fake(display, KEY_RELEASE_EVENT, *code))
    }

    fn tap(&self, display: &Display, symbol: u32) -> Done<()> {
        self.key(symbol).map_or(Ok(()), |key| self.press_and_release(display, key))
    }

    fn press_and_release(&self, display: &Display, key: Key) -> Done<()> {
        let shift = self.key(SHIFT).filter(|_| key.shifted);
        let codes: Vec<u8> = shift.iter().map(|key| key.code).chain([key.code]).collect();
        self.all_down(display, &codes)?;
        self.all_up(display, &codes)
    }
}

/// A text in lines, each with the key that ends it.
fn pieces(text: &str) -> Vec<(&str, Option<u32>)> {
    let pieces = text.split_inclusive(['\n', '\t']).map(|piece| {
        let (line, end) = match piece.strip_suffix('\n') {
            Some(line) => (line, Some(RETURN)),
            None => match piece.strip_suffix('\t') {
                Some(line) => (line, Some(TAB)),
                None => (piece, None),
            },
        };
        (line.trim_end_matches('\r'), end)
    });
    pieces.collect()
}

fn fake(display: &Display, kind: u8, code: u8) -> Done<()> {
    display.connection.xtest_fake_input(kind, code, 0, display.root, 0, 0, 0)?;
    Ok(())
}

/// The X server's number for a character.
fn symbol_of(c: char) -> u32 {
    match u32::from(c) {
        code @ (0x20..=0x7e | 0xa0..=0xff) => code,
        code => 0x0100_0000 + code,
    }
}

fn symbol_named(name: &str) -> Option<u32> {
    let mut characters = name.chars();
    if let (Some(only), None) = (characters.next(), characters.next()) {
        return Some(symbol_of(only));
    }
    let lower = name.to_ascii_lowercase();
    if let Some(number) = lower.strip_prefix('f').and_then(|number| number.parse::<u32>().ok()) {
        return (1..=24).contains(&number).then_some(0xffbd + number);
    }
    Some(match lower.as_str() {
        "return" | "enter" => RETURN,
        "tab" => TAB,
        "escape" | "esc" => 0xff1b,
        "backspace" => 0xff08,
        "delete" | "del" => 0xffff,
        "insert" => INSERT,
        "home" => 0xff50,
        "left" => 0xff51,
        "up" => 0xff52,
        "right" => 0xff53,
        "down" => 0xff54,
        "page_up" | "pageup" | "prior" => 0xff55,
        "page_down" | "pagedown" | "next" => 0xff56,
        "end" => 0xff57,
        "print" => 0xff61,
        "menu" => 0xff67,
        "space" => 0x20,
        "plus" => 0x2b,
        "minus" => 0x2d,
        "shift" | "shift_l" => SHIFT,
        "ctrl" | "control" | "control_l" => 0xffe3,
        "alt" | "alt_l" => 0xffe9,
        "super" | "super_l" | "cmd" | "meta" | "win" => 0xffeb,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_characters_have_symbols() {
        assert_eq!(symbol_named("a"), Some(0x61));
        assert_eq!(symbol_named("é"), Some(0xe9));
        assert_eq!(symbol_named("λ"), Some(0x0100_03bb));
        assert_eq!(symbol_named("F5"), Some(0xffc2));
        assert_eq!(symbol_named("Page_Down"), Some(0xff56));
        assert_eq!(symbol_named("warp"), None);
    }

    #[test]
    fn lines_end_with_their_keys() {
        assert_eq!(
            pieces("a b\r\n\tλ\n"),
            [("a b", Some(RETURN)), ("", Some(TAB)), ("λ", Some(RETURN))]
        );
        assert_eq!(pieces("x"), [("x", None)]);
        assert!(pieces("").is_empty());
    }

    #[test]
    fn combinations_are_taken_apart() {
        // Keys 8 to 11: shift, control, a and A, plus and equals.
        let symbols = vec![SHIFT, 0, 0xffe3, 0, 0x61, 0x41, 0x3d, 0x2b];
        let keyboard = Keyboard { first: 8, per_key: 2, symbols };
        assert_eq!(keyboard.combination("ctrl+a").unwrap(), [9, 10]);
        assert_eq!(keyboard.combination("ctrl+A").unwrap(), [9, 8, 10]);
        assert_eq!(keyboard.combination("ctrl++").unwrap(), [9, 8, 11]);
        assert_eq!(keyboard.combination("+").unwrap(), [8, 11]);
        assert!(keyboard.combination("ctrl+b").is_err());
    }
}
