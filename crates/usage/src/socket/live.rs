//! The messages of Google's Gemini Live API.
//!
//! The first message of the client is `setup`. Any input may begin a turn of the model, which is a response: it begins
//! with the first content or call of a tool, and ends with `turnComplete` or `interrupted`. `usageMetadata` stands in one
//! of its messages, or behind them in its own. There is one turn at a time, and no message for errors.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::fields::{FieldNames, Fields, items, text_length};
use super::message::{
    AddedInput, ClientMessage, ClientRole, ProviderFact, ProviderMessage, SettingsChange,
};
use crate::endpoint::EndpointFormat;
use crate::issue::Issue;
use crate::object::JsonObject;
use crate::request::InspectedBody;

const MESSAGE: FieldNames = &[
    ("setup", "setup"),
    ("clientContent", "client_content"),
    ("realtimeInput", "realtime_input"),
    ("toolResponse", "tool_response"),
];
const SETUP: FieldNames = &[
    ("model", "model"),
    ("generationConfig", "generation_config"),
    ("sessionResumption", "session_resumption"),
    ("tools", "tools"),
];
const MEDIA: FieldNames = &[("mimeType", "mime_type"), ("data", "data")];
const RESUMPTION: FieldNames = &[("handle", "handle")];
const REALTIME: FieldNames =
    &[("mediaChunks", "media_chunks"), ("audio", "audio"), ("video", "video"), ("text", "text")];

/// The issue of a session that the operator's account stores.
const STORED_SESSION: &str = "is a session that is stored at the provider, which is not possible with the managed key; \
                              begin a new one, or use your own provider key";

/// More than the tokens of a picture at the highest resolution.
const TOKENS_PER_PICTURE: u64 = 1_200;
/// The highest rate of samples that sound has.
const HIGHEST_RATE: u64 = 48_000;
/// The least bytes of a second of compressed sound.
const COMPRESSED: u64 = 1_000;
/// The bytes of a second of samples of 16 bits, at the usual rate.
const LINEAR: u64 = 32_000;

/// Reads a message of a client. `has_begun` says that there was a setup. `checks_stored` refuses what the provider stores.
pub(super) fn client_message(
    text: &[u8],
    endpoint: &EndpointFormat,
    has_begun: bool,
    checks_stored: bool,
) -> Result<ClientMessage, Vec<Issue>> {
    let fields = Fields::of_message(text, MESSAGE)?;
    let mut message = ClientMessage::default();
    if has_begun && fields.get("setup").is_some() {
        return Err(vec![Issue::at(["setup"], "must be in the first message alone")]);
    }
    if let Some(setup) = fields.get("setup") {
        let read = fields.within(&[], "setup", SETUP)?;
        let resumption = read.within(&["setup"], "sessionResumption", RESUMPTION)?;
        if checks_stored && resumption.text("handle").is_some_and(|handle| !handle.is_empty()) {
            let path = ["setup", "sessionResumption", "handle"];
            return Err(vec![Issue::at(path, STORED_SESSION)]);
        }
        message.settings = Some(settings(setup, &read, endpoint, checks_stored)?);
        message.input.bytes = text_length(setup);
    }
    for name in ["clientContent", "toolResponse"] {
        if let Some(value) = fields.get(name) {
            check_content(name, value, endpoint, checks_stored)?;
            message.role = ClientRole::Adds;
            message.input.bytes = message.input.bytes.saturating_add(text_length(value));
        }
    }
    if fields.get("realtimeInput").is_some() {
        message.role = ClientRole::Adds;
        let input = fields.within(&[], "realtimeInput", REALTIME)?;
        let text = input.get("text").map_or(0, text_length);
        message.input.bytes = message.input.bytes.saturating_add(text);
        let chunks = list_of(input.get("mediaChunks")).into_iter();
        for media in chunks.chain(input.get("audio")).chain(input.get("video")) {
            message.input.add_media(&Fields::of_value(media, MEDIA)?);
        }
    }
    Ok(message)
}

/// The settings of the message that begins a session.
fn settings(
    setup: &RawValue,
    read: &Fields<'_>,
    endpoint: &EndpointFormat,
    checks_stored: bool,
) -> Result<SettingsChange, Vec<Issue>> {
    let Some(model) = read.text("model").map(Cow::into_owned) else {
        return Err(vec![Issue::at(["setup", "model"], "is required")]);
    };
    if read.get("tools").is_some_and(|tools| !tools.get().starts_with('[')) {
        return Err(vec![Issue::at(["setup", "tools"], "must be a list")]);
    }
    let within = |issue: Issue| Issue {
        path: std::iter::once("setup".to_owned()).chain(issue.path).collect(),
        message: issue.message,
    };
    let mut body = InspectedBody::inspect(setup.get().as_bytes(), endpoint, checks_stored)
        .map_err(|issues| issues.into_iter().map(within).collect::<Vec<_>>())?;
    if read.get("sessionResumption").is_some_and(|resumption| resumption.get().contains("handle")) {
        body.leave_open(&["setup", "sessionResumption"]);
    }
    let model = model.strip_prefix("models/").map(str::to_owned).unwrap_or(model);
    Ok(SettingsChange {
        model: Some(model),
        makes_responses: Some(true),
        begins_responses: Some(true),
        body: Some(Box::new(body)),
        ..SettingsChange::default()
    })
}

