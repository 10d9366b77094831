//! A walk through the parts of a body that can contain handles, files, images and tools. It keeps
//! only counts and the first finding of each kind. The JSON parser bounds the depth (128).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::tools::{ToolCharge, charge, charge_of_images, charge_of_key, is_tool};
use crate::object::JsonKey;

/// The message for a handle to something stored.
pub(super) const STORED_STATE: &str =
    "refers to what the provider stores, which the managed key may not; use your own provider key";

/// The kind of a finding that is kept with its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FindingKind {
    /// A handle to something that the provider stores.
    Handle,
    /// Something with an unknown number of tokens: a URL that the provider would fetch, the audio
    /// of an earlier answer, or a packed document.
    Unsized,
    /// A tool that the provider itself runs.
    ServerTool,
    /// A tool at the provider that has no maximum of uses.
    UnlimitedTool,
    /// A tool at another server (MCP), which no known maximum limits.
    RemoteTool,
    /// A tool at the provider, by the charge for its calls.
    Charged(ToolCharge),
    /// A key that servers which fold letters take for another one that decides about money.
    Misspelt,
}

/// The findings below a value. Paths are innermost first while the walk unwinds.
#[derive(Clone, Debug, Default)]
pub(super) struct ScanFindings {
    first: BTreeMap<FindingKind, Vec<String>>,
    /// The number of images in the body itself.
    pub(super) images: u64,
    /// The number of tools, at the provider or at the client.
    pub(super) tools: u64,
    /// The sum of the maxima of uses of the tools at the provider.
    pub(super) tool_uses: u64,
    /// The number of web searches without a maximum of uses.
    pub(super) searches: u64,
    /// Whether a cache entry with a life of an hour is requested.
    pub(super) hour_cache: bool,
    /// The files that messages name, in their order. A body with more than a few has a handle instead.
    files: Vec<NamedFile>,
}

/// A file of the provider that a message names by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The path to the id in the body.
    pub path: Vec<String>,
    /// The id.
    pub id: String,
}

/// The most files that a body may name, each of which has an owner to be checked.
const MAX_FILES: usize = 32;

impl ScanFindings {
    /// The files that messages name.
    pub(super) fn take_files(&mut self) -> Vec<NamedFile> {
        std::mem::take(&mut self.files)
    }

    fn name_file(&mut self, file: NamedFile) {
        match self.files.len() < MAX_FILES {
            true => self.files.push(file),
            false => self.note(FindingKind::Handle, file.path),
        }
    }

    pub(super) fn first(&self, kind: FindingKind) -> Option<&Vec<String>> {
        self.first.get(&kind)
    }

    pub(super) fn take(&mut self, kind: FindingKind) -> Option<Vec<String>> {
        self.first.remove(&kind)
    }

    /// Whether nothing was found, as in most values.
    fn is_empty(&self) -> bool {
        let Self { first, images, tools, tool_uses, searches, hour_cache, files } = self;
        let counted = images | tools | tool_uses | searches;
        counted == 0 && !hour_cache && first.is_empty() && files.is_empty()
    }

    pub(super) fn or(mut self, later: Self) -> Self {
        if later.is_empty() {
            return self;
        }
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
        later.files.into_iter().for_each(|file| self.name_file(file));
        self
    }

    /// The charges for the tools at the provider, each with the path of its first tool.
    pub(super) fn charges(&self) -> impl Iterator<Item = (ToolCharge, &Vec<String>)> {
        self.first.iter().filter_map(|(kind, path)| match kind {
            FindingKind::Charged(charge) => Some((*charge, path)),
            _ => None,
        })
    }

    fn note(&mut self, kind: FindingKind, path: Vec<String>) {
        self.first.entry(kind).or_insert(path);
    }

    fn below(mut self, step: impl fmt::Display) -> Self {
        if self.is_empty() {
            return self;
        }
        let files = self.files.iter_mut().map(|file| &mut file.path);
        self.first.values_mut().chain(files).for_each(|path| path.push(step.to_string()));
        self
    }

    /// The findings below the top-level field `field`, with paths from the outside in.
    fn within(self, field: &str) -> Self {
        let mut found = self.below(field);
        let files = found.files.iter_mut().map(|file| &mut file.path);
        found.first.values_mut().chain(files).for_each(|path| path.reverse());
        found
    }
}

