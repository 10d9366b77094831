use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tollgate_domain::Issue;

use super::CallBody;
use super::edit::{UsageOption, usage_option};
use super::scan::{Findings, Key, Scan};
use crate::dialect::{Api, Dialect};
use crate::number::count;
use crate::table::Endpoint;

/// Top-level fields that are looked at; of those that decide about money there may be only one,
/// because two parsers may take two different ones of a pair.
#[derive(Default)]
struct TopLevel<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    max_output_tokens: Option<&'a RawValue>,
    background: Option<&'a RawValue>,
    previous_response_id: Option<&'a RawValue>,
    conversation: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    container: Option<&'a RawValue>,
    web_search_options: Option<&'a RawValue>,
    duplicates: Vec<&'static str>,
    /// The first handle to stored state in each scanned field.
    handles: Vec<Vec<String>>,
    findings: Findings,
}

/// Parts in which handles, remote files and tools stand.
const SCANNED: [&str; 6] =
    ["messages", "input", "system", "tools", "attachments", "tool_resources"];

impl<'de> Deserialize<'de> for TopLevel<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopLevelVisitor;
        impl<'de> Visitor<'de> for TopLevelVisitor {
            type Value = TopLevel<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut top = TopLevel::default();
                // An escaped key is the same key: "m\u006fdel" is decoded before it is compared.
                while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
                    match top.slot(&key) {
                        Some((name, slot)) => {
                            let value = map.next_value::<&'de RawValue>()?;
                            if slot.replace(value).is_some() {
                                top.duplicates.push(name);
                            }
                        }
                        None if SCANNED.contains(&&*key) => {
                            let mut found = map.next_value_seed(Scan)?.within(&key);
                            top.handles.extend(found.handle.take());
                            top.findings = std::mem::take(&mut top.findings).or(found);
                        }
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(top)
            }
        }
        deserializer.deserialize_map(TopLevelVisitor)
    }
}

macro_rules! slots {
    ($($name:ident),*) => {
        impl<'a> TopLevel<'a> {
            /// Where the value of a top-level key goes.
            fn slot(&mut self, key: &str) -> Option<(&'static str, &mut Option<&'a RawValue>)> {
                match key {
                    $(stringify!($name) => Some((stringify!($name), &mut self.$name)),)*
                    _ => None,
                }
            }
        }
    };
}

slots!(
    model,
    stream,
    stream_options,
    n,
    best_of,
    max_tokens,
    max_completion_tokens,
    max_output_tokens,
    background,
    previous_response_id,
    conversation,
    prompt,
    container,
    web_search_options
);

pub(super) fn inspect(
    body: &[u8],
    endpoint: &Endpoint,
    managed: bool,
) -> Result<CallBody, Vec<Issue>> {
    let mut top: TopLevel<'_> = serde_json::from_slice(body).map_err(|error| {
        let message = if error.is_data() {
            "the body must be a JSON object".to_owned()
        } else {
            format!("the body is not JSON: line {}, column {}", error.line(), error.column())
        };
        vec![Issue::at([], message)]
    })?;
    let mut issues: Vec<_> = top
        .duplicates
        .iter()
        .map(|key| Issue::at([key], "must not occur more than once"))
        .collect();
    let model = read_model(&top, &mut issues);
    let stream = read_stream(&top, &mut issues);
    let choices =
        read_count("n", top.n, &mut issues).max(read_count("best_of", top.best_of, &mut issues));
    let max_output_tokens = [
        read_count("max_tokens", top.max_tokens, &mut issues),
        read_count("max_completion_tokens", top.max_completion_tokens, &mut issues),
        read_count("max_output_tokens", top.max_output_tokens, &mut issues),
    ];
    if managed && !endpoint.provider.allow_stored_state {
        refuse_stored_state(&mut top, &mut issues);
    }
    let option = stream.then(|| usage_option(body, top.stream_options));
    if !issues.is_empty() {
        return Err(issues);
    }
    let findings = top.findings;
    let web_search = present(top.web_search_options).then(|| vec!["web_search_options".to_owned()]);
    Ok(CallBody {
        model,
        stream,
        max_output_tokens: max_output_tokens.into_iter().flatten().max(),
        choices: choices.unwrap_or(1).max(1),
        asks_usage: option == Some(UsageOption::Asked),
        input_bytes: u64::try_from(body.len()).unwrap_or(u64::MAX),
        unbounded: findings.remote.or(findings.server_tool).or(web_search),
        hour_cache: memchr::memmem::find(body, br#""1h""#).is_some(),
        edit: match option {
            Some(UsageOption::Insert(edit)) if may_include_usage(endpoint) => Some(edit),
            _ => None,
        },
    })
}

fn may_include_usage(endpoint: &Endpoint) -> bool {
    endpoint.provider.stream_options
        && endpoint.provider.dialect == Dialect::OpenAi
        && endpoint.operation.is_some_and(|operation| operation.api == Api::Chat)
}

/// Whether a field is there at all: null means the same as absent.
fn present(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get() != "null")
}

fn read_model(top: &TopLevel<'_>, issues: &mut Vec<Issue>) -> Option<String> {
    let model = top.model.and_then(|value| serde_json::from_str::<String>(value.get()).ok());
    let model = model.filter(|model| !model.trim().is_empty());
    if model.is_none() {
        let message = match top.model {
            None => "required: the model as a string",
            Some(_) => "must be a string that is not empty",
        };
        issues.push(Issue::at(["model"], message));
    }
    model
}

fn read_stream(top: &TopLevel<'_>, issues: &mut Vec<Issue>) -> bool {
    match top.stream.map(RawValue::get) {
        Some("true") => true,
        None | Some("false" | "null") => false,
        Some(_) => {
            issues.push(Issue::at(["stream"], "must be true or false"));
            false
        }
    }
}

fn read_count(
    field: &'static str,
    value: Option<&RawValue>,
    issues: &mut Vec<Issue>,
) -> Option<u64> {
    let value = value.filter(|value| present(Some(value)))?;
    let number = count(value.get());
    if number.is_none() {
        issues.push(Issue::at([field], "must be a whole number that is not negative"));
    }
    number
}

/// A managed key opens the operator's whole account, in which every caller's files and answers
/// lie side by side. Until it is known whose they are, nobody may name them.
fn refuse_stored_state(top: &mut TopLevel<'_>, issues: &mut Vec<Issue>) {
    const MESSAGE: &str = "refers to what the provider stores, which the managed key may not; use \
                           your own provider key";
    if top.background.is_some_and(|value| !matches!(value.get(), "false" | "null")) {
        issues.push(Issue::at(
            ["background"],
            "background answers are not possible with the managed key; use your own provider key",
        ));
    }
    let handles = [
        ("previous_response_id", present(top.previous_response_id)),
        ("conversation", present(top.conversation)),
        // A text in the older completions; an object names a stored one.
        ("prompt", top.prompt.is_some_and(|value| value.get().starts_with('{'))),
        ("container", present(top.container)),
    ];
    for (field, _) in handles.into_iter().filter(|(_, present)| *present) {
        issues.push(Issue::at([field], MESSAGE));
    }
    for path in std::mem::take(&mut top.handles) {
        issues.push(Issue { path, message: MESSAGE.to_owned() });
    }
}
