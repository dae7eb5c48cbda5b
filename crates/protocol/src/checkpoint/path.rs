//! Paths below the workspace as they are: bytes, checked once, and as text only where text is needed.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::DEEPEST;

/// A relative path of plain names, none of which is `.` or `..`. In JSON it is a string in which a
/// backslash is `\\` and a byte that is no UTF-8 is `\xNN`, so every path has one text of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(Vec<u8>);

/// Why bytes are no path below the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    #[error("a path that is empty, absolute, or has an empty part")]
    Empty,
    #[error("a path with `.` or `..` in it")]
    Dots,
    #[error("a path with a NUL byte in it")]
    Nul,
    #[error("a path that is too long or too deep")]
    TooLong,
    #[error("a path that is not escaped as paths are")]
    Escape,
}

const LONGEST: usize = 4000;
const LONGEST_PART: usize = 255;

impl WorkspacePath {
    pub fn new(bytes: Vec<u8>) -> Result<Self, PathFault> {
        if bytes.len() > LONGEST {
            return Err(PathFault::TooLong);
        }
        if bytes.contains(&0) {
            return Err(PathFault::Nul);
        }
        let mut depth = 0;
        for part in bytes.split(|byte| *byte == b'/') {
            depth += 1;
            match part {
                b"" => return Err(PathFault::Empty),
                b"." | b".." => return Err(PathFault::Dots),
                part if part.len() > LONGEST_PART => return Err(PathFault::TooLong),
                _ => {}
            }
        }
        if depth > DEEPEST { Err(PathFault::TooLong) } else { Ok(Self(bytes)) }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path of the folder that it is in; `None` in the workspace itself.
    pub fn parent(&self) -> Option<Self> {
        let end = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(Self(self.0[..end].to_vec()))
    }

    /// The last part.
    pub fn name(&self) -> &[u8] {
        let start = self.0.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        &self.0[start..]
    }

    /// All that could be below it lies between these two in the order of paths.
    pub(super) fn below(&self) -> (Self, Self) {
        let bound = |end: u8| Self([&self.0[..], &[end]].concat());
        (bound(b'/'), bound(b'/' + 1))
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", escape(&self.0))
    }
}

impl Serialize for WorkspacePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for WorkspacePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unescape(&text).and_then(Self::new).map_err(D::Error::custom)
    }
}

/// Where a symlink leads: any bytes that a symlink can hold.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkTarget(Vec<u8>);

impl LinkTarget {
    pub fn new(bytes: Vec<u8>) -> Result<Self, PathFault> {
        match bytes.len() {
            0 => Err(PathFault::Empty),
            1..=4095 if !bytes.contains(&0) => Ok(Self(bytes)),
            1..=4095 => Err(PathFault::Nul),
            _ => Err(PathFault::TooLong),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", escape(&self.0))
    }
}

impl fmt::Display for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl Serialize for LinkTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for LinkTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unescape(&text).and_then(Self::new).map_err(D::Error::custom)
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' {
                text.push('\\');
            }
            text.push(character);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

fn unescape(text: &str) -> Result<Vec<u8>, PathFault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                after
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16).ok_or(PathFault::Escape);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                after
            }
            (b'\\', _) => return Err(PathFault::Escape),
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_back_whatever_their_bytes() {
        for bytes in [&b"a"[..], b"a/b c/\xff\xfe", "ü/\u{1f980}".as_bytes(), b"a\\xff", b"..a/\n"]
        {
            let path = WorkspacePath::new(bytes.to_vec()).unwrap();
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<WorkspacePath>(&text).unwrap(), path, "{text}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_workspace() {
        let deep = vec!["d"; DEEPEST + 1].join("/");
        for bad in ["", "/etc", "a//b", "a/", ".", "..", "../x", "a/../b", "a/..", "a\0b", &deep] {
            assert!(WorkspacePath::new(bad.into()).is_err(), "{bad:?}");
            let text = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<WorkspacePath>(&text).is_err(), "{bad:?}");
        }
        for hidden in [r#""\\x2e\\x2e/x""#, r#""a\\x2f..""#, r#""a\\x00""#, r#""\\q""#, r#""\\x4""#]
        {
            assert!(serde_json::from_str::<WorkspacePath>(hidden).is_err(), "{hidden}");
        }
    }

    #[test]
    fn parts_of_a_path() {
        let path = WorkspacePath::new(b"a/b/c".to_vec()).unwrap();
        assert_eq!(path.name(), b"c");
        assert_eq!(path.parent().unwrap().as_bytes(), b"a/b");
        assert_eq!(path.parent().unwrap().parent().unwrap().parent(), None);
    }
}