/// The keys of strings that name something stored.
const HANDLE_KEYS: [&str; 17] = [
    "file_id",
    "fileId",
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
/// The key of the id of a file in a message.
const FILE_KEY: &str = "file_id";
/// The keys of arrays that name something stored.
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
/// The keys of strings that are fetched, if they are URLs and not the data itself.
const REMOTE_KEYS: [&str; 6] =
    ["url", "image_url", "video_url", "audio_url", "file_url", "server_url"];
/// The keys of strings that are a document, if they are the data itself.
const DOCUMENT_KEYS: [&str; 2] = ["file_url", "file_data"];
/// The keys of Google's tools that run at the provider. Google's tools have no type.
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
/// The types of tools that the client runs. Dated names, such as `bash_20250124`, begin with one of
/// them. All other types run at the provider, including unknown ones.
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

/// The keys of tools that the client runs, in formats without a type.
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

/// The kind of a value, by which the object around it is judged.
enum ScannedValue<'de> {
    Text(Cow<'de, str>),
    Count(u64),
    List,
    /// An object with an id.
    Named,
    /// Null, or an empty list.
    Nothing,
    Other,
}

/// The place of a value in the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanContext {
    /// The list of the offered tools.
    Tools,
    /// One of the tools.
    Tool,
    /// Messages and their parts. The provider defines their keys.
    Message,
    /// The container in which a tool at the provider runs code.
    Container,
    /// Anything else. The caller may define the keys: names in a schema, arguments of a function.
    Part,
}

/// The keys of messages below which the caller defines the keys.
const FREE_KEYS: [&str; 7] =
    ["input", "args", "arguments", "output", "response", "parameters", "structuredContent"];
/// The keys of tools and messages that decide about money, or name something stored.
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

/// The form of `key` that servers read which fold letters, if it differs. They fold case, and the
/// few letters beyond ASCII that fold into ASCII (the Kelvin sign, the long s, ligatures).
pub(crate) fn folded(key: &str) -> Option<String> {
    if key.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
        return None;
    }
    let upper = key.chars().flat_map(char::to_uppercase);
    let folded: String = upper.flat_map(char::to_lowercase).collect();
    Some(folded).filter(|folded| folded != key)
}

/// The first key of a JSON object that servers which fold letters take for one of `known`.
pub fn misspelt_key(body: &[u8], known: &[&str]) -> Option<String> {
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(body).ok()?;
    let is_taken = |key: &String| folded(key).is_some_and(|seen| known.contains(&seen.as_str()));
    keys.into_keys().find(is_taken)
}

/// Whether servers that fold letters take `key` for another key, one that decides about money.
fn is_misspelt(key: &str) -> bool {
    let Some(seen) = folded(key) else { return false };
    let lists: [&[&str]; 5] =
        [&DECIDING_KEYS, &HANDLE_KEYS, &HANDLE_LIST_KEYS, &REMOTE_KEYS, &DOCUMENT_KEYS];
    let known = || lists.into_iter().flatten();
    known().all(|name| *name != key) && known().any(|name| name.eq_ignore_ascii_case(&seen))
}

/// The member `key` of the whole body, and its place.
pub(super) struct MemberSeed<'a>(pub(super) &'a str, pub(super) ScanContext);

impl<'de> DeserializeSeed<'de> for MemberSeed<'_> {
    type Value = ScanFindings;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<ScanFindings, D::Error> {
        let (seen, mut found) = value.deserialize_any(ScanVisitor(self.1))?;
        judge_member(self.1, self.0, &seen, &mut found);
        Ok(found.within(self.0))
    }
}

impl ScanContext {
    /// The place of the value under `key` of an object in this place.
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

struct ScanVisitor(ScanContext);

impl<'de> DeserializeSeed<'de> for ScanVisitor {
    type Value = (ScannedValue<'de>, ScanFindings);

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_any(self)
    }
}

fn without_findings<'de, E>(
    seen: ScannedValue<'de>,
) -> Result<(ScannedValue<'de>, ScanFindings), E> {
    Ok((seen, ScanFindings::default()))
}

impl<'de> Visitor<'de> for ScanVisitor {
    type Value = (ScannedValue<'de>, ScanFindings);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Other)
    }

