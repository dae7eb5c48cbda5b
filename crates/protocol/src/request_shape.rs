//! A first look at the body of a request: is it JSON, are objects where objects belong, are all tools
//! known, is no list far too long? It builds nothing of what it reads, so that a hostile body costs
//! time but not many times its size in memory.
//!
//! Must not know what the fields mean: that is for [`crate::request`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What is wrong with the shape of a body.
#[derive(Debug, PartialEq)]
pub(crate) enum ShapeFault {
    /// It is not JSON.
    Syntax(String),
    /// Something else stands in place of an object; at this place, empty for the body itself.
    NotAnObject(String),
    /// The step of this index names a tool that does not exist.
    UnknownTool { index: usize, name: String },
    /// A list has more items than it may have.
    TooMany { list: &'static str },
}

/// How long a tool's name may be in an error message.
const SHOWN: usize = 64;

/// What a body is held against.
pub(crate) struct Expected<'a> {
    pub tools: &'a [&'a str],
    pub most_steps: usize,
    pub most_files: usize,
}

/// Fails with the first fault of a body.
pub(crate) fn check(body: &[u8], expected: &Expected<'_>) -> Result<(), ShapeFault> {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow)]
        limits: Option<&'a RawValue>,
        #[serde(borrow)]
        budget: Option<&'a RawValue>,
        #[serde(borrow)]
        steps: Option<&'a RawValue>,
        #[serde(borrow)]
        files: Option<&'a RawValue>,
    }
    let whole: &RawValue =
        serde_json::from_slice(body).map_err(|error| ShapeFault::Syntax(error.to_string()))?;
    if !is_object(whole) {
        return Err(ShapeFault::NotAnObject(String::new()));
    }
    let Ok(outline) = serde_json::from_str::<Outline<'_>>(whole.get()) else {
        // A field that is given twice; who reads the fields says so.
        return Ok(());
    };
    for (name, value) in [("limits", outline.limits), ("budget", outline.budget)] {
        if value.is_some_and(|value| !is_object(value)) {
            return Err(ShapeFault::NotAnObject(name.into()));
        }
    }
    if let Some(files) = outline.files {
        let list = List { name: "files", most: expected.most_files, tools: None };
        list.check(files)?;
    }
    if let Some(steps) = outline.steps {
        let list = List { name: "steps", most: expected.most_steps, tools: Some(expected.tools) };
        list.check(steps)?;
    }
    Ok(())
}

/// Serde would read the items of a list as the fields in their order of declaration, which nobody
/// means. A null is none at all.
fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{') || value.get() == "null"
}

/// A list of objects.
struct List<'a> {
    name: &'static str,
    most: usize,
    /// What an item may name as its tool.
    tools: Option<&'a [&'a str]>,
}

impl List<'_> {
    fn check(&self, list: &RawValue) -> Result<(), ShapeFault> {
        if !list.get().starts_with('[') {
            // What is no list at all is said better by who reads the fields.
            return Ok(());
        }
        let mut deserializer = serde_json::Deserializer::from_str(list.get());
        deserializer.deserialize_seq(self).unwrap_or(Ok(()))
    }

    fn check_item(&self, index: usize, item: &RawValue) -> Result<(), ShapeFault> {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            tool: Option<Cow<'a, str>>,
        }
        if index >= self.most {
            return Err(ShapeFault::TooMany { list: self.name });
        }
        if !is_object(item) {
            return Err(ShapeFault::NotAnObject(format!("{}[{index}]", self.name)));
        }
        let tool = serde_json::from_str(item.get()).ok().and_then(|named: Named<'_>| named.tool);
        match (tool, self.tools) {
            (Some(name), Some(tools)) if !tools.contains(&&*name) => {
                let name = name.chars().take(SHOWN).collect();
                Err(ShapeFault::UnknownTool { index, name })
            }
            _ => Ok(()),
        }
    }
}

impl<'de> Visitor<'de> for &List<'_> {
    type Value = Result<(), ShapeFault>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut index = 0;
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            if let Err(fault) = self.check_item(index, item) {
                return Ok(Err(fault));
            }
            index += 1;
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of(body: &str) -> Option<ShapeFault> {
        let expected = Expected { tools: &["shell"], most_steps: 2, most_files: 1 };
        check(body.as_bytes(), &expected).err()
    }

    #[test]
    fn the_first_fault_is_found() {
        let not_an_object = |place: &str| Some(ShapeFault::NotAnObject(place.into()));
        assert_eq!(fault_of(r#" {"steps":[{"tool":"shell"}], "webhook":[[[{}]]]} "#), None);
        assert_eq!(fault_of("[]"), not_an_object(""));
        assert_eq!(fault_of("3"), not_an_object(""));
        assert_eq!(fault_of(r#"{"limits":[]}"#), not_an_object("limits"));
        assert_eq!(fault_of(r#"{"budget":[1]}"#), not_an_object("budget"));
        assert_eq!(fault_of(r#"{"steps":[{}, 3]}"#), not_an_object("steps[1]"));
        assert_eq!(fault_of(r#"{"steps":[["shell","ls"]]}"#), not_an_object("steps[0]"));
        assert_eq!(fault_of(r#"{"files":[{},{}]}"#), Some(ShapeFault::TooMany { list: "files" }));
        assert_eq!(
            fault_of(r#"{"steps":[{},{},{}]}"#),
            Some(ShapeFault::TooMany { list: "steps" })
        );
        let unknown = ShapeFault::UnknownTool { index: 1, name: "fl\"y".into() };
        assert_eq!(fault_of(r#"{"steps":[{"tool":7},{"tool":"fl\"y"}]}"#), Some(unknown));
        for broken in ["", "{", "{}x", "{\"a\":}", "\u{1}"] {
            assert!(matches!(fault_of(broken), Some(ShapeFault::Syntax(_))), "{broken:?}");
        }
    }
}
