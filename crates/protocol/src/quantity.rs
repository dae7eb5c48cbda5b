//! Amounts of bytes and of time as people write them: `"512MiB"`, `1.5`, `"10m"`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of bytes. Read from a number of bytes or a text such as `"512MiB"`; written as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, example = "512MiB"))]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "k" | "kB" | "KB" => 1_000,
            "M" | "MB" => 1_000_000,
            "G" | "GB" => 1_000_000_000,
            "Ki" | "KiB" => 1 << 10,
            "Mi" | "MiB" => 1 << 20,
            "Gi" | "GiB" => 1 << 30,
            _ => return Err(format!("`{text}` is not a size; write for example \"512MiB\"")),
        };
        let number: f64 = number
            .parse()
            .map_err(|_| format!("`{text}` is not a size; write for example \"512MiB\""))?;
        let bytes = number * factor as f64;
        if bytes.is_finite() && bytes <= 9e15 {
            Ok(Self(bytes as u64))
        } else {
            Err(format!("`{text}` is too large a size"))
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >= 1 << shift {
                let amount = self.0 as f64 / (1u64 << shift) as f64;
                return if amount.fract() == 0.0 {
                    write!(f, "{amount} {unit}")
                } else {
                    write!(f, "{amount:.1} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a text such as \"512MiB\"")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                ByteSize::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

/// A span of time. Read from a number of seconds or a text such as `"10m"`; written as seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = f64, example = 60))]
pub struct Seconds(f64);

/// No span of time in a job may be longer than this: thirty days.
const LONGEST_SECONDS: f64 = 30.0 * 86_400.0;

impl Seconds {
    pub const fn whole(seconds: u32) -> Self {
        Self(seconds as f64)
    }

    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }

    pub fn get(self) -> f64 {
        self.0
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a span of time; write seconds, or \"10m\", \"2h\"");
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor = match unit.trim() {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        Self::checked(number.parse::<f64>().map_err(|_| bad())? * factor)
    }

    fn checked(seconds: f64) -> Result<Self, String> {
        if seconds > 0.0 && seconds <= LONGEST_SECONDS {
            Ok(Self(seconds))
        } else {
            Err("a span of time must be more than 0 seconds and at most 30 days".into())
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Span;
        impl Visitor<'_> for Span {
            type Value = Seconds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of seconds or a text such as \"10m\"")
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Seconds, E> {
                Seconds::checked(seconds).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Seconds, E> {
                self.visit_f64(seconds as f64)
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Seconds, E> {
                self.visit_f64(seconds as f64)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Seconds, E> {
                Seconds::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in
            [("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("2k", 2000), ("77", 77), ("8B", 8)]
        {
            assert_eq!(ByteSize::parse(text), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "MiB", "12XB", "-5", "1e99", "9999999999GiB"] {
            assert!(ByteSize::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_as_people_write_them() {
        for (text, seconds) in [("90", 90.0), ("1.5m", 90.0), ("250ms", 0.25), ("2h", 7200.0)] {
            assert_eq!(Seconds::parse(text).unwrap().get(), seconds, "{text}");
        }
        for bad in ["", "0", "-1", "soon", "31d", "NaN"] {
            assert!(Seconds::parse(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Seconds>("-3").is_err());
        assert_eq!(serde_json::from_str::<Seconds>("0.5").unwrap().get(), 0.5);
    }
}
