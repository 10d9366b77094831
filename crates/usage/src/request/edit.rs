//! Changes to a body: a token is inserted or replaced, and every other byte stays the same.

use std::borrow::Cow;
use std::ops::Range;

use crate::issue::Issue;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;
use serde_json::value::RawValue;

use super::scan::folded;
use crate::object::JsonObject;

/// One replacement in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyEdit {
    range: Range<usize>,
    text: Cow<'static, str>,
}

/// The usage option of a streamed body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UsageOption {
    /// Usage is requested.
    Asked,
    /// Usage is not requested; the edit requests it.
    Insert(BodyEdit),
}

impl BodyEdit {
    /// Writes a JSON string in place of `range`.
    pub(super) fn string(range: Range<usize>, text: &str) -> Self {
        Self { range, text: Value::from(text).to_string().into() }
    }

    /// Writes a text unchanged in place of `range`.
    pub(super) fn plain(range: Range<usize>, text: &str) -> Self {
        Self { range, text: text.to_owned().into() }
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

/// The usage option of `body`, with the edit that requests usage. `options` is the value of
/// `stream_options`, a part of `body`.
///
/// # Errors
/// The value is neither null nor an object in which `include_usage` occurs at most once and is a
/// boolean or null. Servers read such values in different ways, and some then report no usage.
pub(super) fn usage_option(body: &[u8], options: Option<&RawValue>) -> Result<UsageOption, Issue> {
    const OPTIONS: &str = "stream_options";
    const INCLUDE_USAGE: &str = "include_usage";
    let invalid = |message: &str| Issue::at([OPTIONS, INCLUDE_USAGE], message);
    let no_object = || Issue::at([OPTIONS], "must be an object or null");
    let edit = match options {
        None => after_brace(
            body,
            0,
            r#""stream_options":{"include_usage":true}"#,
            r#""stream_options":{"include_usage":true},"#,
        ),
        Some(null) if null.get() == "null" => replace(body, options, r#"{"include_usage":true}"#),
        Some(value) => {
            let members = JsonObject::in_value(value).ok_or_else(no_object)?;
            let mut stated = None;
            for (key, value) in members.members() {
                let is_meant = key == INCLUDE_USAGE;
                if folded(key).as_deref() == Some(INCLUDE_USAGE) {
                    return Err(Issue::at([OPTIONS, key], "must be written as include_usage"));
                }
                if is_meant && stated.replace(value).is_some() {
                    return Err(invalid("must not occur more than once"));
                }
            }
            match stated.map(|value| value.map(RawValue::get)) {
                None => after_brace(
                    body,
                    range_of(body, options).ok_or_else(no_object)?.start,
                    r#""include_usage":true"#,
                    r#""include_usage":true,"#,
                ),
                Some(Some("true")) => return Ok(UsageOption::Asked),
                Some(Some("false" | "null")) => replace(body, stated.flatten(), "true"),
                Some(_) => return Err(invalid("must be true, false or null")),
            }
        }
    };
    edit.map(UsageOption::Insert).ok_or_else(no_object)
}

/// An insertion after the brace that opens at or after `from`. The text ends in a comma if the
/// object has members.
fn after_brace(
    body: &[u8],
    from: usize,
    alone: &'static str,
    before_others: &'static str,
) -> Option<BodyEdit> {
    let rest = body.get(from..)?;
    let at = from.checked_add(rest.iter().position(|&b| b == b'{')?)?.checked_add(1)?;
    let next = body.get(at..)?.iter().find(|b| !b.is_ascii_whitespace())?;
    let text = if *next == b'}' { alone } else { before_others };
    Some(BodyEdit { range: at..at, text: text.into() })
}

fn replace(body: &[u8], value: Option<&RawValue>, text: &'static str) -> Option<BodyEdit> {
    Some(BodyEdit { range: range_of(body, value)?, text: text.into() })
}

/// The position of a value that was borrowed from `body`.
pub(super) fn range_of(body: &[u8], value: Option<&RawValue>) -> Option<Range<usize>> {
    range_within(body, value?.get().as_bytes())
}

/// The position of a part of `body`.
pub(super) fn range_within(body: &[u8], value: &[u8]) -> Option<Range<usize>> {
    let start = value.as_ptr().addr().checked_sub(body.as_ptr().addr())?;
    let end = start.checked_add(value.len())?;
    (end <= body.len()).then_some(start..end)
}
