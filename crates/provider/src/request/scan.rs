//! A walk through those parts of a body in which handles, files, images and tools can stand. It
//! keeps nothing but counts and the first finding of each kind; the depth is bounded by the JSON
//! parser (128).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is worth a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A handle to something that the provider stores.
    Handle,
    /// Something of which the body does not tell how many tokens it is: a URL that the provider
    /// would fetch, an earlier answer's audio, or a packed document.
    Unsized,
    /// A tool that the provider itself runs.
    ServerTool,
    /// One of those without a maximum of uses of its own: it runs as often as it likes.
    UnlimitedTool,
    /// One of those at a server of somebody else's (MCP), which no maximum is known to bind.
    RemoteTool,
}

/// What was found below a value; paths are kept innermost first while the walk unwinds.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    first: BTreeMap<Kind, Vec<String>>,
    /// Images that are in the body itself.
    pub(super) images: u64,
    /// Tools, wherever they run.
    pub(super) tools: u64,
    /// The maxima of uses of the tools at the provider, all together.
    pub(super) tool_uses: u64,
}

impl Findings {
    pub(super) fn first(&self, kind: Kind) -> Option<&Vec<String>> {
        self.first.get(&kind)
    }

    pub(super) fn take(&mut self, kind: Kind) -> Option<Vec<String>> {
        self.first.remove(&kind)
    }

    pub(super) fn or(mut self, later: Self) -> Self {
        if self.first.is_empty() {
            self.first = later.first;
        } else {
            later.first.into_iter().for_each(|(kind, path)| self.note(kind, path));
        }
        self.images = self.images.saturating_add(later.images);
        self.tools = self.tools.saturating_add(later.tools);
        self.tool_uses = self.tool_uses.saturating_add(later.tool_uses);
        self
    }

    fn note(&mut self, kind: Kind, path: Vec<String>) {
        self.first.entry(kind).or_insert(path);
    }

    fn below(mut self, step: impl fmt::Display) -> Self {
        self.first.values_mut().for_each(|path| path.push(step.to_string()));
        self
    }

    /// The findings below the top-level field `field`, their paths from the outside in.
    fn within(self, field: &str) -> Self {
        let mut found = self.below(field);
        found.first.values_mut().for_each(|path| path.reverse());
        found
    }
}

/// Strings under these keys name something stored.
const HANDLE_KEYS: [&str; 16] = [
    "file_id",
    "container",
    "container_id",
    "vector_store_id",
    "skill_id",
    "connector_id",
    "pronunciation_dictionary_id",
    // Google's, in either spelling.
    "fileUri",
    "file_uri",
    "cachedContent",
    "cached_content",
    "fileSearchStoreNames",
    "file_search_store_names",
    "datastore",
    "ragCorpus",
    "rag_corpus",
];
/// Arrays under these keys do.
const HANDLE_LIST_KEYS: [&str; 8] = [
    "file_ids",
    "vector_store_ids",
    "fileSearchStoreNames",
    "file_search_store_names",
    "ragCorpora",
    "rag_corpora",
    "previous_request_ids",
    "next_request_ids",
];
/// Strings under these keys are fetched, if they are URLs and not the data itself.
const REMOTE_KEYS: [&str; 6] =
    ["url", "image_url", "video_url", "audio_url", "file_url", "server_url"];
/// Strings under these keys are a document if they are the data itself.
const DOCUMENT_KEYS: [&str; 2] = ["file_url", "file_data"];
/// Google's tools have no type: the key says it. These run at the provider.
const GOOGLE_TOOLS: [&str; 12] = [
    "googleSearch",
    "google_search",
    "googleSearchRetrieval",
    "google_search_retrieval",
    "codeExecution",
    "code_execution",
    "urlContext",
    "url_context",
    "googleMaps",
    "google_maps",
    "fileSearch",
    "file_search",
];
/// Types of tools that the client runs. Dated names, such as `bash_20250124`, begin with one of
/// them. Whatever else there is or will be runs at the provider.
const CLIENT_TOOLS: [&str; 9] = [
    "function",
    "custom",
    "bash",
    "text_editor",
    "computer",
    "computer_use",
    "memory",
    "local_shell",
    "apply_patch",
];

/// What a value turned out to be, for the object around it to judge.
enum Seen<'de> {
    Text(Cow<'de, str>),
    Count(u64),
    List,
    /// An object with an id.
    Named,
    /// Null, or an empty list.
    Nothing,
    Other,
}

/// What a walk goes through, seen from where it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// The list of the tools that are offered.
    Tools,
    /// One of them.
    Tool,
    /// Anything else.
    Part,
}

/// The member `key` of the whole body.
pub(super) struct Member<'a>(pub(super) &'a str, pub(super) Scan);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Findings;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Findings, D::Error> {
        let (seen, mut found) = value.deserialize_any(Walk(self.1))?;
        judge_member(self.0, &seen, &mut found);
        Ok(found.within(self.0))
    }
}

struct Walk(Scan);

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = (Seen<'de>, Findings);

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_any(self)
    }
}

fn nothing_in<'de, E>(seen: Seen<'de>) -> Result<(Seen<'de>, Findings), E> {
    Ok((seen, Findings::default()))
}

impl<'de> Visitor<'de> for Walk {
    type Value = (Seen<'de>, Findings);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        nothing_in(Seen::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        nothing_in(Seen::Other)
    }

