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
];
const RESUMPTION: FieldNames = &[("handle", "handle")];
const REALTIME: FieldNames =
    &[("mediaChunks", "media_chunks"), ("audio", "audio"), ("video", "video"), ("text", "text")];

/// The issue of a session that the operator's account stores.
const STORED_SESSION: &str = "is a session that is stored at the provider, which is not possible with the managed key; \
                              begin a new one, or use your own provider key";

/// More than the tokens of a picture at the highest resolution.
const TOKENS_PER_PICTURE: u64 = 4_096;
/// The least bytes of a second of compressed sound.
const COMPRESSED: u64 = 1_000;
/// The bytes of a second of samples of 16 bits, at the usual rate.
const LINEAR: u64 = 32_000;

/// Reads a message of a client. `checks_stored` refuses what the provider stores.
pub(super) fn client_message(
    text: &[u8],
    endpoint: &EndpointFormat,
    checks_stored: bool,
) -> Result<ClientMessage, Vec<Issue>> {
    let fields = Fields::of_message(text, MESSAGE)?;
    let mut message = ClientMessage::default();
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
            message.role = ClientRole::Adds;
            message.input.bytes = message.input.bytes.saturating_add(text_length(value));
        }
    }
    if fields.get("realtimeInput").is_some() {
        message.role = ClientRole::Adds;
        let input = fields.within(&[], "realtimeInput", REALTIME)?;
        let text = input.get("text").map_or(0, text_length);
        message.input.bytes = message.input.bytes.saturating_add(text);
        let chunks = items(input.get("mediaChunks")).into_iter();
        for media in chunks.chain(input.get("audio")).chain(input.get("video")) {
            message.input.add_media(media);
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
    let within = |issue: Issue| Issue {
        path: std::iter::once("setup".to_owned()).chain(issue.path).collect(),
        message: issue.message,
    };
    let body = InspectedBody::inspect(setup.get().as_bytes(), endpoint, checks_stored)
        .map_err(|issues| issues.into_iter().map(within).collect::<Vec<_>>())?;
    let model = model.strip_prefix("models/").map(str::to_owned).unwrap_or(model);
    Ok(SettingsChange {
        model: Some(model),
        makes_responses: Some(true),
        begins_responses: Some(true),
        body: Some(Box::new(body)),
        ..SettingsChange::default()
    })
}

impl AddedInput {
    /// Adds a piece of sound, or a picture.
    fn add_media(&mut self, media: &RawValue) {
        let Some(media) = JsonObject::in_value(media) else { return };
        let kind = media.text("mimeType").or_else(|| media.text("mime_type")).unwrap_or_default();
        let length = media.get("data").map_or(0, text_length);
        let kind = kind.to_ascii_lowercase();
        if !kind.starts_with("audio/") {
            self.bytes = self.bytes.saturating_add(TOKENS_PER_PICTURE.min(length));
            return;
        }
        let rate =
            kind.split("rate=").nth(1).and_then(|rate| rate.split(';').next()?.trim().parse().ok());
        let per_second = match (kind.starts_with("audio/pcm"), rate) {
            (true, Some(rate)) => u64::max(1, rate).saturating_mul(2),
            (true, None) => LINEAR,
            (false, _) => COMPRESSED,
        };
        self.sound = self.sound.saturating_add(length);
        self.bytes_per_second =
            Some(self.bytes_per_second.map_or(per_second, |all| all.min(per_second)));
    }
}

/// The turns of the model.
#[derive(Debug, Default)]
pub(super) struct Turns {
    is_open: bool,
    /// Whether the open turn is complete, except for its usage.
    is_complete: bool,
    /// Whether the last turn was interrupted and has ended, so that its completion is still to come.
    was_interrupted: bool,
    /// Whether a turn without content is complete, except for its usage.
    is_silent: bool,
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
        if self.is_complete && reports {
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
