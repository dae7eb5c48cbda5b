//! Reads what is stored within a known record, though a newer program may have added fields to it.
//!
//! The same types are read from requests, where a field that nobody knows is a mistake that its sender wants
//! to hear of. In the store it is the word of a newer program, and is passed over.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize as _, forward_to_deserialize_any};
use serde_json::Value;

/// Reads a value as its type does, but for fields of structs that the type does not have.
pub(crate) fn tolerant<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    T::deserialize(Tolerant(value)).map_err(D::Error::custom)
}

/// A value of which structs see no field that they do not ask for, at any depth.
struct Tolerant(Value);

impl<'de> Deserializer<'de> for Tolerant {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Array(items) => {
                SeqDeserializer::new(items.into_iter().map(Tolerant)).deserialize_any(visitor)
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, Tolerant(value)));
                MapDeserializer::new(fields).deserialize_any(visitor)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if let Value::Object(found) = &mut self.0 {
            found.retain(|name, _| fields.contains(&name.as_str()));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, serde_json::Error> for Tolerant {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
