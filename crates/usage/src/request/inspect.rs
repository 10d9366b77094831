//! Reads a JSON body: the few fields that decide about money, and fields that are refused.

use crate::issue::Issue;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

use super::body::InspectedBody;
use super::edit::{UsageOption, range_of, usage_option};
use super::native;
use super::scan::{
    FindingKind, MemberSeed, NamedFile, STORED_STATE, ScanContext, ScanFindings, folded,
};
use super::tools::is_tool;
use crate::dialect::{Api, Dialect, ModelLocation, ObjectRole};
use crate::endpoint::EndpointFormat;
use crate::number::count;
use crate::object::{JsonKey, JsonObject};

/// The top-level fields that are read. Fields that decide about money may occur only once, because
/// two parsers may take different ones of a pair.
#[derive(Default)]
struct TopLevelFields<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    max_output_tokens: Option<&'a RawValue>,
    max_tool_calls: Option<&'a RawValue>,
    background: Option<&'a RawValue>,
    previous_response_id: Option<&'a RawValue>,
    conversation: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    container: Option<&'a RawValue>,
    web_search_options: Option<&'a RawValue>,
    mcp_servers: Option<&'a RawValue>,
    models: Option<&'a RawValue>,
    fallbacks: Option<&'a RawValue>,
    route: Option<&'a RawValue>,
    plugins: Option<&'a RawValue>,
    search_parameters: Option<&'a RawValue>,
    prediction: Option<&'a RawValue>,
    context_management: Option<&'a RawValue>,
    provider: Option<&'a RawValue>,
    enable_search: Option<&'a RawValue>,
    modalities: Option<&'a RawValue>,
    reasoning: Option<&'a RawValue>,
    service_tier: Option<&'a RawValue>,
    speed: Option<&'a RawValue>,
    inference_geo: Option<&'a RawValue>,
    extra_body: Option<&'a RawValue>,
    google: Option<&'a RawValue>,
    preset: Option<&'a RawValue>,
    data_sources: Option<&'a RawValue>,
    deferred: Option<&'a RawValue>,
    store: Option<&'a RawValue>,
    duplicates: Vec<&'static str>,
    /// A key that decides about money, in letters that some servers fold into the right ones.
    misspelt: Option<String>,
    /// The first handle to stored state in each scanned field.
    handles: Vec<Vec<String>>,
    findings: ScanFindings,
}

/// The message for a key that only some servers take for the one it resembles.
pub const MISSPELT: &str = "must be written in the letters of the provider's documentation: some servers \
                        take it for the key it resembles, and others do not";

/// The key of the offered tools.
const TOOLS: &str = "tools";
/// The keys of the conversation in each format.
const MESSAGES: [&str; 6] =
    ["messages", "input", "contents", "system", "systemInstruction", "system_instruction"];
/// Fields with free text of the caller, in which text like a handle or a URL has no meaning.
const NOT_SCANNED: [&str; 3] = ["metadata", "response_format", "text"];

