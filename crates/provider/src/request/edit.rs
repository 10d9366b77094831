use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// One replacement in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    range: Range<usize>,
    text: Cow<'static, str>,
}

/// What a body says about usage in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UsageOption {
    /// It asks for it.
    Asked,
    /// It does not; the edit would.
    Insert(Edit),
    /// The option is no object, or `include_usage` no boolean: the provider will refuse it, and
    /// that is between the two of them.
    Malformed,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    /// `None` when absent; a literal null is `Some`, because it stands somewhere.
    #[serde(borrow, default, deserialize_with = "as_it_stands")]
    include_usage: Option<&'a RawValue>,
}

fn as_it_stands<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

impl Edit {
    /// Writes a JSON string in place of what stands at `range`.
    pub(super) fn string(range: Range<usize>, text: &str) -> Self {
        Self { range, text: Value::from(text).to_string().into() }
    }

    /// The body with all `edits`, which must not overlap; `None` when there are none.
    pub(super) fn apply_all(mut edits: Vec<&Self>, body: &[u8]) -> Option<Bytes> {
        if edits.is_empty() {
            return None;
        }
        edits.sort_by_key(|edit| edit.range.start);
        let added: usize = edits.iter().map(|edit| edit.text.len()).sum();
        let mut edited = BytesMut::with_capacity(body.len().saturating_add(added));
        let mut from = 0;
        for edit in edits {
            edited.put_slice(body.get(from..edit.range.start)?);
            edited.put_slice(edit.text.as_bytes());
            from = edit.range.end;
        }
        edited.put_slice(body.get(from..)?);
        Some(edited.freeze())
    }
}

/// Finds out what `body` asks, and the edit that would ask. `options` is the value of
/// `stream_options`, a part of `body`.
pub(super) fn usage_option(body: &[u8], options: Option<&RawValue>) -> UsageOption {
    let edit = match options.map(RawValue::get) {
        None => after_brace(
            body,
            0,
            r#""stream_options":{"include_usage":true}"#,
            r#""stream_options":{"include_usage":true},"#,
        ),
        Some("null") => replace(body, options, r#"{"include_usage":true}"#),
        Some(text) => match serde_json::from_str::<StreamOptions<'_>>(text) {
            Err(_) => None,
            Ok(StreamOptions { include_usage: None }) => {
                range_of(body, options).and_then(|range| {
                    after_brace(
                        body,
                        range.start,
                        r#""include_usage":true"#,
                        r#""include_usage":true,"#,
                    )
                })
            }
            Ok(StreamOptions { include_usage: Some(value) }) => match value.get() {
                "true" => return UsageOption::Asked,
                "false" | "null" => replace(body, Some(value), "true"),
                _ => None,
            },
        },
    };
    edit.map_or(UsageOption::Malformed, UsageOption::Insert)
}

/// An insertion behind the brace that opens at or after `from`; the text with a comma at its end
/// where the object has members.
fn after_brace(
    body: &[u8],
    from: usize,
    alone: &'static str,
    before_others: &'static str,
) -> Option<Edit> {
    let rest = body.get(from..)?;
    let at = from.checked_add(rest.iter().position(|&b| b == b'{')?)?.checked_add(1)?;
    let next = body.get(at..)?.iter().find(|b| !b.is_ascii_whitespace())?;
    let text = if *next == b'}' { alone } else { before_others };
    Some(Edit { range: at..at, text: text.into() })
}

fn replace(body: &[u8], value: Option<&RawValue>, text: &'static str) -> Option<Edit> {
    Some(Edit { range: range_of(body, value)?, text: text.into() })
}

/// Where a value that was borrowed from `body` stands in it.
pub(super) fn range_of(body: &[u8], value: Option<&RawValue>) -> Option<Range<usize>> {
    let value = value?.get();
    let start = value.as_ptr().addr().checked_sub(body.as_ptr().addr())?;
    let end = start.checked_add(value.len())?;
    (end <= body.len()).then_some(start..end)
}
