//! JSON schemas for models, from the types themselves: whole in themselves and without what models
//! stumble over.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

/// The variants of an enum that is tagged by `tag`: each tag with the schema of its fields.
pub(super) fn variants<T: ToSchema + PartialSchema>(tag: &str) -> Vec<(String, Value)> {
    let mut named = Vec::new();
    T::schemas(&mut named);
    let named: BTreeMap<String, Value> = named
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default()))
        .collect();
    let whole = serde_json::to_value(T::schema()).unwrap_or_default();
    let variants = whole["oneOf"].as_array().cloned().unwrap_or_default();
    variants.iter().filter_map(|variant| fields_of(variant, tag, &named)).collect()
}

fn fields_of(
    variant: &Value,
    tag: &str,
    named: &BTreeMap<String, Value>,
) -> Option<(String, Value)> {
    let parts = match variant["allOf"].as_array() {
        Some(parts) => parts.clone(),
        None => vec![variant.clone()],
    };
    let name =
        parts.iter().find_map(|part| part["properties"][tag]["enum"][0].as_str())?.to_owned();
    let mut properties = Map::new();
    let mut required = Vec::new();
    for part in &parts {
        let part = inlined(part, named);
        for (field, schema) in part["properties"].as_object().into_iter().flatten() {
            if field != tag {
                properties.insert(field.clone(), schema.clone());
            }
        }
        let names = part["required"].as_array().into_iter().flatten();
        required.extend(names.filter(|name| *name != tag).cloned());
    }
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    Some((name, schema))
}

/// A schema with all that it refers to in its place, and without `null`: what is not wanted is left
/// out instead.
fn inlined(schema: &Value, named: &BTreeMap<String, Value>) -> Value {
    match schema {
        Value::Object(fields) => {
            if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                let name = target.rsplit('/').next().unwrap_or_default();
                let mut whole = named.get(name).map_or(Value::Null, |found| inlined(found, named));
                // What stands beside a reference is about this place and goes before.
                for (field, value) in fields.iter().filter(|(field, _)| *field != "$ref") {
                    whole[field] = value.clone();
                }
                return whole;
            }
            if let Some(choice) = only_choice(fields) {
                let mut whole = inlined(choice, named);
                if let Some(words) = fields.get("description") {
                    whole["description"] = words.clone();
                }
                return whole;
            }
            let fields = fields.iter().map(|(field, value)| {
                let value = match value {
                    Value::Array(types) if field == "type" => without_null(types),
                    value => inlined(value, named),
                };
                (field.clone(), value)
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.iter().map(|item| inlined(item, named)).collect(),
        other => other.clone(),
    }
}

/// The other one, of two choices of which one is `null`.
fn only_choice(fields: &Map<String, Value>) -> Option<&Value> {
    let choices = fields.get("oneOf")?.as_array()?;
    let mut others = choices.iter().filter(|choice| choice["type"] != "null");
    match (others.next(), others.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn without_null(types: &[Value]) -> Value {
    let types: Vec<Value> = types.iter().filter(|kind| *kind != "null").cloned().collect();
    match <[Value; 1]>::try_from(types) {
        Ok([only]) => only,
        Err(types) => types.into(),
    }
}