impl<'de> Deserialize<'de> for TopLevelFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopLevelVisitor;
        impl<'de> Visitor<'de> for TopLevelVisitor {
            type Value = TopLevelFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut top = TopLevelFields::default();
                // An escaped key is the same key: "m\u006fdel" is decoded before the comparison.
                while let Some(JsonKey(key)) = map.next_key::<JsonKey<'de>>()? {
                    match top.slot(&key) {
                        Some((name, slot)) => {
                            let value = map.next_value::<&'de RawValue>()?;
                            // A repeated key is named once.
                            if slot.replace(value).is_some() && !top.duplicates.contains(&name) {
                                top.duplicates.push(name);
                            }
                        }
                        None if NOT_SCANNED.contains(&&*key) => {
                            map.next_value::<IgnoredAny>()?;
                        }
                        None => {
                            top.note_spelling(&key);
                            let scan = match &*key {
                                TOOLS => ScanContext::Tools,
                                key if MESSAGES.contains(&key) => ScanContext::Message,
                                _ => ScanContext::Part,
                            };
                            top.add(map.next_value_seed(MemberSeed(&key, scan))?);
                        }
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
        impl<'a> TopLevelFields<'a> {
            /// The slot for the value of a top-level key.
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
    max_tool_calls,
    background,
    previous_response_id,
    conversation,
    prompt,
    container,
    web_search_options,
    mcp_servers,
    models,
    fallbacks,
    route,
    plugins,
    search_parameters,
    prediction,
    context_management,
    provider,
    enable_search,
    modalities,
    reasoning,
    service_tier,
    speed,
    inference_geo,
    extra_body,
    google,
    preset,
    data_sources,
    deferred,
    store
);

impl TopLevelFields<'_> {
    /// Adds the findings of a member.
    fn add(&mut self, mut found: ScanFindings) {
        self.handles.extend(found.take(FindingKind::Handle));
        self.findings = std::mem::take(&mut self.findings).or(found);
    }

    /// Notes files as handles, the first of each member that has no other handle.
    fn note_files(&mut self, files: Vec<NamedFile>) {
        for NamedFile { path, .. } in files {
            if self.handles.iter().all(|handle| handle.first() != path.first()) {
                self.handles.push(path);
            }
        }
    }

    fn note_spelling(&mut self, key: &str) {
        let Some(seen) = folded(key) else { return };
        let is_part = || seen == TOOLS || MESSAGES.contains(&&*seen);
        if is_part() || self.slot(&seen).is_some() {
            self.misspelt = Some(key.to_owned());
        }
    }

    /// Scans fields that some providers treat as a part of the body.
    fn scan_extras(&mut self) {
        for (key, value) in [("extra_body", self.extra_body), ("google", self.google)] {
            let Some(value) = value else { continue };
            let mut json = serde_json::Deserializer::from_str(value.get());
            if let Ok(found) = MemberSeed(key, ScanContext::Part).deserialize(&mut json) {
                self.add(found);
            }
        }
    }
}

pub(super) fn inspect(
    body: &[u8],
    endpoint: &EndpointFormat,
    managed: bool,
) -> Result<InspectedBody, Vec<Issue>> {
    // The texts are checked for UTF-8 all at once. On failure, the parser reports the position.
    let parsed = match std::str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    let mut top: TopLevelFields<'_> = parsed.map_err(|error| {
        let message = if error.is_data() {
            "the body must be a JSON object".to_owned()
        } else {
            format!("the body is not JSON: line {}, column {}", error.line(), error.column())
        };
        vec![Issue::at([], message)]
    })?;
    if endpoint.creates_batch() {
        // Each of its requests is inspected alone.
        (top.findings, top.handles) = (ScanFindings::default(), Vec::new());
    }
    top.scan_extras();
    let mut issues: Vec<_> = top
        .duplicates
        .iter()
        .map(|key| Issue::at([key], "must not occur more than once"))
        .collect();
    let misspelt = top.misspelt.iter();
    issues.extend(misspelt.map(|key| Issue::at([key], MISSPELT)));
    let model = read_model(&top, body, endpoint, &mut issues);
    // The answer on a socket is a stream of events.
    let stream = read_stream(&top, &mut issues) || endpoint.is_socket();
    let answers =
        read_count("n", top.n, &mut issues).max(read_count("best_of", top.best_of, &mut issues));
    let max_output_tokens = read_max_output_tokens(&top, endpoint, &mut issues);
    let max_tool_calls = read_count("max_tool_calls", top.max_tool_calls, &mut issues);
    let checks_owner = managed && !endpoint.provider.allow_stored_state;
    let keeps_objects =
        endpoint.object_role() == ObjectRole::Creates && endpoint.api() == Api::Responses;
    let background = keeps_objects && read_flag("background", top.background, &mut issues);
    if background && endpoint.is_socket() {
        let message = "is not possible on a WebSocket; send the request by POST";
        issues.push(Issue::at(["background"], message));
    }
    let (previous_response_id, conversation) = match checks_owner && keeps_objects {
        true => (
            read_id("previous_response_id", top.previous_response_id.take(), &mut issues),
            read_conversation(top.conversation.take(), &mut issues),
        ),
        false => (None, None),
    };
    let mut files = top.findings.take_files();
    if !(checks_owner && endpoint.takes_files()) {
        top.note_files(std::mem::take(&mut files));
    }
    let mut stored = stored_state(&mut top);
    if checks_owner {
        if !keeps_objects {
            refuse_later("background", top.background, &mut issues);
        }
        refuse_stored_state(&top, std::mem::take(&mut stored), &mut issues);
    }
    if let Some(path) = top.findings.take(FindingKind::Misspelt).filter(|_| managed) {
        issues.push(Issue { path, message: MISSPELT.to_owned() });
    }
    let option = usage_option(body, top.stream_options);
    issues.extend(option.as_ref().err().cloned());
    let option = option.ok().filter(|_| stream);
    let endless = open_ended(&top).map(|field| vec![field.to_owned()]);
    let mut call = InspectedBody {
        model,
        stream,
        asks_usage: option == Some(UsageOption::Asked),
        input_bytes: u64::try_from(body.len()).unwrap_or(u64::MAX),
        max_output_tokens,
        choices: answers.unwrap_or(1).max(1).saturating_mul(prompts(top.prompt)),
        characters: 0,
        audio_micros: 0,
        audio_is_exact: false,
        video_micros: 0,
        operation: None,
        tiers: Vec::new(),
        hour_cache: top.findings.hour_cache,
        max_tool_calls,
        findings: top.findings,
        open_ended: {
            let of_file = || files.first().map(|file| file.path.clone());
            let of_conversation = conversation.as_ref().map(|_| vec!["conversation".to_owned()]);
            stored.into_iter().next().or(of_conversation).or_else(of_file).or(endless)
        },
        files,
        background,
        keeps_answer: keeps_objects && top.store.is_none_or(|store| store.get() != "false"),
        previous_response_id,
        conversation,
        previous_tokens: 0,
        names_other_models: filled(top.models) || filled(top.fallbacks),
        model_range: range_of(body, top.model),
        is_form: false,
        model_edit: None,
        usage_edit: match option {
            Some(UsageOption::Insert(edit)) if may_include_usage(endpoint) => Some(edit),
            _ => None,
        },
    };
    let tiers = [
        ("service_tier", top.service_tier),
        ("speed", top.speed),
        ("inference_geo", top.inference_geo),
    ];
    for (field, value) in tiers {
        if let Some(tier) = value.and_then(|value| serde_json::from_str::<String>(value.get()).ok())
        {
            call.add_tier(field, &tier);
        }
    }
    native::read(&mut call, body, endpoint, managed, &mut issues);
    if issues.is_empty() { Ok(call) } else { Err(issues) }
}

