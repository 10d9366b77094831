//! Fast searches in JSON, and small types for reading the providers' figures.

use aho_corasick::packed;
use memchr::{memchr2, memmem};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::number::count;

/// A figure that may be reported several times: the last value that is not null counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReportedCount {
    /// Never reported, or only as null.
    #[default]
    Absent,
    /// Reported. Zero is a figure too.
    Count(u64),
    /// Reported, but not as a count.
    Unreadable,
}

impl ReportedCount {
    /// Takes a newer report.
    pub(super) fn update(&mut self, newer: Option<&RawValue>) {
        if let Some(newer) = newer {
            *self = count(newer.get()).map_or(Self::Unreadable, Self::Count);
        }
    }

    /// Adds a report of a part. An unreadable one makes the sum unreadable.
    pub(super) fn add(&mut self, part: Option<&RawValue>) {
        let mut figure = Self::Absent;
        figure.update(part);
        *self = match (*self, figure) {
            (Self::Unreadable, _) | (_, Self::Unreadable) => Self::Unreadable,
            (sum, Self::Absent) => sum,
            (sum, Self::Count(count)) => Self::Count(sum.or_zero().saturating_add(count)),
        };
    }

    pub(super) fn count(self) -> Option<u64> {
        match self {
            Self::Count(count) => Some(count),
            Self::Absent | Self::Unreadable => None,
        }
    }

    pub(super) fn or_zero(self) -> u64 {
        self.count().unwrap_or(0)
    }
}

/// Subtracts a detail from the rest of its total. A larger detail is cut, so the sum of the parts
/// is never more than the total that the provider bills.
pub(super) fn split_detail(rest: &mut u64, detail: ReportedCount) -> u64 {
    let part = detail.or_zero().min(*rest);
    *rest = rest.saturating_sub(part);
    part
}

/// The whole seconds since 1970 of a time in RFC 3339.
pub(super) fn unix_seconds(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp)
}

/// The findings in a piece of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyMatches {
    /// The number of bytes of text in it.
    pub(super) text_bytes: u64,
    /// Whether one of the telling keys has a value.
    pub(super) tells: bool,
}

/// Keys that are searched in JSON without parsing it. Every event of a stream is searched, so all
/// keys are searched at once.
pub(super) struct KeySearcher {
    /// The keys with their quotes, first the keys of texts.
    quoted: Vec<memmem::Finder<'static>>,
    texts: usize,
    /// The search for all keys at once, if the processor supports it.
    together: Option<packed::Searcher>,
}

impl KeySearcher {
    /// The keys of text, and the keys whose values are reported as telling.
    pub(super) fn new(texts: &[&str], telling: &[&str]) -> Self {
        let quoted = texts.iter().chain(telling).map(|key| format!("\"{key}\""));
        let quoted: Vec<_> = quoted.map(|key| memmem::Finder::new(&key).into_owned()).collect();
        let together = packed::Searcher::new(quoted.iter().map(memmem::Finder::needle));
        Self { quoted, texts: texts.len(), together }
    }

    /// Searches for text, and for a value other than null below a telling key. A key in the text of
    /// an answer does not match: its quotes are escaped there.
    pub(super) fn look(&self, json: &[u8]) -> KeyMatches {
        let mut seen = KeyMatches::default();
        let mut found = |key: usize, end: usize| {
            let value =
                json.get(end..).and_then(|after| after.trim_ascii_start().strip_prefix(b":"));
            let Some(value) = value.map(<[u8]>::trim_ascii_start) else { return };
            let is_text = key < self.texts;
            match value.strip_prefix(b"\"").filter(|_| is_text) {
                Some(text) => seen.text_bytes = seen.text_bytes.saturating_add(string_bytes(text)),
                None => seen.tells |= !is_text && value.first() != Some(&b'n'),
            }
        };
        match &self.together {
            Some(all) => {
                all.find_iter(json).for_each(|key| found(key.pattern().as_usize(), key.end()));
            }
            None => {
                for (key, finder) in self.quoted.iter().enumerate() {
                    let length = finder.needle().len();
                    finder.find_iter(json).for_each(|at| found(key, at.saturating_add(length)));
                }
            }
        }
        seen
    }

