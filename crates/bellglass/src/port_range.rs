//! A range of ports as it stands in the configuration: `6080-6179`.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a range of ports; write one like \"6080-6179\"")]
pub(crate) struct NotARange(String);

impl TryFrom<String> for PortRange {
    type Error = NotARange;

    fn try_from(text: String) -> Result<Self, NotARange> {
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(NotARange(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let read = |text: &str| PortRange::try_from(text.to_owned()).ok();
        assert_eq!(read("6080-6179"), Some(PortRange { first: 6080, last: 6179 }));
        assert_eq!(read(" 7 - 7 "), read("7"));
        for bad in ["", "-", "0-5", "5-4", "1-65536", "a-b", "1-2-3"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