/// The first top-level field that leaves the cost without a bound: its cost does not follow from
/// the body, or from the prices of `model`.
fn open_ended(top: &TopLevelFields<'_>) -> Option<&'static str> {
    let fields = [
        ("web_search_options", present(top.web_search_options)),
        ("search_parameters", present(top.search_parameters)),
        ("mcp_servers", filled(top.mcp_servers)),
        ("plugins", filled(top.plugins)),
        ("extra_body", present(top.extra_body)),
        ("google", present(top.google)),
        ("models", filled(top.models)),
        ("fallbacks", filled(top.fallbacks)),
        ("route", present(top.route)),
        // The part of it that is not used is charged as output beside the answer.
        ("prediction", present(top.prediction)),
        // The provider may write summaries, which are not bounded.
        ("context_management", top.context_management.is_some_and(|edits| !only_removes(edits))),
        // OpenRouter: the provider that serves the call, and its price.
        ("provider", top.provider.is_some_and(|value| value.get().starts_with('{'))),
    ];
    let makes_images = |kinds: &RawValue| kinds.get().contains("image");
    // OpenRouter: thoughts beside the maximum of the answer.
    let thinks_beside =
        |how: &RawValue| JsonObject::in_value(how).is_some_and(|how| how.has("max_tokens"));
    let more = [
        (
            "enable_search",
            top.enable_search.is_some_and(|it| it.get() != "false") && present(top.enable_search),
        ),
        ("modalities", top.modalities.is_some_and(makes_images)),
        ("reasoning", top.reasoning.is_some_and(thinks_beside)),
    ];
    fields.into_iter().chain(more).find(|(_, holds)| *holds).map(|(field, _)| field)
}

/// Whether edits of the conversation (Anthropic, "Context editing") only remove parts of it.
fn only_removes(edits: &RawValue) -> bool {
    const REMOVE: [&str; 2] = ["clear_tool_uses", "clear_thinking"];
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ContextManagement {
        #[serde(default)]
        edits: Vec<ContextEdit>,
    }
    #[derive(Deserialize)]
    struct ContextEdit {
        r#type: String,
    }
    let removes = |edit: ContextEdit| REMOVE.iter().any(|known| is_tool(&edit.r#type, known));
    let management = serde_json::from_str::<Option<ContextManagement>>(edits.get());
    let is_object = || edits.get().starts_with(['{', 'n']);
    management.is_ok_and(|all| all.is_none_or(|all| all.edits.into_iter().all(removes)))
        && is_object()
}

/// The largest of the maximum-token fields. A field that the endpoint does not have may be ignored
/// there, so it bounds nothing.
fn read_max_output_tokens(
    top: &TopLevelFields<'_>,
    endpoint: &EndpointFormat,
    issues: &mut Vec<Issue>,
) -> Option<u64> {
    let [chat_or_messages, chat, responses] = [
        read_count("max_tokens", top.max_tokens, issues),
        read_count("max_completion_tokens", top.max_completion_tokens, issues),
        read_count("max_output_tokens", top.max_output_tokens, issues),
    ];
    match endpoint.operation.map(|operation| operation.api) {
        // If the other field is present, this one may count too.
        Some(Api::Chat) => chat_or_messages.max(
            chat.filter(|_| endpoint.honours_max_completion_tokens() || chat_or_messages.is_some()),
        ),
        Some(Api::Messages | Api::Cohere) => chat_or_messages,
        // They have other names for it.
        Some(Api::GenerateContent | Api::Live | Api::Converse | Api::Invoke) => None,
        Some(Api::Responses) => responses,
        _ => chat_or_messages.max(chat).max(responses),
    }
}

/// The number of prompts in a body of the older completions; each is answered.
fn prompts(prompt: Option<&RawValue>) -> u64 {
    let list = prompt.and_then(|prompt| prompt.get().strip_prefix('['));
    // A list of numbers is one prompt, already in tokens.
    let several = list.filter(|list| !list.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let prompts = several.and(prompt).map(RawValue::get).map(serde_json::from_str);
    let count = prompts.and_then(Result::ok).map_or(1, |prompts: Vec<IgnoredAny>| prompts.len());
    u64::try_from(count).unwrap_or(u64::MAX).max(1)
}

/// Whether the endpoints of a dialect usually name the model in the body.
const fn names_models_in_body(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::OpenAi | Dialect::Azure | Dialect::Anthropic | Dialect::None)
}

/// Whether the provider knows `include_usage`; older versions of Azure's interface refuse it.
fn may_include_usage(endpoint: &EndpointFormat) -> bool {
    endpoint.provider.stream_options
        && (endpoint.dialect != Dialect::Azure
            || endpoint.query("api-version").is_some_and(|version| knows_stream_options(&version)))
        && matches!(endpoint.dialect, Dialect::OpenAi | Dialect::Azure)
        && endpoint.operation.is_some_and(|operation| operation.api == Api::Chat)
}

/// True from 2024-09-01-preview on, and for general versions from 2024-10-21 on.
fn knows_stream_options(api_version: &str) -> bool {
    let is_date =
        |date: &str| date.len() == 10 && date.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    match api_version.strip_suffix("-preview") {
        Some(date) if is_date(date) => date >= "2024-09-01",
        None if is_date(api_version) => api_version >= "2024-10-21",
        _ => matches!(api_version, "v1" | "preview" | "latest"),
    }
}

/// Whether a field is present: null means the same as absent.
fn present(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get() != "null")
}

/// Whether a list is present and not empty.
fn filled(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| !matches!(value.get(), "null" | "[]"))
}

/// The model, from its position at the endpoint.
fn read_model(
    top: &TopLevelFields<'_>,
    body: &[u8],
    endpoint: &EndpointFormat,
    issues: &mut Vec<Issue>,
) -> Option<String> {
    let place = match endpoint.operation {
        Some(operation) => operation.model,
        // An endpoint without a row is assumed to name the model as its siblings do.
        None if names_models_in_body(endpoint.dialect) => ModelLocation::Body("model"),
        None => ModelLocation::MaybeBody("model"),
    };
    let (key, is_required) = match place {
        ModelLocation::Body(key) => (key, true),
        ModelLocation::MaybeBody(key) => (key, false),
        ModelLocation::Path | ModelLocation::Query(_) => return endpoint.named_model(),
        ModelLocation::Nowhere => return None,
    };
    let value = match key {
        "model" => top.model,
        key => JsonObject::of(body).and_then(|body| body.get(key)),
    };
    let model = value.and_then(|value| serde_json::from_str::<String>(value.get()).ok());
    let model = model.filter(|model| !model.trim().is_empty());
    if model.is_none() && (is_required || present(value)) {
        let message = match value {
            None => "required: the model as a string",
            Some(_) => "must be a string that is not empty",
        };
        issues.push(Issue::at([key], message));
    }
    model
}

fn read_stream(top: &TopLevelFields<'_>, issues: &mut Vec<Issue>) -> bool {
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

/// The paths to everything stored at the provider that the body names.
fn stored_state(top: &mut TopLevelFields<'_>) -> Vec<Vec<String>> {
    let fields = [
        ("previous_response_id", present(top.previous_response_id)),
        ("conversation", present(top.conversation)),
        // The older completions have a text here; an object names a stored prompt.
        ("prompt", top.prompt.is_some_and(|value| value.get().starts_with('{'))),
        ("container", present(top.container)),
        ("preset", present(top.preset)),
        ("data_sources", filled(top.data_sources)),
    ];
    let fields = fields.into_iter().filter(|(_, present)| *present);
    fields
        .map(|(field, _)| vec![field.to_owned()])
        .chain(std::mem::take(&mut top.handles))
        .collect()
}

/// Refuses a field that asks for the answer later, where no one can see its end.
fn refuse_later(field: &str, value: Option<&RawValue>, issues: &mut Vec<Issue>) {
    if value.is_some_and(|value| !matches!(value.get(), "false" | "null")) {
        let message = "answers that come later are not possible with the managed key at this \
                       provider; use your own provider key";
        issues.push(Issue::at([field], message));
    }
}

/// Reads a field that is true or false; false if it is absent.
fn read_flag(field: &str, value: Option<&RawValue>, issues: &mut Vec<Issue>) -> bool {
    match value.map(RawValue::get) {
        None | Some("false" | "null") => false,
        Some("true") => true,
        Some(_) => {
            issues.push(Issue::at([field], "must be true or false"));
            false
        }
    }
}

/// Reads the id of an object of the provider, if there is one.
fn read_id(field: &str, value: Option<&RawValue>, issues: &mut Vec<Issue>) -> Option<String> {
    let value = value.filter(|value| present(Some(value)))?;
    let id = serde_json::from_str::<String>(value.get()).ok();
    if id.is_none() {
        issues.push(Issue::at([field], "must be a string"));
    }
    id
}

/// Reads the id of a conversation: a text, or an object with it.
fn read_conversation(value: Option<&RawValue>, issues: &mut Vec<Issue>) -> Option<String> {
    let value = value.filter(|value| present(Some(value)))?;
    match JsonObject::in_value(value) {
        Some(object) => {
            let id = object.text("id").filter(|_| object.duplicate().is_none());
            if id.is_none() {
                let issue = "must be the id of a conversation, or an object with it as id, once";
                issues.push(Issue::at(["conversation"], issue));
            }
            id
        }
        None => read_id("conversation", Some(value), issues),
    }
}

/// Refuses handles to stored state with a managed key. The key opens the operator's whole account,
/// which holds the files and answers of all callers, and their owners are not known.
fn refuse_stored_state(
    top: &TopLevelFields<'_>,
    stored: Vec<Vec<String>>,
    issues: &mut Vec<Issue>,
) {
    refuse_later("deferred", top.deferred, issues);
    issues.extend(stored.into_iter().map(|path| Issue { path, message: STORED_STATE.to_owned() }));
}
