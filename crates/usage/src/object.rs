//! A JSON object, taken apart one level deep. Its values stay text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The initial capacity for members: an answer, or its usage, has no more.
const USUAL_MEMBERS: usize = 12;

/// A key, borrowed where it has no escapes.
#[derive(Clone, Debug, serde::Deserialize)]
pub(crate) struct JsonKey<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The members of an object, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonObject<'a>(Vec<(JsonKey<'a>, JsonValue<'a>)>);

/// The value of a member.
#[derive(Clone, Debug)]
enum JsonValue<'a> {
    /// The text of the value.
    Text(&'a RawValue),
    /// An object that was taken apart together with the one around it.
    Object(JsonObject<'a>),
    /// Null in place of such an object.
    Null,
    Other,
}

impl<'a> JsonObject<'a> {
    /// The object in a piece of JSON; `None` if it is something else.
    pub(crate) fn of(json: &'a [u8]) -> Option<Self> {
        Self::with_inner(json, none)
    }

    /// As [`JsonObject::of`], with the objects below `inner` keys taken apart as well. Objects that are
    /// always looked into are then parsed only once.
    pub(crate) fn with_inner(json: &'a [u8], inner: NestedKeys) -> Option<Self> {
        // One check of the whole text, instead of one for each value.
        Self::parse(std::str::from_utf8(json).ok()?, inner)
    }

    /// The object in a value.
    pub(crate) fn in_value(value: &'a RawValue) -> Option<Self> {
        Self::parse(value.get(), none)
    }

    fn parse(json: &'a str, inner: NestedKeys) -> Option<Self> {
        let mut json = serde_json::Deserializer::from_str(json);
        let object = ObjectSeed(inner).deserialize(&mut json).ok()?;
        json.end().is_ok().then_some(object)
    }

    /// The value of a key: the last one, if the key occurs twice. Null counts as absent.
    fn value(&self, key: &str) -> Option<&JsonValue<'a>> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name.0 == key)?;
        let is_null = match value {
            JsonValue::Text(value) => value.get() == "null",
            JsonValue::Null => true,
            JsonValue::Object(_) | JsonValue::Other => false,
        };
        Some(value).filter(|_| !is_null)
    }

    /// The members, with the text of those that are not taken apart.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, Option<&'a RawValue>)> {
        self.0.iter().map(|(key, value)| match value {
            JsonValue::Text(value) => (&*key.0, Some(*value)),
            JsonValue::Object(_) | JsonValue::Null | JsonValue::Other => (&*key.0, None),
        })
    }

    /// Whether a key has a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The text of the value of a key, unless it is taken apart.
    pub(crate) fn get(&self, key: &str) -> Option<&'a RawValue> {
        match self.value(key)? {
            JsonValue::Text(value) => Some(value),
            JsonValue::Object(_) | JsonValue::Null | JsonValue::Other => None,
        }
    }

    /// The value of the first of several keys that has one.
    pub(crate) fn get_any(&self, keys: &[&str]) -> Option<&'a RawValue> {
        keys.iter().find_map(|key| self.get(key))
    }

    /// The object under a key.
    pub(crate) fn object(&self, key: &str) -> Option<Cow<'_, Self>> {
        match self.value(key)? {
            JsonValue::Text(value) => Self::in_value(value).map(Cow::Owned),
            JsonValue::Object(object) => Some(Cow::Borrowed(object)),
            JsonValue::Null | JsonValue::Other => None,
        }
    }

    /// The objects in the list under a key, without the other items.
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
        self.text_ref(key).map(Cow::into_owned)
    }

    /// As [`JsonObject::text`], borrowed if the text has no escapes.
    fn text_ref(&self, key: &str) -> Option<Cow<'a, str>> {
        let json = self.get(key)?.get();
        let quoted = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let text = match quoted.filter(|text| !text.contains('\\')) {
            Some(text) => Cow::Borrowed(text),
            None => Cow::Owned(serde_json::from_str(json).ok()?),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Replaces `known` by the text under a key, if there is one. Most answers repeat the same
    /// text, so it is copied only if it differs.
    pub(crate) fn update_text(&self, key: &str, known: &mut Option<String>) {
        if let Some(text) = self.text_ref(key).filter(|text| known.as_deref() != Some(text)) {
            *known = Some(text.into_owned());
        }
    }

    /// The first key that occurs more than once. Callers choose the number of keys, so the time
    /// must not be quadratic.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut seen = HashSet::with_capacity(self.0.len());
        let mut names = self.0.iter().map(|(name, _)| &*name.0);
        names.find(|name| !seen.insert(*name))
    }
}

/// Whether an object below this key is taken apart together with the one around it.
pub(crate) type NestedKeys = fn(&str) -> bool;

const fn none(_: &str) -> bool {
    false
}

/// Reads an object.
struct ObjectSeed(NestedKeys);

/// Reads the value below such a key.
struct NestedValueSeed(NestedKeys);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = JsonObject<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<JsonObject<'de>, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed {
    type Value = JsonObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject<'de>, A::Error> {
        let mut members = Vec::with_capacity(USUAL_MEMBERS);
        while let Some(key) = map.next_key::<JsonKey<'de>>()? {
            let value = match (self.0)(&key.0) {
                true => map.next_value_seed(NestedValueSeed(self.0))?,
                false => JsonValue::Text(map.next_value()?),
            };
            members.push((key, value));
        }
        Ok(JsonObject(members))
    }
}

impl<'de> DeserializeSeed<'de> for NestedValueSeed {
    type Value = JsonValue<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<JsonValue<'de>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestedValueSeed {
    type Value = JsonValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonValue<'de>, A::Error> {
        ObjectSeed(self.0).visit_map(map).map(JsonValue::Object)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonValue<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonValue::Other)
    }

    fn visit_unit<E>(self) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_and_null_is_none() {
        let object =
            JsonObject::of(br#"{"a":1,"b":null,"a":2,"c":{"d":"x"},"e":[{},7],"f":""}"#).unwrap();
        assert_eq!(object.get("a").map(RawValue::get), Some("2"));
        assert_eq!(object.duplicate(), Some("a"));
        assert!(object.get("b").is_none() && object.get("x").is_none());
        assert_eq!(object.object("c").unwrap().text("d").as_deref(), Some("x"));
        assert_eq!(object.objects("e").len(), 1);
        assert_eq!((object.text("f"), object.text("c")), (None, None));
        for json in ["[]", "7", "{", ""] {
            assert!(JsonObject::of(json.as_bytes()).is_none(), "{json}");
        }
    }

    #[test]
    fn an_object_reads_the_same_whether_it_is_taken_apart_at_once_or_later() {
        for usage in [r#"{"a":1}"#, "null", "7", "-7", "1.5", "true", r#""a""#, r#"[1,{"a":1}]"#] {
            let json = format!(r#"{{"usage":{{"a":0}},"usage":{usage},"b":{{"usage":1}}}}"#);
            let read = |inner: NestedKeys| {
                let object = JsonObject::with_inner(json.as_bytes(), inner).unwrap();
                let usage = object.object("usage");
                let figure = usage.as_ref().and_then(|usage| usage.get("a")).map(RawValue::get);
                (object.has("usage"), usage.is_some(), figure, object.get("b").map(RawValue::get))
            };
            assert_eq!(read(|key| key == "usage"), read(none), "{usage}");
        }
    }
}
