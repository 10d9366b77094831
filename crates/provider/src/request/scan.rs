//! A walk through those parts of a body in which handles and remote files can stand. It keeps
//! nothing but the first finding of each kind; the depth is bounded by the JSON parser (128).

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What was found below a value; paths are kept innermost first while the walk unwinds.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// A handle to something that the provider stores.
    pub(super) handle: Option<Vec<String>>,
    /// A URL that the provider would fetch: how long it is cannot be known.
    pub(super) remote: Option<Vec<String>>,
    /// A tool that the provider itself runs, as often as it likes.
    pub(super) server_tool: Option<Vec<String>>,
}

impl Findings {
    fn below(self, step: &str) -> Self {
        let add = |path: Option<Vec<String>>| {
            path.map(|mut path| {
                path.push(step.to_owned());
                path
            })
        };
        Self {
            handle: add(self.handle),
            remote: add(self.remote),
            server_tool: add(self.server_tool),
        }
    }

    pub(super) fn or(self, later: Self) -> Self {
        Self {
            handle: self.handle.or(later.handle),
            remote: self.remote.or(later.remote),
            server_tool: self.server_tool.or(later.server_tool),
        }
    }

    fn is_empty(&self) -> bool {
        self.handle.is_none() && self.remote.is_none() && self.server_tool.is_none()
    }

    /// The findings below the top-level field `field`, their paths from the outside in.
    pub(super) fn within(self, field: &str) -> Self {
        let turn = |path: Option<Vec<String>>| {
            path.map(|mut path| {
                path.reverse();
                path
            })
        };
        let found = self.below(field);
        Self {
            handle: turn(found.handle),
            remote: turn(found.remote),
            server_tool: turn(found.server_tool),
        }
    }
}

/// Strings under these keys name something stored.
const HANDLE_KEYS: [&str; 3] = ["file_id", "container", "vector_store_id"];
/// Arrays under these keys do.
const HANDLE_LIST_KEYS: [&str; 2] = ["file_ids", "vector_store_ids"];
/// Strings under these keys are fetched, if they are URLs and not the data itself.
const REMOTE_KEYS: [&str; 4] = ["url", "image_url", "file_url", "server_url"];
/// Types of tools that run at the provider. Dated names, such as `web_search_20250305`, begin
/// with one of them.
const SERVER_TOOLS: [&str; 7] = [
    "web_search",
    "web_fetch",
    "file_search",
    "code_interpreter",
    "code_execution",
    "image_generation",
    "mcp",
];

/// What a value turned out to be, for the object around it to judge.
enum Seen<'de> {
    Text(Cow<'de, str>),
    Null,
    Other,
}

/// Walks one value.
pub(super) struct Scan;

impl<'de> DeserializeSeed<'de> for Scan {
    type Value = Findings;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Findings, D::Error> {
        value.deserialize_any(Walk).map(|(_, findings)| findings)
    }
}

struct WalkSeed;

impl<'de> DeserializeSeed<'de> for WalkSeed {
    type Value = (Seen<'de>, Findings);

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_any(Walk)
    }
}

struct Walk;

fn nothing<'de, E>(seen: Seen<'de>) -> Result<(Seen<'de>, Findings), E> {
    Ok((seen, Findings::default()))
}

impl<'de> Visitor<'de> for Walk {
    type Value = (Seen<'de>, Findings);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        nothing(Seen::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        nothing(Seen::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        nothing(Seen::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        nothing(Seen::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        nothing(Seen::Null)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        nothing(Seen::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        // Only the start is ever looked at; escaped texts may be long.
        nothing(Seen::Text(Cow::Owned(text.chars().take(64).collect())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut findings = Findings::default();
        let mut position = 0_usize;
        while let Some((_, found)) = items.next_element_seed(WalkSeed)? {
            if !found.is_empty() {
                findings = findings.or(found.below(&position.to_string()));
            }
            position = position.saturating_add(1);
        }
        // An empty list of handles names none.
        nothing_or(findings, if position == 0 { Seen::Null } else { Seen::Other })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut findings = Findings::default();
        let mut bounded = false;
        while let Some(key) = fields.next_key::<Key<'de>>()? {
            let key = key.0;
            // Free data of the caller's, which the provider does not interpret.
            if key == "metadata" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let (seen, mut found) = fields.next_value_seed(WalkSeed)?;
            bounded |= key == "max_uses" && matches!(seen, Seen::Other);
            judge(&key, &seen, &mut found);
            if !found.is_empty() {
                findings = findings.or(found.below(&key));
            }
        }
        if bounded {
            findings.server_tool = None;
        }
        nothing_or(findings, Seen::Other)
    }
}

fn nothing_or<'de, E>(findings: Findings, seen: Seen<'de>) -> Result<(Seen<'de>, Findings), E> {
    Ok((seen, findings))
}

/// Adds what a member of an object is in itself.
fn judge(key: &str, seen: &Seen<'_>, found: &mut Findings) {
    let here = || Some(Vec::new());
    match seen {
        Seen::Text(text) => {
            let reference = key == "type" && text == "item_reference";
            if reference || HANDLE_KEYS.contains(&key) {
                found.handle = here();
            }
            if REMOTE_KEYS.contains(&key) && !text.starts_with("data:") {
                found.remote = here();
            }
            if key == "type" && SERVER_TOOLS.iter().any(|tool| is_tool(text, tool)) {
                found.server_tool = here();
            }
        }
        Seen::Other if HANDLE_LIST_KEYS.contains(&key) => found.handle = here(),
        Seen::Other | Seen::Null => {}
    }
}

/// Whether `name` is the tool `tool`, or a version of it. Items such as `web_search_call`, which
/// stand in a conversation, are not.
fn is_tool(name: &str, tool: &str) -> bool {
    name.strip_prefix(tool).is_some_and(|version| {
        version.is_empty()
            || version.starts_with("_preview")
            || version
                .strip_prefix('_')
                .is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// A key, borrowed where it has no escapes.
pub(super) struct Key<'de>(pub(super) Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }
            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}