    fn visit_u64<E>(self, count: u64) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Count(count))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Nothing)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        without_findings(ScannedValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        // Only the start is ever read, and escaped texts may be long.
        without_findings(ScannedValue::Text(Cow::Owned(text.chars().take(64).collect())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let inner = match self.0 {
            ScanContext::Tools => ScanContext::Tool,
            ScanContext::Message => ScanContext::Message,
            ScanContext::Tool | ScanContext::Container | ScanContext::Part => ScanContext::Part,
        };
        let mut findings = ScanFindings::default();
        let mut position = 0_usize;
        while let Some((_, found)) = items.next_element_seed(ScanVisitor(inner))? {
            findings = findings.or(found.below(position));
            position = position.saturating_add(1);
        }
        // An empty list of handles names none.
        Ok((if position == 0 { ScannedValue::Nothing } else { ScannedValue::List }, findings))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut findings = ScanFindings::default();
        let mut object = ObjectFacts::default();
        while let Some(JsonKey(key)) = fields.next_key::<JsonKey<'de>>()? {
            // Free data of the caller, which the provider does not interpret.
            if key == "metadata" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let (seen, mut found) = fields.next_value_seed(ScanVisitor(self.0.below(&key)))?;
            judge_member(self.0, &key, &seen, &mut found);
            // Larger containers cost more, and answers do not say how large they were.
            if self.0 == ScanContext::Container
                && key == "memory_limit"
                && !matches!(&seen, ScannedValue::Text(size) if size == "1g")
            {
                found.note(FindingKind::Charged(ToolCharge::Unknown), Vec::new());
            }
            if self.0 != ScanContext::Part && is_misspelt(&key) {
                found.note(FindingKind::Misspelt, Vec::new());
            }
            object.read(self.0, &key, &seen);
            findings = findings.or(found.below(&key));
        }
        object.judge(self.0, &mut findings);
        Ok((if object.has_id { ScannedValue::Named } else { ScannedValue::Other }, findings))
    }
}

/// Adds the finding that a member of an object is by itself.
fn judge_member(place: ScanContext, key: &str, seen: &ScannedValue<'_>, found: &mut ScanFindings) {
    let here = Vec::new;
    match seen {
        ScannedValue::Text(id) if key == FILE_KEY && place == ScanContext::Message => {
            found.name_file(NamedFile { path: here(), id: id.clone().into_owned() });
        }
        ScannedValue::Text(text) => {
            let reference = key == "type" && text == "item_reference";
            if reference || HANDLE_KEYS.contains(&key) {
                found.note(FindingKind::Handle, here());
            }
            // The bytes of documents and films say little of their tokens.
            let inline = text.starts_with("data:image/");
            if DOCUMENT_KEYS.contains(&key) || (REMOTE_KEYS.contains(&key) && !inline) {
                found.note(FindingKind::Unsized, here());
            }
            // Bedrock: an object in a bucket of the account, and packed data in the body.
            if key == "uri" && text.get(..5).is_some_and(|s| s.eq_ignore_ascii_case("s3://")) {
                found.note(FindingKind::Handle, here());
            }
            if key == "bytes" {
                found.note(FindingKind::Unsized, here());
            }
            found.hour_cache |= key == "ttl" && text == "1h";
            let drawn = key == "type" && text == "image_generation_call";
            if drawn || key == "image" || (REMOTE_KEYS.contains(&key) && inline) {
                found.images = found.images.saturating_add(1);
            }
        }
        ScannedValue::Other if key == "systemTool" => found.note(FindingKind::Unsized, here()),
        ScannedValue::List if HANDLE_LIST_KEYS.contains(&key) => {
            found.note(FindingKind::Handle, here())
        }
        // An id in another form than a text.
        ScannedValue::List | ScannedValue::Named | ScannedValue::Other
            if key == FILE_KEY && place == ScanContext::Message =>
        {
            found.note(FindingKind::Handle, here())
        }
        // The body contains only the name of the speech.
        ScannedValue::Named if key == "audio" => found.note(FindingKind::Unsized, here()),
        _ => {}
    }
}

