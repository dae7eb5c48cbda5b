//! What a viewer of a desktop says, message by message (RFC 6143, section 7.5, and its extensions).
//!
//! Pure. A viewer is let look and not touch by what is taken out here, whatever program it is. A kind
//! of message that is not known has no known end, so it ends the connection; and encodings that would
//! bring such messages about are taken out of what the viewer says that it understands.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The longest text that may be put onto the clipboard.
const LONGEST_TEXT: usize = 1 << 20;
const MOST_ENCODINGS: usize = 256;
const MOST_SCREENS: usize = 16;

/// One message of a viewer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ViewerMessage {
    pub kind: Kind,
    pub bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// How the viewer wants to be shown the desktop.
    Wish,
    /// Keys, the pointer, the clipboard: for whoever has the desktop in hand.
    Input,
    /// Nobody's: another size would not be the one that the job's pictures have, and a viewer has no
    /// say about the machine.
    Refused,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("a message of unknown kind {0}")]
    Unknown(u8),
    #[error("a message that is too long")]
    TooLong,
}

/// Takes messages out of bytes as they come.
#[derive(Default)]
pub(super) struct ViewerMessages {
    bytes: BytesMut,
}

impl ViewerMessages {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message; nothing until more bytes have come.
    pub(super) fn next(&mut self) -> Result<Option<ViewerMessage>, BadMessage> {
        let Some((kind, length)) = measure(&self.bytes)? else { return Ok(None) };
        if self.bytes.len() < length {
            return Ok(None);
        }
        let message = self.bytes.split_to(length);
        let bytes = match message[0] {
            SET_ENCODINGS => known_encodings(&message),
            _ => message.freeze(),
        };
        Ok(Some(ViewerMessage { kind, bytes }))
    }
}

const SET_ENCODINGS: u8 = 2;

/// Kind and length of the message that begins here; nothing if too little of it is there to tell.
fn measure(bytes: &[u8]) -> Result<Option<(Kind, usize)>, BadMessage> {
    let Some(first) = bytes.first() else { return Ok(None) };
    let byte = |at: usize| bytes.get(at).map(|byte| usize::from(*byte));
    let short =
        |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    let bounded = |count: Option<usize>, most: usize| match count {
        Some(count) if count > most => Err(BadMessage::TooLong),
        count => Ok(count),
    };
    let (kind, length) = match first {
        0 => (Kind::Wish, Some(20)),
        &SET_ENCODINGS => {
            (Kind::Wish, bounded(short(2), MOST_ENCODINGS)?.map(|count| 4 + 4 * count))
        }
        3 => (Kind::Wish, Some(10)),
        4 => (Kind::Input, Some(8)),
        5 => (Kind::Input, Some(6)),
        6 => {
            // Formats beyond plain text say so by a negative length.
            let length = bytes.get(4..8).map(|mut length| length.get_i32().unsigned_abs() as usize);
            (Kind::Input, bounded(length, LONGEST_TEXT)?.map(|length| 8 + length))
        }
        150 => (Kind::Wish, Some(10)),
        248 => (Kind::Wish, bounded(byte(8), 64)?.map(|length| 9 + length)),
        250 => (Kind::Refused, Some(4)),
        251 => (Kind::Refused, bounded(byte(6), MOST_SCREENS)?.map(|count| 8 + 16 * count)),
        255 => match byte(1) {
            Some(0) => (Kind::Input, Some(12)),
            Some(_) => return Err(BadMessage::Unknown(255)),
            None => (Kind::Input, None),
        },
        other => return Err(BadMessage::Unknown(*other)),
    };
    Ok(length.map(|length| (kind, length)))
}

/// The same message without encodings of which we do not know what they bring about.
fn known_encodings(message: &[u8]) -> Bytes {
    let mut all = &message[4..];
    let mut known = Vec::new();
    while all.remaining() >= 4 {
        let encoding = all.get_i32();
        if is_known(encoding) {
            known.push(encoding);
        }
    }
    let mut bytes = BytesMut::with_capacity(4 + 4 * known.len());
    bytes.put_slice(&[SET_ENCODINGS, 0]);
    bytes.put_u16(known.len() as u16);
    for encoding in known {
        bytes.put_i32(encoding);
    }
    bytes.freeze()
}

