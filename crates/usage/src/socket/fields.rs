//! The fields of a message that decide about money.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::issue::Issue;
use crate::object::JsonKey;
use crate::request::{MISSPELT, folded};

/// The names of the fields that are read, each with its other spelling.
pub(super) type FieldNames = &'static [(&'static str, &'static str)];

/// The fields of an object that are read. Each stands once, because two readers may take different ones of a pair.
#[derive(Default)]
pub(super) struct Fields<'a>(Vec<(&'static str, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Reads the fields of a message.
    ///
    /// # Errors
    /// Its issues, if two readers may understand it in two ways.
    pub(super) fn of_message(text: &'a [u8], names: FieldNames) -> Result<Self, Vec<Issue>> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let read = FieldsSeed(names).deserialize(&mut json);
        let read = read.and_then(|read| json.end().map(|()| read)).map_err(|error| {
            let message = match error.is_data() {
                true => "the message must be a JSON object".to_owned(),
                false => format!(
                    "the message is not JSON: line {}, column {}",
                    error.line(),
                    error.column()
                ),
            };
            vec![Issue::at([], message)]
        })?;
        read.checked(&[])
    }

    /// Reads the fields of a value, and none if it is no object.
    ///
    /// # Errors
    /// As [`Fields::of_message`].
    pub(super) fn of_value(value: &'a RawValue, names: FieldNames) -> Result<Self, Vec<Issue>> {
        let mut json = serde_json::Deserializer::from_str(value.get());
        match FieldsSeed(names).deserialize(&mut json) {
            Ok(read) => read.checked(&[]),
            // The provider answers what is no object with an error.
            Err(_) => Ok(Self::default()),
        }
    }

    /// Reads the fields of the object under a name, and none if there is no such object. `path` leads to this one.
    ///
    /// # Errors
    /// As [`Fields::of_message`].
    pub(super) fn within(
        &self,
        path: &[&str],
        name: &'static str,
        names: FieldNames,
    ) -> Result<Self, Vec<Issue>> {
        let Some(value) = self.get(name) else { return Ok(Self::default()) };
        let mut json = serde_json::Deserializer::from_str(value.get());
        // The provider answers what is no object with an error.
        let Ok(read) = FieldsSeed(names).deserialize(&mut json) else {
            return Ok(Self::default());
        };
        read.checked(&[path, &[name]].concat())
    }

    /// The value of a field. Null counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.stated(name).filter(|value| value.get() != "null")
    }

    /// The value of a field, which may be null.
    pub(super) fn stated(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The text of a field, if it is one.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        let JsonKey(text) = serde_json::from_str(self.get(name)?.get()).ok()?;
        Some(text)
    }

    /// The text of a field that has no other kind of value.
    ///
    /// # Errors
    /// The issue of a value that is no text.
    pub(super) fn only_text(&self, name: &'static str) -> Result<Option<Cow<'a, str>>, Vec<Issue>> {
        match (self.get(name), self.text(name)) {
            (Some(_), None) => Err(vec![Issue::at([name], "must be a text")]),
            (_, text) => Ok(text),
        }
    }
}

/// The content of an object.
struct FoundFields<'a> {
    fields: Fields<'a>,
    /// The keys that another reader may understand in another way, with the reason.
    wrong: Vec<(String, &'static str)>,
}

impl<'a> FoundFields<'a> {
    /// The fields, if they can be understood in one way only.
    fn checked(self, path: &[&str]) -> Result<Fields<'a>, Vec<Issue>> {
        if self.wrong.is_empty() {
            return Ok(self.fields);
        }
        let issues = self.wrong.into_iter().map(|(key, message)| {
            let steps = path.iter().map(|step| (*step).to_owned());
            Issue { path: steps.chain([key]).collect(), message: message.to_owned() }
        });
        Err(issues.collect())
    }

    fn add(&mut self, key: &str, value: &'a RawValue, names: FieldNames) {
        let known = names.iter().find(|(name, other)| *name == key || *other == key);
        if let Some((name, _)) = known {
            match self.fields.stated(name) {
                Some(_) => self.wrong.push((key.to_owned(), "must not occur more than once")),
                None => self.fields.0.push((name, value)),
            }
            return;
        }
        let is_taken_for = |seen: String| {
            names.iter().any(|(name, other)| {
                name.eq_ignore_ascii_case(&seen) || other.eq_ignore_ascii_case(&seen)
            })
        };
        if folded(key).is_some_and(is_taken_for) {
            self.wrong.push((key.to_owned(), MISSPELT));
        }
    }
}

struct FieldsSeed(FieldNames);

impl<'de> DeserializeSeed<'de> for FieldsSeed {
    type Value = FoundFields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed {
    type Value = FoundFields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = FoundFields { fields: Fields::default(), wrong: Vec::new() };
        while let Some(JsonKey(key)) = map.next_key::<JsonKey<'de>>()? {
            // Most fields are not read, and some are long.
            match key.len() <= MOST_KEY_BYTES {
                true => found.add(&key, map.next_value()?, self.0),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// No form of a field that is read is longer: a letter that folds into one of ASCII has at most three bytes.
const MOST_KEY_BYTES: usize = 96;

/// The length of a text, as it is written.
pub(super) fn text_length(value: &RawValue) -> u64 {
    let length = value.get().len().saturating_sub("\"\"".len());
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The items of a list; none of another value.
pub(super) fn items(list: Option<&RawValue>) -> Vec<&RawValue> {
    list.and_then(|list| Vec::deserialize(list).ok()).unwrap_or_default()
}
