//! The fields of a client's message that say what it is.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::message::Lane;
use crate::issue::Issue;
use crate::object::JsonKey;
use crate::request::{MISSPELT, folded};

/// The fields of a client's message that say what it is.
#[derive(Default)]
pub(super) struct Envelope<'a> {
    pub(super) kind: Option<Cow<'a, str>>,
    pub(super) lane: Lane,
    has_lane: bool,
    issues: Vec<Issue>,
}

impl<'a> Envelope<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// Its issues, if two readers may understand it in two ways.
    pub(super) fn read(text: &'a [u8]) -> Result<Self, Vec<Issue>> {
        let read: Self = serde_json::from_slice(text).map_err(|error| {
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
        match read.issues.is_empty() {
            true => Ok(read),
            false => Err(read.issues),
        }
    }

    /// Takes a field. Each may stand once: two readers may take different ones of a pair.
    fn add(&mut self, key: &str, value: &'a RawValue) {
        let name = match key {
            "type" => "type",
            "stream_id" => "stream_id",
            _ => {
                let seen = folded(key);
                if seen.is_some_and(|seen| matches!(seen.as_str(), "type" | "stream_id")) {
                    self.issues.push(Issue::at([key], MISSPELT));
                }
                return;
            }
        };
        let is_repeated = match name {
            "type" => self.kind.is_some(),
            _ => std::mem::replace(&mut self.has_lane, true),
        };
        if is_repeated {
            self.issues.push(Issue::at([name], "must not occur more than once"));
            return;
        }
        match (name, serde_json::from_str::<JsonKey<'a>>(value.get())) {
            ("type", Ok(JsonKey(kind))) => self.kind = Some(kind),
            (_, Ok(JsonKey(lane))) => self.lane = Some(lane.into_owned()),
            ("stream_id", Err(_)) if value.get() == "null" => {}
            (_, Err(_)) => self.issues.push(Issue::at([name], "must be a text")),
        }
    }
}

impl<'de> Deserialize<'de> for Envelope<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EnvelopeVisitor;
        impl<'de> Visitor<'de> for EnvelopeVisitor {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut envelope = Envelope::default();
                while let Some(JsonKey(key)) = map.next_key::<JsonKey<'de>>()? {
                    // Most fields are not read, and some are long.
                    match key.len() <= MOST_KEY_BYTES {
                        true => envelope.add(&key, map.next_value()?),
                        false => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(envelope)
            }
        }
        deserializer.deserialize_map(EnvelopeVisitor)
    }
}

/// No form of a field that is read is longer: a letter that folds into one of ASCII has at most three bytes.
const MOST_KEY_BYTES: usize = 32;