fn is_known(encoding: i32) -> bool {
    const EXTENDED_CLIPBOARD: i32 = 0xc0a1_e5ce_u32 as i32;
    const VMWARE_CURSOR: i32 = 0x574d_5664;
    matches!(
        encoding,
        // Raw, CopyRect, RRE, Hextile, Zlib, Tight, ZRLE, JPEG, Tight with PNG.
        0 | 1 | 2 | 5 | 6 | 7 | 16 | 21 | -260
        // Size, last rectangle, cursors, name, keyboard lights, several screens.
        | -223 | -224 | -239 | -240 | -307 | -261 | -308
        // Key codes beside key names; fences and updates that are not asked for one by one.
        | -258 | -312 | -313
        // Qualities and compressions.
        | -32..=-23 | -256..=-247 | -512..=-412 | -768..=-763
        | EXTENDED_CLIPBOARD | VMWARE_CURSOR
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], at_once: usize) -> Result<Vec<(Kind, usize)>, BadMessage> {
        let (mut messages, mut found) = (ViewerMessages::default(), Vec::new());
        for piece in bytes.chunks(at_once) {
            messages.push(piece);
            while let Some(message) = messages.next()? {
                found.push((message.kind, message.bytes.len()));
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_are_told_apart_however_they_come() {
        let mut bytes = vec![0; 20];
        bytes.extend([2, 0, 0, 2, 0, 0, 0, 7, 0xff, 0xff, 0xfe, 0xc4]);
        bytes.extend([3, 0, 0, 0, 0, 0, 5, 0, 3, 32]);
        bytes.extend([4, 1, 0, 0, 0, 0, 0, 97]);
        bytes.extend([5, 1, 0, 10, 0, 10]);
        bytes.extend([6, 0, 0, 0, 0, 0, 0, 2, b'h', b'i']);
        bytes.extend([6, 0, 0, 0, 0xff, 0xff, 0xff, 0xfc, 1, 2, 3, 4]);
        bytes.extend([251, 0, 4, 0, 3, 0, 1, 0]);
        bytes.extend([0; 16]);
        bytes.extend([255, 0, 0, 1, 0, 0, 0, 97, 0, 0, 0, 30]);
        bytes.extend([248, 0, 0, 0, 0, 0, 0, 1, 2, 9, 9]);
        let expected = [
            (Kind::Wish, 20),
            // The second encoding, more buttons of the mouse, is not known.
            (Kind::Wish, 8),
            (Kind::Wish, 10),
            (Kind::Input, 8),
            (Kind::Input, 6),
            (Kind::Input, 10),
            (Kind::Input, 12),
            (Kind::Refused, 24),
            (Kind::Input, 12),
            (Kind::Wish, 11),
        ];
        for at_once in [1, 2, 3, 7, 1000] {
            assert_eq!(read(&bytes, at_once).unwrap(), expected, "{at_once}");
        }
    }

    #[test]
    fn what_is_unknown_or_without_end_ends_it() {
        assert_eq!(read(&[7], 1), Err(BadMessage::Unknown(7)));
        assert_eq!(read(&[255, 1], 2), Err(BadMessage::Unknown(255)));
        assert_eq!(read(&[6, 0, 0, 0, 0x7f, 0, 0, 0], 8), Err(BadMessage::TooLong));
        assert_eq!(read(&[6, 0, 0, 0, 0x80, 0, 0, 0], 8), Err(BadMessage::TooLong));
        assert_eq!(read(&[2, 0, 0xff, 0xff], 4), Err(BadMessage::TooLong));
        assert_eq!(read(&[251, 0, 0, 0, 0, 0, 200], 7), Err(BadMessage::TooLong));
    }
}