/// The facts from all members of an object. If a key occurs twice, the worse value counts.
#[derive(Default)]
struct ObjectFacts {
    has_id: bool,
    /// `"type": "base64"`: the source of an image or document.
    is_base64: bool,
    is_image: bool,
    is_no_image: bool,
    /// It has a name, or another key of tools that the client runs.
    is_declared: bool,
    /// The types that run at the provider; several if the key occurs twice.
    server_types: Vec<String>,
    /// The number of `type` keys.
    types: u32,
    is_mcp: bool,
    /// For a tool that makes images: the model that draws them, and their number.
    model: Option<String>,
    images: Option<u64>,
    has_data: bool,
    /// The key that marks a tool of Google.
    google_tool: Option<String>,
    max_uses: Option<u64>,
    /// A maximum is present that is not a number.
    has_odd_maximum: bool,
}

impl ObjectFacts {
    fn read(&mut self, place: ScanContext, key: &str, seen: &ScannedValue<'_>) {
        match (key, seen) {
            ("id", ScannedValue::Text(_)) => self.has_id = true,
            ("type", ScannedValue::Text(name)) => {
                self.is_base64 |= name == "base64";
                self.is_mcp |= name.starts_with("mcp");
                self.types = self.types.saturating_add(1);
                if place == ScanContext::Tool
                    && !CLIENT_TOOLS.iter().any(|tool| is_tool(name, tool))
                {
                    self.server_types.push(name.clone().into_owned());
                }
            }
            ("type", ScannedValue::Nothing) => {}
            ("type", _) if place == ScanContext::Tool => self.server_types.push(String::new()),
            (key, _) if place == ScanContext::Tool && DECLARATIONS.contains(&key) => {
                self.is_declared = true;
            }
            ("media_type" | "mimeType" | "mime_type", ScannedValue::Text(name)) => {
                let is_image = name.starts_with("image/");
                self.is_image |= is_image;
                self.is_no_image |= !is_image;
            }
            ("media_type", _) => self.is_no_image = true,
            // Google's data are beside their type, without a field that says so. Bedrock's bytes
            // are below the key of their kind.
            ("data", ScannedValue::Text(_)) => self.has_data = true,
            (key, _) if GOOGLE_TOOLS.contains(&key) => self.google_tool = Some(key.to_owned()),
            ("max_uses", ScannedValue::Count(uses)) => {
                self.max_uses = self.max_uses.max(Some(*uses))
            }
            ("max_uses", ScannedValue::Nothing) => {}
            ("max_uses", _) => self.has_odd_maximum = true,
            ("model", ScannedValue::Text(name)) if place == ScanContext::Tool => {
                self.model = Some(name.clone().into_owned());
            }
            ("n", ScannedValue::Count(images)) => self.images = self.images.max(Some(*images)),
            _ => {}
        }
    }

    fn judge(&self, place: ScanContext, findings: &mut ScanFindings) {
        if self.is_base64 || (self.has_data && (self.is_image || self.is_no_image)) {
            // The bytes of a document say little of its tokens; the bytes of an image say nothing.
            match self.is_image && !self.is_no_image {
                true => findings.images = findings.images.saturating_add(1),
                false => findings.note(FindingKind::Unsized, Vec::new()),
            }
        }
        if place != ScanContext::Tool {
            return;
        }
        findings.tools = findings.tools.saturating_add(1);
        let is_clients = self.is_declared || self.types > 0;
        if self.server_types.is_empty() && self.google_tool.is_none() && is_clients {
            return;
        }
        let here = || vec![self.google_tool.clone().unwrap_or_else(|| "type".to_owned())];
        findings.note(FindingKind::ServerTool, here());
        if self.server_types.is_empty() && self.google_tool.is_none() {
            findings.note(FindingKind::Charged(ToolCharge::Unknown), Vec::new());
        }
        for name in &self.server_types {
            let charge = match name.as_str() {
                "image_generation" => charge_of_images(self.model.as_deref(), self.images),
                name => charge(name),
            };
            findings.note(FindingKind::Charged(charge), here());
        }
        if let Some(key) = &self.google_tool {
            findings.note(FindingKind::Charged(charge_of_key(key)), here());
        }
        if self.is_mcp {
            findings.note(FindingKind::RemoteTool, here());
        }
        let is_search = self.types == 1
            && !self.has_odd_maximum
            && self.server_types.iter().all(|name| is_tool(name, "web_search"));
        match self.max_uses.filter(|_| !self.is_mcp) {
            Some(uses) => findings.tool_uses = findings.tool_uses.saturating_add(uses),
            None if is_search => findings.searches = findings.searches.saturating_add(1),
            None => findings.note(FindingKind::UnlimitedTool, here()),
        }
    }
}
