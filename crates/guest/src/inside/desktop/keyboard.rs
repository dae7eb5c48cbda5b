//! Keys by their names and characters, pressed through the X server's own test extension.

use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{ConnectionExt as _, KEY_PRESS_EVENT, KEY_RELEASE_EVENT, KeyButMask};
use x11rb::protocol::xtest::ConnectionExt as _;

use super::display::Display;
use super::key_names::{RETURN, SHIFT, TAB, symbol_named, symbol_of};
use super::selections::LARGEST_SELECTION;
use super::{Broken, Done};

/// How long a program may take to ask for what is pasted into it. One that has not asked until then
/// did not take the keys for it. They are not pressed again: a program that is only slow would paste
/// twice.
const PASTING: Duration = Duration::from_secs(10);

/// A key of the keyboard as it is laid out now.
#[derive(Clone, Copy)]
struct Key {
    code: u8,
    shifted: bool,
}

/// Which key makes which symbol, as the keyboard is laid out now. Programs may lay it out anew.
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
        // With Caps Lock on, keys make other letters than they say.
        let pointer = display.connection.query_pointer(display.root)?.reply()?;
        let locked = u16::from(pointer.mask) & u16::from(KeyButMask::LOCK) != 0;
        let keys_of = |line: &str| self.keys_of(line).filter(|_| !locked || line.is_empty());
        let pastes = pieces.iter().any(|(line, _)| keys_of(line).is_none());
        // Other content than text cannot be put back.
        let clipboard = if pastes { display.clipboard().unwrap_or_default() } else { None };
        let typed = pieces.into_iter().try_for_each(|(line, end)| {
            if stop() || Instant::now() >= until {
                return Err(Broken("the time was up before all of it was typed".into()));
            }
            match keys_of(line) {
                Some(keys) => {
                    keys.into_iter().try_for_each(|key| self.press_and_release(display, key))?;
                }
                None => self.paste(display, line, until.min(Instant::now() + PASTING), stop)?,
            }
            end.map_or(Ok(()), |symbol| self.tap(display, symbol))
        });
        // What was not typed must not stay there in place of what there was.
        if pastes {
            display.give_back(clipboard)?;
        }
        typed?;
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
        let into = display.offer_for_pasting(text, until, stop)?;
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
        combination: &str,
        act: impl FnOnce() -> Done<()>,
    ) -> Done<()> {
        let keys = self.combination(combination)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