    fn visit_u64<E>(self, count: u64) -> Result<Self::Value, E> {
        nothing_in(Seen::Count(count))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        nothing_in(Seen::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        nothing_in(Seen::Nothing)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        nothing_in(Seen::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        // Only the start is ever looked at; escaped texts may be long.
        nothing_in(Seen::Text(Cow::Owned(text.chars().take(64).collect())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let inner = if self.0 == Scan::Tools { Scan::Tool } else { Scan::Part };
        let mut findings = Findings::default();
        let mut position = 0_usize;
        while let Some((_, found)) = items.next_element_seed(Walk(inner))? {
            findings = findings.or(found.below(position));
            position = position.saturating_add(1);
        }
        // An empty list of handles names none.
        Ok((if position == 0 { Seen::Nothing } else { Seen::List }, findings))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut findings = Findings::default();
        let mut object = Object::default();
        while let Some(Key(key)) = fields.next_key::<Key<'de>>()? {
            // Free data of the caller's, which the provider does not interpret.
            if key == "metadata" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let (seen, mut found) = fields.next_value_seed(Walk(Scan::Part))?;
            judge_member(&key, &seen, &mut found);
            object.read(&key, &seen);
            findings = findings.or(found.below(&key));
        }
        object.judge(self.0, &mut findings);
        Ok((if object.has_id { Seen::Named } else { Seen::Other }, findings))
    }
}

/// Adds what a member of an object is in itself.
fn judge_member(key: &str, seen: &Seen<'_>, found: &mut Findings) {
    let here = Vec::new;
    match seen {
        Seen::Text(text) => {
            let reference = key == "type" && text == "item_reference";
            if reference || HANDLE_KEYS.contains(&key) {
                found.note(Kind::Handle, here());
            }
            // Of documents and films the bytes say little.
            let inline = text.starts_with("data:image/");
            if DOCUMENT_KEYS.contains(&key) || (REMOTE_KEYS.contains(&key) && !inline) {
                found.note(Kind::Unsized, here());
            }
            // Bedrock's: what lies in a bucket of the account, and what is packed in the body.
            if key == "uri" && text.get(..5).is_some_and(|s| s.eq_ignore_ascii_case("s3://")) {
                found.note(Kind::Handle, here());
            }
            if key == "bytes" {
                found.note(Kind::Unsized, here());
            }
            let drawn = key == "type" && text == "image_generation_call";
            if drawn || key == "image" || (REMOTE_KEYS.contains(&key) && inline) {
                found.images = found.images.saturating_add(1);
            }
        }
        Seen::Other if key == "systemTool" => found.note(Kind::Unsized, here()),
        Seen::List if HANDLE_LIST_KEYS.contains(&key) => found.note(Kind::Handle, here()),
        // What was spoken is not in the body, only its name.
        Seen::Named if key == "audio" => found.note(Kind::Unsized, here()),
        _ => {}
    }
}

/// What the members of an object say together. Where a key stands twice, the worse one counts.
#[derive(Default)]
struct Object {
    has_id: bool,
    /// `"type": "base64"`: it is the source of an image or document.
    is_base64: bool,
    is_image: bool,
    is_no_image: bool,
    /// Its type is one of a tool that does not run at the client.
    is_server_tool: bool,
    is_mcp: bool,
    has_data: bool,
    /// The key that says that it is a tool of Google's.
    google_tool: Option<String>,
    max_uses: Option<u64>,
}

impl Object {
    fn read(&mut self, key: &str, seen: &Seen<'_>) {
        match (key, seen) {
            ("id", Seen::Text(_)) => self.has_id = true,
            ("type", Seen::Text(name)) => {
                self.is_base64 |= name == "base64";
                self.is_server_tool |= !CLIENT_TOOLS.iter().any(|tool| is_tool(name, tool));
                self.is_mcp |= name.starts_with("mcp");
            }
            ("media_type" | "mimeType" | "mime_type", Seen::Text(name)) => {
                let is_image = name.starts_with("image/");
                self.is_image |= is_image;
                self.is_no_image |= !is_image;
            }
            ("media_type", _) => self.is_no_image = true,
            // Google's data stand beside their type without a word that says so, Bedrock's bytes
            // below the kind of what they are.
            ("data", Seen::Text(_)) => self.has_data = true,
            (key, _) if GOOGLE_TOOLS.contains(&key) => self.google_tool = Some(key.to_owned()),
            ("max_uses", Seen::Count(uses)) => self.max_uses = self.max_uses.max(Some(*uses)),
            _ => {}
        }
    }

    fn judge(&self, place: Scan, findings: &mut Findings) {
        if self.is_base64 || (self.has_data && (self.is_image || self.is_no_image)) {
            // The bytes of a document say little of its tokens; those of an image nothing.
            match self.is_image && !self.is_no_image {
                true => findings.images = findings.images.saturating_add(1),
                false => findings.note(Kind::Unsized, Vec::new()),
            }
        }
        if place != Scan::Tool {
            return;
        }
        findings.tools = findings.tools.saturating_add(1);
        if self.is_server_tool || self.google_tool.is_some() {
            let here = || vec![self.google_tool.clone().unwrap_or_else(|| "type".to_owned())];
            findings.note(Kind::ServerTool, here());
            if self.is_mcp {
                findings.note(Kind::RemoteTool, here());
            }
            match self.max_uses.filter(|_| !self.is_mcp) {
                Some(uses) => findings.tool_uses = findings.tool_uses.saturating_add(uses),
                None => findings.note(Kind::UnlimitedTool, here()),
            }
        }
    }
}

/// Whether `name` is the tool `tool`, or a version of it.
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
#[derive(Clone, Debug, serde::Deserialize)]
pub(crate) struct Key<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);