/// Checks content for what the provider stores, as that of a call by HTTP.
fn check_content(
    name: &str,
    value: &RawValue,
    endpoint: &EndpointFormat,
    checks_stored: bool,
) -> Result<(), Vec<Issue>> {
    let body = format!(r#"{{"model":"m","contents":{}}}"#, value.get());
    let within = |issue: Issue| Issue {
        path: std::iter::once(name.to_owned()).chain(issue.path.into_iter().skip(1)).collect(),
        message: issue.message,
    };
    match InspectedBody::inspect(body.as_bytes(), endpoint, checks_stored) {
        Ok(_) => Ok(()),
        Err(issues) => Err(issues.into_iter().map(within).collect()),
    }
}

/// The items of a list, or the only one in its place.
fn list_of(value: Option<&RawValue>) -> Vec<&RawValue> {
    match value {
        Some(one) if !one.get().starts_with('[') => vec![one],
        list => items(list),
    }
}

impl AddedInput {
    /// Adds a piece of sound, or a picture.
    fn add_media(&mut self, media: &Fields<'_>) {
        let kind = media.text("mimeType").unwrap_or_default().to_ascii_lowercase();
        let length = media.get("data").map_or(0, text_length);
        if !kind.starts_with("audio/") {
            self.bytes = self.bytes.saturating_add(TOKENS_PER_PICTURE);
            // What has no type may be sound as well.
            if !kind.is_empty() {
                return;
            }
        }
        let rate =
            kind.split("rate=").nth(1).and_then(|rate| rate.split(';').next()?.trim().parse().ok());
        let is_linear = kind.is_empty() || kind.starts_with("audio/pcm");
        let per_second = match (is_linear, rate) {
            (true, Some(rate)) => HIGHEST_RATE.min(rate).max(1).saturating_mul(2),
            (true, None) => LINEAR,
            (false, _) => COMPRESSED,
        };
        self.sound = self.sound.saturating_add(length);
        self.bytes_per_second =
            Some(self.bytes_per_second.map_or(per_second, |all| all.min(per_second)));
    }
}

/// The turns of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    is_open: bool,
    /// Whether the open turn is complete, except for its usage.
    is_complete: bool,
    /// Whether the last turn was interrupted and has ended, so that its completion is still to come.
    was_interrupted: bool,
    /// Whether a turn without content is complete, except for its usage.
    is_silent: bool,
    /// Whether the last content of the open turn is the call of a tool, whose result begins another one.
    has_called: bool,
}

impl Turns {
    /// Whether the open turn is complete, except for its usage.
    pub(super) const fn waits_for_usage(&self) -> bool {
        self.is_open && self.is_complete
    }

    /// Ends the open turn without its usage.
    pub(super) fn give_up(&mut self) {
        *self = Self { was_interrupted: self.was_interrupted, ..Self::default() };
    }

    /// Reads a message of the provider, which may state several facts.
    pub(super) fn read(&mut self, text: &[u8]) -> Vec<ProviderFact> {
        let Some(message) = JsonObject::of(text) else { return vec![ProviderFact::Other] };
        if message.has("setupComplete") {
            return vec![ProviderFact::Settings];
        }
        let content = message.object("serverContent");
        let says = |name: &str| content.as_ref().is_some_and(|content| content.has(name));
        let is_set = |name: &str| {
            let flag = content.as_ref().and_then(|content| content.get(name));
            flag.is_some_and(|flag| flag.get() == "true")
        };
        let begins = says("modelTurn") || says("outputTranscription") || message.has("toolCall");
        let is_completed = is_set("turnComplete");
        let ends = is_completed || is_set("interrupted");
        let reports = message.has("usageMetadata");
        let mut facts = Vec::new();
        if begins && self.waits_for_usage() {
            facts.push(ProviderFact::EndedBefore);
            self.give_up();
        }
        if begins && !self.is_open {
            facts.push(ProviderFact::Begun);
            *self = Self { is_open: true, ..Self::default() };
        }
        if !self.is_open {
            match is_completed && std::mem::take(&mut self.was_interrupted) {
                true => {}
                false => self.is_silent |= ends,
            }
            if reports && std::mem::take(&mut self.is_silent) {
                return vec![ProviderFact::Begun, ProviderFact::Ended];
            }
            return vec![ProviderFact::Other];
        }
        self.is_complete |= ends;
        if begins {
            self.has_called = message.has("toolCall");
        }
        // The model waits for the result of a tool, and has used what it reports.
        if (self.is_complete || self.has_called) && reports {
            *self = Self { was_interrupted: ends && !is_completed, ..Self::default() };
            facts.push(ProviderFact::Ended);
        } else if facts.last() != Some(&ProviderFact::Begun) {
            facts.push(ProviderFact::Other);
        }
        facts
    }
}

/// The messages of the facts of one message.
pub(super) fn messages(facts: Vec<ProviderFact>) -> Vec<ProviderMessage> {
    facts.into_iter().map(ProviderMessage::of).collect()
}
