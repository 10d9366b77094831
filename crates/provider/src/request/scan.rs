//! A walk through those parts of a body in which handles, files, images and tools can stand. It
//! keeps nothing but counts and the first finding of each kind; the depth is bounded by the JSON
//! parser (128).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::tools::{ToolCharge, charge, charge_of_images, charge_of_key, is_tool};
use crate::object::Key;

/// What is wrong with naming something stored.
pub(super) const STORED_STATE: &str =
    "refers to what the provider stores, which the managed key may not; use your own provider key";

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
    /// One of those, by the charge for its calls.
    Charged(ToolCharge),
    /// A key that servers which fold letters take for another one that decides about money.
    Misspelt,
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
    /// Searches of the web that state no maximum of uses.
    pub(super) searches: u64,
    /// A cache entry is asked to live for an hour.
    pub(super) hour_cache: bool,
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
        self.searches = self.searches.saturating_add(later.searches);
        self.hour_cache |= later.hour_cache;
        self
    }

    /// The charges for the tools at the provider, each with the path of its first tool.
    pub(super) fn charges(&self) -> impl Iterator<Item = (ToolCharge, &Vec<String>)> {
        self.first.iter().filter_map(|(kind, path)| match kind {
            Kind::Charged(charge) => Some((*charge, path)),
            _ => None,
        })
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
const CLIENT_TOOLS: [&str; 10] = [
    "function",
    // Functions under a common name.
    "namespace",
    "custom",
    "bash",
    "text_editor",
    "computer",
    "computer_use",
    "memory",
    "local_shell",
    "apply_patch",
];

/// Keys of tools that the client runs, where their kind is not told by a type.
const DECLARATIONS: [&str; 8] = [
    "name",
    "function",
    "functionDeclarations",
    "function_declarations",
    "toolSpec",
    "cachePoint",
    "computerUse",
    "computer_use",
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
    /// Messages and their parts: their keys are the provider's.
    Message,
    /// Where a tool at the provider runs code.
    Container,
    /// Anything else. Keys may be the caller's own: names in a schema, arguments of a function.
    Part,
}

/// Keys of messages below which keys are the caller's own.
const FREE_KEYS: [&str; 7] =
    ["input", "args", "arguments", "output", "response", "parameters", "structuredContent"];
/// Keys of tools and messages that decide about money or reach into what the provider stores.
const DECIDING_KEYS: [&str; 12] = [
    "type",
    "name",
    "function",
    "max_uses",
    "tools",
    "media_type",
    "data",
    "ttl",
    "image",
    "audio",
    "inlineData",
    "fileData",
];

/// `key` as servers see it that fold letters, if it is another one then: case, and the few letters
/// beyond ASCII that fold into it (the Kelvin sign, the long s, ligatures).
pub(super) fn folded(key: &str) -> Option<String> {
    if key.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
        return None;
    }
    let upper = key.chars().flat_map(char::to_uppercase);
    let folded: String = upper.flat_map(char::to_lowercase).collect();
    Some(folded).filter(|folded| folded != key)
}