    /// The number of bytes of text in a piece of JSON.
    pub(super) fn text_bytes(&self, json: &[u8]) -> u64 {
        self.look(json).text_bytes
    }
}

/// The value of the last `quoted_key` that is an object. The JSON may begin anywhere.
pub(super) fn last_object<'a>(json: &'a [u8], quoted_key: &[u8]) -> Option<&'a str> {
    // Each try may read the whole rest. The limit keeps a piece with many starts from quadratic
    // time.
    const TRIES: usize = 16;
    let objects = memmem::rfind_iter(json, quoted_key).filter_map(|at| {
        let after = json.get(at..)?.strip_prefix(quoted_key)?.trim_ascii_start();
        let value = after.strip_prefix(b":")?.trim_ascii_start();
        value.starts_with(b"{").then_some(value)
    });
    objects.take(TRIES).find_map(|value| {
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<&RawValue>();
        Some(values.next()?.ok()?.get())
    })
}

/// The length of the text up to its closing quote, with escapes undone. `\uXXXX` counts as three
/// bytes, as most text that is written so takes.
fn string_bytes(mut rest: &[u8]) -> u64 {
    let mut bytes = 0_u64;
    loop {
        let end = memchr2(b'"', b'\\', rest);
        let plain = end.unwrap_or(rest.len());
        bytes = bytes.saturating_add(u64::try_from(plain).unwrap_or(u64::MAX));
        let escape = rest.get(plain..).and_then(|rest| rest.strip_prefix(b"\\"));
        let Some(escape) = escape else { return bytes };
        let (length, skip) = if escape.first() == Some(&b'u') { (3, 5) } else { (1, 1) };
        bytes = bytes.saturating_add(length);
        rest = escape.get(skip..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings, which are the same with all keys searched at once and one after the other.
    fn look(json: &str, texts: &[&str], telling: &[&str]) -> KeyMatches {
        let mut keys = KeySearcher::new(texts, telling);
        let seen = keys.look(json.as_bytes());
        keys.together = None;
        assert_eq!(keys.look(json.as_bytes()), seen, "{json}");
        seen
    }

    #[test]
    fn a_key_tells_something_when_it_has_a_value() {
        let tells = |json: &str| look(json, &["content"], &["used", "usage"]).tells;
        for json in [r#"{"usage":{}}"#, r#"{"usage" : 7}"#, "{\"usage\":\n\t{\"a\":1}}"] {
            assert!(tells(json), "{json}");
        }
        let silent = [
            r#"{"usage":null}"#,
            r#"{"usage": null}"#,
            r#"{"content":"the \"usage\":7 of it"}"#,
            r#"{"content":"usage"}"#,
            r#"["usage"]"#,
            r#"{"usage"#,
        ];
        for json in silent {
            assert!(!tells(json), "{json}");
        }
    }

    #[test]
    fn the_last_object_of_a_key_is_found_in_a_piece() {
        let last = |json: &'static str| last_object(json.as_bytes(), b"\"usage\"");
        assert_eq!(last(r#"5,0.1]}],"usage" : {"a":{"b":1}} , "x":[]}"#), Some(r#"{"a":{"b":1}}"#));
        assert_eq!(last(r#""usage":{"a":1},"usage":{"a":2},"usage":null}"#), Some(r#"{"a":2}"#));
        assert_eq!(last(r#""usage":{"a":1},"usage":{"a":"#), Some(r#"{"a":1}"#));
        for json in [r#"x \"usage\":{"a":1}"#, r#"["usage",{"a":1}]"#, r#""usage":"{}""#, ""] {
            assert_eq!(last(json), None, "{json}");
        }
    }

    #[test]
    fn text_is_counted_as_it_reads() {
        let bytes = |json: &str| look(json, &["content", "text"], &["usage"]).text_bytes;
        assert_eq!(bytes(r#"{"content":"Hello"}"#), 5);
        assert_eq!(bytes(r#"{"content": "a\"b\\","text":"\u20ac\n"}"#), 4 + 4);
        assert_eq!(bytes(r#"{"content":null,"text":{"content":"xy"}}"#), 2);
        assert_eq!(bytes(r#"{"content":"cut off"#), 7);
        assert_eq!(bytes(r#"{"content":"cut \"#), 5);
        assert_eq!(bytes(r#"{"content":"cut \u12"#), 7);
    }
}
