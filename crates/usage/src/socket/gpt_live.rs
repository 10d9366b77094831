//! The messages of OpenAI's GPT-Live.
//!
//! The first message of the client is `session.start`. The session is one call, which is billed by its time: messages state
//! the time so far, and `session.closed` all of it. The session may delegate work to another model. It begins responses of
//! that model by itself, whose events are within `response.event`, and each of them is a call.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::fields::{FieldNames, Fields, text_length};
use super::message::{
    AddedInput, ClientMessage, ClientRole, MaxOutput, ProviderFact, ProviderMessage, SettingsChange,
};
use super::responses;
use crate::endpoint::EndpointFormat;
use crate::issue::Issue;
use crate::number::{count, micros};
use crate::object::JsonObject;
use crate::request::InspectedBody;

const MESSAGE: FieldNames = &[
    ("type", "type"),
    ("event_id", "event_id"),
    ("session", "session"),
    ("audio", "audio"),
    ("item", "item"),
    ("response", "response"),
];
const SESSION: FieldNames =
    &[("model", "model"), ("delegation", "delegation"), ("triggers", "triggers")];
const DELEGATION: FieldNames =
    &[("type", "type"), ("responses", "responses"), ("decisions", "decisions")];
const TOOL: FieldNames = &[("type", "type")];
const RESPONSES: FieldNames = &[
    ("model", "model"),
    ("max_output_tokens", "max_output_tokens"),
    ("service_tier", "service_tier"),
    ("tools", "tools"),
];

/// The message that ends a session.
pub(super) const CLOSE: &str = r#"{"type":"session.close"}"#;

const DELEGATION_PATH: [&str; 2] = ["session", "delegation"];
const RESPONSES_PATH: [&str; 3] = ["session", "delegation", "responses"];

/// The issue of work whose cost no message reports.
const NOT_REPORTED: &str = "is not possible here, because the cost of decisions is not reported; \
                            delegate to responses or to the client";
/// The issue of a message before the first one.
const NOT_BEGUN: &str = "must be session.start in the first message";
/// The issue of content that a link or an id names.
const UNBOUNDED: &str = "has content that is not in the message, so that its tokens are not known; send the content itself";
/// The issue of settings by which money is held.
const FIXED: &str = "cannot change in a session; begin another one";

/// The state of a session, as far as messages of the client depend on it.
#[derive(Clone, Copy)]
pub(super) struct SessionState {
    /// Whether a session was asked for.
    pub(super) has_begun: bool,
    /// Whether it delegates to responses.
    pub(super) delegates: bool,
}

/// Reads a message of a client. `checks_stored` refuses what the provider stores.
pub(super) fn client_message(
    text: &[u8],
    endpoint: &EndpointFormat,
    state: SessionState,
    checks_stored: bool,
) -> Result<ClientMessage, Vec<Issue>> {
    let fields = Fields::of_message(text, MESSAGE)?;
    let Some(kind) = fields.only_text("type")? else {
        return Err(vec![Issue::at(["type"], "is required")]);
    };
    let event_id = fields.only_text("event_id")?.map(Cow::into_owned);
    let message = ClientMessage { event_id, ..ClientMessage::default() };
    let session = fields.within(&[], "session", SESSION)?;
    let input =
        AddedInput { bytes: fields.get("session").map_or(0, text_length), ..AddedInput::default() };
    match &*kind {
        "session.start" if state.has_begun => {
            Err(vec![Issue::at(["type"], "must be that of the first message alone")])
        }
        "session.start" => Ok(ClientMessage {
            role: ClientRole::Asks,
            begins_session: true,
            settings: Some(start(&session, endpoint, checks_stored)?),
            input,
            ..message
        }),
        _ if !state.has_begun => Err(vec![Issue::at(["type"], NOT_BEGUN)]),
        "session.update" => {
            let settings = Some(update(&session, state.delegates)?);
            Ok(ClientMessage { settings, input, ..message })
        }
        "session.close" | "session.input_audio.mute" | "session.input_audio.unmute" => Ok(message),
        "session.input_audio.append" => Ok(ClientMessage {
            role: ClientRole::Adds,
            input: AddedInput {
                sound: fields.get("audio").map_or(0, text_length),
                ..AddedInput::default()
            },
            ..message
        }),
        "response.item.create" => {
            let item = fields.get("item").map_or("null", RawValue::get);
            let bytes = item_tokens(item, &endpoint.of_responses(), checks_stored)?;
            let input = AddedInput { bytes, ..AddedInput::default() };
            Ok(ClientMessage { role: ClientRole::Adds, input, ..message })
        }
        "response.create" if fields.get("response").is_some() => {
            Err(vec![Issue::at(["response"], "is no field of this message")])
        }
        "response.create"
        | "session.instructions.append"
        | "session.thinking.append"
        | "session.commentary.append" => Ok(ClientMessage {
            role: ClientRole::Adds,
            input: AddedInput {
                bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
                ..AddedInput::default()
            },
            ..message
        }),
        _ => Err(vec![Issue::at(["type"], "is not a type that is sent on here")]),
    }
}