/// Whether servers that fold letters take `key` for another one that decides, which it is not.
fn is_misspelt(key: &str) -> bool {
    let Some(seen) = folded(key) else { return false };
    let lists: [&[&str]; 5] =
        [&DECIDING_KEYS, &HANDLE_KEYS, &HANDLE_LIST_KEYS, &REMOTE_KEYS, &DOCUMENT_KEYS];
    let known = || lists.into_iter().flatten();
    known().all(|name| *name != key) && known().any(|name| name.eq_ignore_ascii_case(&seen))
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

impl Scan {
    /// What stands under `key` of an object in such a place.
    fn below(self, key: &str) -> Self {
        match (self, key) {
            // A namespace has tools of its own, and an item of the conversation may offer more.
            (Self::Tool | Self::Message, "tools") => Self::Tools,
            (Self::Tool, "function") => Self::Message,
            (Self::Tool, "container") => Self::Container,
            (Self::Message, key) if !FREE_KEYS.contains(&key) => Self::Message,
            _ => Self::Part,
        }
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
        let inner = match self.0 {
            Scan::Tools => Scan::Tool,
            Scan::Message => Scan::Message,
            Scan::Tool | Scan::Container | Scan::Part => Scan::Part,
        };
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
            let (seen, mut found) = fields.next_value_seed(Walk(self.0.below(&key)))?;
            judge_member(&key, &seen, &mut found);
            // Larger containers cost more, and answers do not say how large they were.
            if self.0 == Scan::Container
                && key == "memory_limit"
                && !matches!(&seen, Seen::Text(size) if size == "1g")
            {
                found.note(Kind::Charged(ToolCharge::Unknown), Vec::new());
            }
            if self.0 != Scan::Part && is_misspelt(&key) {
                found.note(Kind::Misspelt, Vec::new());
            }
            object.read(self.0, &key, &seen);
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
            found.hour_cache |= key == "ttl" && text == "1h";
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
    /// It has a name, or what else a tool has that the client runs.
    is_declared: bool,
    /// The types that no tool has that runs at the client; several where the key stands twice.
    server_types: Vec<String>,
    /// How often the key of the type stands there.
    types: u32,
    is_mcp: bool,
    /// Of a tool that makes images: the model that draws them, and how many.
    model: Option<String>,
    images: Option<u64>,
    has_data: bool,
    /// The key that says that it is a tool of Google's.
    google_tool: Option<String>,
    max_uses: Option<u64>,
    /// A maximum stands there that is no number.
    has_odd_maximum: bool,
}

impl Object {
    fn read(&mut self, place: Scan, key: &str, seen: &Seen<'_>) {
        match (key, seen) {
            ("id", Seen::Text(_)) => self.has_id = true,
            ("type", Seen::Text(name)) => {
                self.is_base64 |= name == "base64";
                self.is_mcp |= name.starts_with("mcp");
                self.types = self.types.saturating_add(1);
                if place == Scan::Tool && !CLIENT_TOOLS.iter().any(|tool| is_tool(name, tool)) {
                    self.server_types.push(name.clone().into_owned());
                }
            }
            ("type", Seen::Nothing) => {}
            ("type", _) if place == Scan::Tool => self.server_types.push(String::new()),
            (key, _) if place == Scan::Tool && DECLARATIONS.contains(&key) => {
                self.is_declared = true;
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
            ("max_uses", Seen::Nothing) => {}
            ("max_uses", _) => self.has_odd_maximum = true,
            ("model", Seen::Text(name)) if place == Scan::Tool => {
                self.model = Some(name.clone().into_owned());
            }
            ("n", Seen::Count(images)) => self.images = self.images.max(Some(*images)),
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
        let is_clients = self.is_declared || self.types > 0;
        if self.server_types.is_empty() && self.google_tool.is_none() && is_clients {
            return;
        }
        let here = || vec![self.google_tool.clone().unwrap_or_else(|| "type".to_owned())];
        findings.note(Kind::ServerTool, here());
        if self.server_types.is_empty() && self.google_tool.is_none() {
            findings.note(Kind::Charged(ToolCharge::Unknown), Vec::new());
        }
        for name in &self.server_types {
            let charge = match name.as_str() {
                "image_generation" => charge_of_images(self.model.as_deref(), self.images),
                name => charge(name),
            };
            findings.note(Kind::Charged(charge), here());
        }
        if let Some(key) = &self.google_tool {
            findings.note(Kind::Charged(charge_of_key(key)), here());
        }
        if self.is_mcp {
            findings.note(Kind::RemoteTool, here());
        }
        let is_search = self.types == 1
            && !self.has_odd_maximum
            && self.server_types.iter().all(|name| is_tool(name, "web_search"));
        match self.max_uses.filter(|_| !self.is_mcp) {
            Some(uses) => findings.tool_uses = findings.tool_uses.saturating_add(uses),
            None if is_search => findings.searches = findings.searches.saturating_add(1),
            None => findings.note(Kind::UnlimitedTool, here()),
        }
    }
}
