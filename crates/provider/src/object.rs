//! A JSON object taken apart one level deep: its values stay the text that they are.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::request::Key;

/// Room for so many is made at once: an answer and its usage have no more.
const USUAL_MEMBERS: usize = 12;

/// The members of an object, in their order.
#[derive(Debug, Default)]
pub(crate) struct Object<'a>(Vec<(Key<'a>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// The object in a piece of JSON; none if it is something else.
    pub(crate) fn of(json: &'a [u8]) -> Option<Self> {
        // Once for all of it, in place of once for each value.
        serde_json::from_str(std::str::from_utf8(json).ok()?).ok()
    }

    /// The object in a value.
    pub(crate) fn in_value(value: &'a RawValue) -> Option<Self> {
        serde_json::from_str(value.get()).ok()
    }

    /// The value of a key: the last one, if it stands there twice. Null is no value.
    pub(crate) fn get(&self, key: &str) -> Option<&'a RawValue> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name.0 == key)?;
        Some(*value).filter(|value| value.get() != "null")
    }

    /// The value of the first of several keys that has one.
    pub(crate) fn any(&self, keys: &[&str]) -> Option<&'a RawValue> {
        keys.iter().find_map(|key| self.get(key))
    }

    /// The object under a key.
    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        Self::in_value(self.get(key)?)
    }

    /// The objects in the list under a key; what is no object in it is left out.
    pub(crate) fn objects(&self, key: &str) -> Vec<Self> {
        let list = self.get(key).map(|value| serde_json::from_str::<Vec<&RawValue>>(value.get()));
        list.and_then(Result::ok)
            .unwrap_or_default()
            .into_iter()
            .filter_map(Self::in_value)
            .collect()
    }

    /// The text under a key, if there is one and it is not empty.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let json = self.get(key)?.get();
        let quoted = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let text = match quoted.filter(|text| !text.contains('\\')) {
            Some(text) => text.to_owned(),
            None => serde_json::from_str(json).ok()?,
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// The first key that stands there more than once. Bodies come from callers: as many keys as they
    /// like must not cost the square of it.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut seen = HashSet::with_capacity(self.0.len());
        let mut names = self.0.iter().map(|(name, _)| &*name.0);
        names.find(|name| !seen.insert(*name))
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(USUAL_MEMBERS);
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_and_null_is_none() {
        let object =
            Object::of(br#"{"a":1,"b":null,"a":2,"c":{"d":"x"},"e":[{},7],"f":""}"#).unwrap();
        assert_eq!(object.get("a").map(RawValue::get), Some("2"));
        assert_eq!(object.duplicate(), Some("a"));
        assert!(object.get("b").is_none() && object.get("x").is_none());
        assert_eq!(object.object("c").unwrap().text("d").as_deref(), Some("x"));
        assert_eq!(object.objects("e").len(), 1);
        assert_eq!((object.text("f"), object.text("c")), (None, None));
        for json in ["[]", "7", "{", ""] {
            assert!(Object::of(json.as_bytes()).is_none(), "{json}");
        }
    }
}