/// The most tokens of an item that responses have as input.
fn item_tokens(
    item: &str,
    endpoint: &EndpointFormat,
    checks_stored: bool,
) -> Result<u64, Vec<Issue>> {
    let body = format!(r#"{{"model":"m","input":[{item}]}}"#);
    let within = |issue: Issue| Issue {
        path: std::iter::once("item".to_owned()).chain(issue.path.into_iter().skip(2)).collect(),
        message: issue.message,
    };
    let body = InspectedBody::inspect(body.as_bytes(), endpoint, checks_stored)
        .map_err(|issues| issues.into_iter().map(within).collect::<Vec<_>>())?;
    let bound = body.bound(endpoint);
    match bound.unbounded.is_some() || !body.files.is_empty() {
        true => Err(vec![Issue::at(["item"], UNBOUNDED)]),
        false => Ok(bound.input_tokens),
    }
}

/// The settings that begin a session.
fn start(
    session: &Fields<'_>,
    endpoint: &EndpointFormat,
    checks_stored: bool,
) -> Result<SettingsChange, Vec<Issue>> {
    let Some(model) = session.text("model").map(Cow::into_owned) else {
        return Err(vec![Issue::at(["session", "model"], "is required")]);
    };
    let (delegated, mut change) = delegation(session)?;
    change.session_model = Some(model);
    if delegated.is_none() && change.begins_responses == Some(true) {
        return Err(vec![Issue::at(RESPONSES_PATH, "is required")]);
    }
    if let Some((config, fields)) = delegated {
        if fields.text("model").is_none() {
            return Err(vec![of_responses("model", "is required")]);
        }
        let within = |issue: Issue| Issue {
            path: RESPONSES_PATH.iter().map(|step| (*step).to_owned()).chain(issue.path).collect(),
            message: issue.message,
        };
        let endpoint = endpoint.of_responses();
        let body = InspectedBody::inspect(config.get().as_bytes(), &endpoint, checks_stored)
            .map_err(|issues| issues.into_iter().map(within).collect::<Vec<_>>())?;
        change.body = Some(Box::new(body));
    }
    Ok(change)
}

/// The settings that a session changes.
fn update(session: &Fields<'_>, delegates: bool) -> Result<SettingsChange, Vec<Issue>> {
    let (delegated, change) = delegation(session)?;
    if change.begins_responses.is_some_and(|begins| begins != delegates) {
        return Err(vec![Issue::at(["session", "delegation", "type"], FIXED)]);
    }
    let Some((_, fields)) = delegated else { return Ok(change) };
    let fixed = ["model", "service_tier"].into_iter().find(|name| fields.get(name).is_some());
    let is_own = |tool: &RawValue| {
        let fields = Fields::of_value(tool, TOOL);
        fields.is_ok_and(|fields| fields.text("type").as_deref() == Some("function"))
    };
    let are_own = |tools: &RawValue| list(tools).is_some_and(|tools| tools.into_iter().all(is_own));
    // The provider runs the others, at a price.
    let tools = Some("tools").filter(|tools| !fields.get(tools).is_none_or(are_own));
    match fixed.or(tools) {
        Some(name) => Err(vec![of_responses(name, FIXED)]),
        None => Ok(change),
    }
}

/// The configuration of the responses that a session delegates to, and its fields.
type Delegated<'a> = Option<(&'a RawValue, Fields<'a>)>;

/// The delegation that a session states.
fn delegation<'a>(session: &Fields<'a>) -> Result<(Delegated<'a>, SettingsChange), Vec<Issue>> {
    let has_triggers = |triggers| list(triggers).is_none_or(|triggers| !triggers.is_empty());
    if session.get("triggers").is_some_and(has_triggers) {
        return Err(vec![Issue::at(["session", "triggers"], NOT_REPORTED)]);
    }
    let fields = session.within(&["session"], "delegation", DELEGATION)?;
    let kind = fields.text("type");
    let begins_responses = match kind.as_deref() {
        Some("responses") => true,
        Some("client") => false,
        None if session.get("delegation").is_none() => false,
        None => {
            let path = ["session", "delegation", "type"];
            return Err(vec![Issue::at(path, "must be client or responses")]);
        }
        Some(_) => return Err(vec![Issue::at(DELEGATION_PATH, NOT_REPORTED)]),
    };
    if fields.get("decisions").is_some() {
        return Err(vec![Issue::at(DELEGATION_PATH, NOT_REPORTED)]);
    }
    if !begins_responses && fields.get("responses").is_some() {
        return Err(vec![Issue::at(RESPONSES_PATH, "needs the type responses")]);
    }
    let config = fields.get("responses").filter(|_| begins_responses);
    let responses = fields.within(&DELEGATION_PATH, "responses", RESPONSES)?;
    let max_output = responses
        .stated("max_output_tokens")
        .map(|most| count(most.get()).map_or(MaxOutput::Unlimited, MaxOutput::Tokens));
    let change = SettingsChange {
        begins_responses: session.stated("delegation").map(|_| begins_responses),
        max_output: max_output.filter(|_| begins_responses),
        ..SettingsChange::default()
    };
    Ok((config.map(|config| (config, responses)), change))
}

