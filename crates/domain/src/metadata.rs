//! Metadata: pairs of strings from the merchant or the caller.

use std::collections::BTreeMap;
use std::collections::btree_map::Iter;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::issue::Issue;

/// Up to 100 pairs of strings, stored with a request record or a customer. Lists of records can
/// filter by them.
///
/// Keys and values have 1 to 255 characters. Keys contain only ASCII letters, digits and
/// underscores; values contain no NUL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

/// The issues of a metadata object. The path of an issue is the key of its pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataError(pub Vec<Issue>);

const MAX_PAIRS: usize = 100;
const MAX_CHARS: usize = 255;

impl Metadata {
    /// Parses metadata from the text of a JSON object.
    ///
    /// # Errors
    /// [`MetadataError`] with every bad pair, with too many pairs, or with a text that is not an
    /// object.
    pub fn parse(text: &str) -> Result<Self, MetadataError> {
        match serde_json::from_str(text) {
            Ok(value) => Self::from_json(&value),
            Err(_) => Err(not_an_object()),
        }
    }

    /// Reads metadata from a JSON value, which must be an object.
    ///
    /// # Errors
    /// As [`Metadata::parse`].
    pub fn from_json(value: &Value) -> Result<Self, MetadataError> {
        let Value::Object(pairs) = value else { return Err(not_an_object()) };
        let mut issues = Vec::new();
        if pairs.len() > MAX_PAIRS {
            issues.push(Issue::at([], format!("must have at most {MAX_PAIRS} pairs")));
        }
        let mut metadata = BTreeMap::new();
        for (key, value) in pairs {
            if let Err(message) = check_key(key) {
                issues.push(Issue::at([key], message));
            }
            match value.as_str() {
                Some(text) if has_good_length(text) && !text.contains('\0') => {
                    metadata.insert(key.clone(), text.to_owned());
                }
                _ => issues.push(Issue::at(
                    [key],
                    "value must be a string of 1 to 255 characters, none of them NUL",
                )),
            }
        }
        if issues.is_empty() { Ok(Self(metadata)) } else { Err(MetadataError(issues)) }
    }

    /// Returns whether `key` is a valid metadata key.
    pub fn is_key(key: &str) -> bool {
        check_key(key).is_ok()
    }

    /// The pairs in the order of their keys.
    pub fn iter(&self) -> Iter<'_, String, String> {
        self.0.iter()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        self.0.get(key)
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn not_an_object() -> MetadataError {
    MetadataError(vec![Issue::at([], "must be a JSON object of strings")])
}

fn has_good_length(text: &str) -> bool {
    // A text has at least as many bytes as characters, so most texts need no count.
    !text.is_empty() && (text.len() <= MAX_CHARS || text.chars().nth(MAX_CHARS).is_none())
}

fn check_key(key: &str) -> Result<(), &'static str> {
    if !has_good_length(key) {
        return Err("key must have 1 to 255 characters");
    }
    if !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("key must contain only ASCII letters, digits and underscores");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_pair_is_named() {
        let long = "x".repeat(256);
        let text = format!(
            r#"{{"ok":"1","a-b":"1","empty":"","nul":"a\u0000","n":1,"":"x","long":"{long}"}}"#
        );
        let MetadataError(issues) = Metadata::parse(&text).unwrap_err();
        let mut paths: Vec<_> = issues.iter().map(|issue| issue.path.join(".")).collect();
        paths.sort();
        assert_eq!(paths, ["", "a-b", "empty", "long", "n", "nul"]);
    }

    #[test]
    fn the_bounds_themselves_are_fine() {
        let text = format!(r#"{{"{}":"{}"}}"#, "k".repeat(255), "é".repeat(255));
        assert_eq!(Metadata::parse(&text).unwrap().iter().count(), 1);
        let many = |count: usize| {
            let pairs: Vec<_> = (0..count).map(|n| format!(r#""k{n}":"v""#)).collect();
            Metadata::parse(&format!("{{{}}}", pairs.join(",")))
        };
        assert!(many(100).is_ok());
        assert!(many(101).is_err());
    }

    #[test]
    fn only_an_object_will_do() {
        for text in ["", "[]", "1", "null", "{", "\"x\""] {
            assert_eq!(Metadata::parse(text), Err(not_an_object()), "{text}");
        }
    }
}
