//! The values of columns that are stored as JSON, words or instants.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use tollgate_domain::Timestamp;

use crate::error::StoreError;

/// Parses a domain type from its JSON.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(
    what: &'static str,
    text: &'a str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { what, value: text.to_owned() })
}

/// Returns the JSON of a domain type. It does not fail for the types of this service: their maps
/// have text keys only.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    // The JSON of most calls fits, so the buffer does not grow.
    let mut json = Vec::with_capacity(1_024);
    let written = serde_json::to_writer(&mut json, value);
    written.ok().and_then(|()| String::from_utf8(json).ok()).unwrap_or_default()
}

/// Returns the word of a domain enum, as in the API, without quotes.
pub(crate) fn word(value: &impl Serialize) -> String {
    struct EnumWord<'a, T>(&'a T);
    impl<T: Serialize> fmt::Display for EnumWord<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }
    let mut word = String::with_capacity(16);
    let written = write!(word, "{}", EnumWord(value));
    debug_assert!(written.is_ok(), "it is no word");
    word
}

pub(crate) fn from_word<T: for<'a> Deserialize<'a>>(
    what: &'static str,
    text: &str,
) -> Result<T, StoreError> {
    from_json(what, &format!("\"{text}\""))
}

pub(crate) const fn time(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros)
}
