//! JSON in which each field is unique in its object. Of two fields with one name, two parsers may take
//! different ones, and one of them may be an amount.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use tollgate_domain::Issue;

/// Reads a whole JSON text, with an issue for each field that is repeated in its object.
pub(super) fn parse(text: &[u8]) -> Result<(Value, Vec<Issue>), serde_json::Error> {
    let mut repeated = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value =
        JsonNode { path: &mut Vec::new(), repeated: &mut repeated }.deserialize(&mut reader)?;
    reader.end()?;
    Ok((value, repeated))
}

/// A value at a path.
struct JsonNode<'a> {
    path: &'a mut Vec<String>,
    repeated: &'a mut Vec<Issue>,
}

impl JsonNode<'_> {
    fn child(&mut self, step: String) -> JsonNode<'_> {
        self.path.push(step);
        JsonNode { path: self.path, repeated: self.repeated }
    }
}

impl<'de> DeserializeSeed<'de> for JsonNode<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonNode<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self.child(values.len().to_string()))? {
            self.path.pop();
            values.push(value);
        }
        self.path.pop();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = fields.next_value_seed(self.child(name.clone()))?;
            if map.contains_key(&name) {
                let message = "must stand only once".to_owned();
                self.repeated.push(Issue { path: self.path.clone(), message });
            }
            self.path.pop();
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_twice_is_named_where_it_stands() {
        let text = br#"{"a":1,"b":[{"c":1,"c":2},{"d":1.5}],"a":"x","e":{"f":null,"f":true}}"#;
        let (value, repeated) = parse(text).unwrap();
        let paths: Vec<_> = repeated.iter().map(|issue| issue.path.join(".")).collect();
        assert_eq!(paths, ["b.0.c", "a", "e.f"]);
        assert_eq!(value["b"][1]["d"], 1.5);
    }

    #[test]
    fn what_does_not_repeat_reads_as_it_always_did() {
        for text in [
            "{}",
            "[]",
            "null",
            "-1",
            "18446744073709551615",
            "1e3",
            r#""\u00e9""#,
            r#"[[],{"a":[1,2]}]"#,
        ] {
            let (value, repeated) = parse(text.as_bytes()).unwrap();
            assert_eq!(value, serde_json::from_str::<Value>(text).unwrap(), "{text}");
            assert!(repeated.is_empty());
        }
        for text in ["", "{", "{} x", "[1,]", "\u{1}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err(), "depth is bounded");
    }
}