/// The items of a list; `None` for another value.
fn list(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

/// The issue of a field of the responses' configuration.
fn of_responses(field: &'static str, message: &str) -> Issue {
    let [session, delegation, responses] = RESPONSES_PATH;
    Issue::at([session, delegation, responses, field], message)
}

/// The message of an error. Its own id has that of the refusal.
pub(super) fn error_message(error: &RawValue, refused: Option<&ClientMessage>) -> Option<String> {
    let mut error: Map<String, Value> = serde_json::from_str(error.get()).ok()?;
    let refusal_id = error.get("refusal_id").and_then(Value::as_str).unwrap_or_default();
    let event_id = format!("event_{refusal_id}");
    let client_event_id = refused.and_then(|refused| refused.event_id.clone());
    error.insert("client_event_id".to_owned(), client_event_id.clone().into());
    let message = json!({"type": "error", "event_id": event_id, "client_event_id": client_event_id,
        "error": error});
    Some(message.to_string())
}

/// The event of a response within a message of the provider.
pub(super) fn inner_event(text: &[u8]) -> Option<&[u8]> {
    // Most messages are sound.
    memchr::memmem::find(text, b"response.event")?;
    let fields: Fields<'_> =
        Fields::of_message(text, &[("type", "type"), ("event", "event")]).ok()?;
    let is_response = fields.text("type").as_deref() == Some("response.event");
    fields.get("event").filter(|_| is_response).map(|event| event.get().as_bytes())
}

/// The content of a message of the provider.
pub(super) struct ProviderNews {
    pub(super) messages: Vec<ProviderMessage>,
    /// The settings that hold from now on.
    pub(super) settings: Option<SettingsChange>,
    /// The time of the session so far, in microseconds.
    pub(super) session_micros: Option<u64>,
}

/// Reads a message of the provider.
pub(super) fn provider_news(text: &[u8]) -> ProviderNews {
    if let Some(event) = inner_event(text) {
        let lane = JsonObject::of(text).and_then(|message| message.text("delegation_id"));
        return news(vec![ProviderMessage { lane, ..responses::provider_message(event) }]);
    }
    let Some(message) = JsonObject::of(text) else { return news(Vec::new()) };
    let of_session = |fact| ProviderMessage {
        of_session: true,
        response_id: message.object("session").and_then(|session| session.text("id")),
        ..ProviderMessage::of(fact)
    };
    let settings = || {
        let session = Fields::of_message(text, MESSAGE)
            .and_then(|message| message.within(&[], "session", SESSION))
            .and_then(|session| delegation(&session));
        session.ok().map(|(_, change)| change)
    };
    let facts = match message.text("type").as_deref() {
        Some("session.started") => vec![ProviderFact::Begun, ProviderFact::Settings],
        Some("session.updated") => vec![ProviderFact::Settings],
        Some("session.usage.updated") => vec![ProviderFact::Other],
        Some("session.closed") => vec![ProviderFact::Ended],
        Some("error") => {
            let of_error = message.object("error").and_then(|error| error.text("client_event_id"));
            let event_id = of_error.or_else(|| message.text("client_event_id"));
            vec![ProviderFact::Refused { event_id }]
        }
        _ => return news(Vec::new()),
    };
    let settings = Some(settings).filter(|_| facts.contains(&ProviderFact::Settings));
    let usage = message.object("usage");
    let seconds = usage.as_ref().and_then(|usage| usage.get("seconds"));
    ProviderNews {
        settings: settings.and_then(|settings| settings()),
        session_micros: seconds.and_then(|seconds| micros(seconds.get())),
        ..news(facts.into_iter().map(of_session).collect())
    }
}

const fn news(messages: Vec<ProviderMessage>) -> ProviderNews {
    ProviderNews { messages, settings: None, session_micros: None }
}
