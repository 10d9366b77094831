//! The messages of OpenAI's Realtime API, in its current form and the earlier one.
//!
//! The client asks for a response by `response.create`. With `turn_detection`, the provider also begins one by itself when
//! the speaker has ended. Each ends with `response.done`, which reports its usage. Input may be transcribed by a model of
//! its own, with a usage of its own. An `error` refuses one message of the client and ends nothing.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::fields::{FieldNames, Fields, items, text_length};
use super::message::{
    AddedInput, ClientMessage, ClientRole, MaxOutput, ProviderFact, ProviderMessage, SettingsChange,
};
use crate::issue::Issue;
use crate::number::count;
use crate::object::JsonObject;

const MESSAGE: FieldNames = &[
    ("type", "type"),
    ("event_id", "event_id"),
    ("session", "session"),
    ("response", "response"),
    ("item", "item"),
    ("audio", "audio"),
];
const SESSION: FieldNames = &[
    ("model", "model"),
    ("type", "type"),
    ("prompt", "prompt"),
    ("instructions", "instructions"),
    ("tools", "tools"),
    ("turn_detection", "turn_detection"),
    ("max_output_tokens", "max_response_output_tokens"),
    ("audio", "audio"),
    ("input_audio_format", "input_audio_format"),
    ("input_audio_transcription", "input_audio_transcription"),
];
const AUDIO: FieldNames = &[("input", "input")];
const AUDIO_INPUT: FieldNames = &[
    ("format", "format"),
    ("transcription", "transcription"),
    ("turn_detection", "turn_detection"),
];
const FORMAT: FieldNames = &[("type", "type"), ("rate", "rate")];
const TRANSCRIPTION: FieldNames = &[("model", "model")];
const RESPONSE: FieldNames = &[
    ("prompt", "prompt"),
    ("tools", "tools"),
    ("conversation", "conversation"),
    ("input", "input"),
    ("max_output_tokens", "max_response_output_tokens"),
];

/// The issue of another model.
const OTHER_MODEL: &str =
    "cannot be another one than that of the URL; open a socket for each model";

/// The issue of a prompt that the operator's account stores.
const STORED_PROMPT: &str = "is stored at the provider, which is not possible with the managed key; \
                             send it as instructions, or use your own provider key";

/// More than the tokens of a picture, however small its address is.
const TOKENS_PER_PICTURE: u64 = 4_096;

/// The bytes of a second of sound: of samples of 16 bits, and of the formats of telephones.
const LINEAR: u64 = 48_000;
const COMPANDED: u64 = 8_000;

/// Reads a message of a client in a conversation with this model. `checks_stored` refuses what the provider stores.
pub(super) fn client_message(
    text: &[u8],
    model: Option<&str>,
    checks_stored: bool,
) -> Result<ClientMessage, Vec<Issue>> {
    let fields = Fields::of_message(text, MESSAGE)?;
    let Some(kind) = fields.only_text("type")? else {
        return Err(vec![Issue::at(["type"], "is required")]);
    };
    let event_id = fields.only_text("event_id")?.map(Cow::into_owned);
    let message = ClientMessage { event_id, ..ClientMessage::default() };
    let adds = |input| ClientMessage { role: ClientRole::Adds, input, ..message.clone() };
    Ok(match &*kind {
        "input_audio_buffer.append" => adds(AddedInput {
            sound: fields.get("audio").map_or(0, text_length),
            ..AddedInput::default()
        }),
        "input_audio_buffer.commit" => adds(AddedInput::default()),
        "conversation.item.create" => adds(fields.get("item").map(item_input).unwrap_or_default()),
        "session.update" | "transcription_session.update" => {
            let session = fields.within(&[], "session", SESSION)?;
            check_prompt(&session, "session", checks_stored)?;
            if session.text("model").is_some_and(|stated| model.is_some_and(|own| own != stated)) {
                return Err(vec![Issue::at(["session", "model"], OTHER_MODEL)]);
            }
            ClientMessage {
                settings: Some(settings(&session)?),
                input: AddedInput {
                    bytes: fields.get("session").map_or(0, text_length),
                    ..AddedInput::default()
                },
                ..message
            }
        }
        "response.create" => {
            let response = fields.within(&[], "response", RESPONSE)?;
            check_prompt(&response, "response", checks_stored)?;
            ClientMessage {
                role: ClientRole::Asks,
                input: fields.get("response").map(response_input).unwrap_or_default(),
                max_output: max_output(&response),
                // One with an input of its own has nothing of the conversation.
                is_apart: response.text("conversation").as_deref() == Some("none")
                    || response.get("input").is_some(),
                is_open_ended: is_open_ended(&response),
                ..message
            }
        }
        "response.cancel"
        | "input_audio_buffer.clear"
        | "output_audio_buffer.clear"
        | "conversation.item.truncate"
        | "conversation.item.delete"
        | "conversation.item.retrieve" => message,
        // A newer one.
        _ => adds(AddedInput {
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            ..AddedInput::default()
        }),
    })
}

fn check_prompt(fields: &Fields<'_>, name: &str, is_checked: bool) -> Result<(), Vec<Issue>> {
    match fields.get("prompt").filter(|_| is_checked) {
        Some(_) => Err(vec![Issue::at([name, "prompt"], STORED_PROMPT)]),
        None => Ok(()),
    }
}

/// The settings that a session states.
fn settings(session: &Fields<'_>) -> Result<SettingsChange, Vec<Issue>> {
    let audio = session.within(&["session"], "audio", AUDIO)?;
    let input = audio.within(&["session", "audio"], "input", AUDIO_INPUT)?;
    let path = ["session", "audio", "input"];
    let format = input.within(&path, "format", FORMAT)?;
    let stated = |name, earlier| input.stated(name).or_else(|| session.stated(earlier));
    let transcribes = stated("transcription", "input_audio_transcription");
    let transcription = match input.stated("transcription") {
        Some(_) => input.within(&path, "transcription", TRANSCRIPTION)?,
        None => session.within(&["session"], "input_audio_transcription", TRANSCRIPTION)?,
    };
    let detection = stated("turn_detection", "turn_detection");
    let bytes_per_second = match format.text("type").or_else(|| session.text("input_audio_format"))
    {
        Some(kind) if matches!(&*kind, "audio/pcm" | "pcm16") => Some(LINEAR),
        Some(_) => Some(COMPANDED),
        None => None,
    };
    Ok(SettingsChange {
        model: session.text("model").map(Cow::into_owned),
        makes_responses: session.text("type").map(|kind| kind != "transcription"),
        begins_responses: detection.map(|detection| detection.get() != "null"),
        max_output: max_output(session),
        transcription: transcribes.map(|value| {
            let model = transcription.text("model").map(Cow::into_owned);
            (value.get() != "null").then(|| model.unwrap_or_default())
        }),
        bytes_per_second,
        is_open_ended: is_open_ended(session),
        prompt_bytes: ["instructions", "tools"]
            .into_iter()
            .filter_map(|name| session.get(name))
            .fold(0, |sum: u64, value| sum.saturating_add(text_length(value))),
        ..SettingsChange::default()
    })
}

/// The stated maximum. What is no number is none, `inf`, or refused by the provider.
fn max_output(fields: &Fields<'_>) -> Option<MaxOutput> {
    let stated = fields.stated("max_output_tokens")?;
    Some(count(stated.get()).map_or(MaxOutput::Unlimited, MaxOutput::Tokens))
}

/// Whether the stated tools have one that runs at the provider, or a prompt is stored there: each may add input without a
/// bound.
fn is_open_ended(fields: &Fields<'_>) -> Option<bool> {
    if fields.get("prompt").is_some() {
        return Some(true);
    }
    let tools = items(Some(fields.get("tools")?));
    let is_own = |tool: &&RawValue| {
        let kind = JsonObject::in_value(tool).and_then(|tool| tool.text("type"));
        kind.as_deref() == Some("function")
    };
    Some(!tools.iter().all(is_own))
}

/// The input in the settings of a response.
fn response_input(response: &RawValue) -> AddedInput {
    let bytes = AddedInput { bytes: text_length(response), ..AddedInput::default() };
    let Some(fields) = JsonObject::in_value(response) else { return bytes };
    let sounds = items(fields.get("input")).into_iter().map(|item| item_input(item).sound);
    bytes.with_sound(sounds.fold(0, u64::saturating_add))
}

/// The input in an item of a conversation.
fn item_input(item: &RawValue) -> AddedInput {
    let bytes = AddedInput { bytes: text_length(item), ..AddedInput::default() };
    let Some(fields) = JsonObject::in_value(item) else { return bytes };
    let mut input = bytes;
    for part in items(fields.get("content")).into_iter().filter_map(JsonObject::in_value) {
        let sound = part.get("audio").map_or(0, text_length);
        input = input.with_sound(input.sound.saturating_add(sound));
        if part.text("type").as_deref() == Some("input_image") {
            input.bytes = input.bytes.saturating_add(TOKENS_PER_PICTURE);
        }
    }
    input
}

impl AddedInput {
    /// The same input, of which this part is sound.
    fn with_sound(self, sound: u64) -> Self {
        let more = sound.saturating_sub(self.sound);
        Self { bytes: self.bytes.saturating_sub(more), sound, ..self }
    }
}

/// The message of an error. Its own id has that of the refusal.
pub(super) fn error_message(
    status: u16,
    error: &RawValue,
    refused: Option<&ClientMessage>,
) -> Option<String> {
    let mut error: Map<String, Value> = serde_json::from_str(error.get()).ok()?;
    let refusal_id = error.get("refusal_id").and_then(Value::as_str).unwrap_or_default();
    let event_id = format!("event_{refusal_id}");
    let refused = refused.and_then(|refused| refused.event_id.clone());
    error.insert("event_id".to_owned(), refused.into());
    let message = json!({"type": "error", "event_id": event_id, "status": status, "error": error});
    Some(message.to_string())
}

/// Reads a message of the provider.
pub(super) fn provider_message(text: &[u8]) -> (ProviderMessage, Option<SettingsChange>) {
    let other = |fact| (ProviderMessage::of(fact), None);
    let Some(message) = JsonObject::of(text) else { return other(ProviderFact::Unrelated) };
    let id_of_response = || message.object("response").and_then(|response| response.text("id"));
    let of_response =
        |fact, response_id| (ProviderMessage { response_id, ..ProviderMessage::of(fact) }, None);
    let is_apart = || {
        let response = message.object("response");
        response.is_some_and(|response| {
            let mut members = response.members();
            members.any(|(key, value)| {
                key == "conversation_id" && value.is_some_and(|value| value.get() == "null")
            })
        })
    };
    match message.text("type").as_deref() {
        Some("response.created") => of_response(ProviderFact::Begun, id_of_response()),
        Some("response.done") => {
            let (done, _) = of_response(ProviderFact::Ended, id_of_response());
            (ProviderMessage { is_apart: is_apart(), ..done }, None)
        }
        Some("input_audio_buffer.committed") => other(ProviderFact::Committed),
        Some("conversation.item.input_audio_transcription.completed") => {
            other(ProviderFact::Transcribed)
        }
        Some("conversation.item.input_audio_transcription.failed") => {
            other(ProviderFact::NotTranscribed)
        }
        Some("error") => {
            let error = message.object("error");
            let event_id = error.as_ref().and_then(|error| error.text("event_id"));
            let code = error.as_ref().and_then(|error| error.text("code")).unwrap_or_default();
            let is_of_response = OF_OTHERS.iter().all(|start| !code.starts_with(start));
            match event_id.is_some() || is_of_response {
                true => other(ProviderFact::Refused { event_id }),
                false => other(ProviderFact::Unrelated),
            }
        }
        Some(
            "session.created"
            | "session.updated"
            | "transcription_session.created"
            | "transcription_session.updated",
        ) => {
            let session = Fields::of_message(text, MESSAGE)
                .and_then(|message| message.within(&[], "session", SESSION))
                .and_then(|session| settings(&session));
            (ProviderMessage::of(ProviderFact::Settings), session.ok())
        }
        _ => match message.text("response_id") {
            Some(id) => of_response(ProviderFact::Other, Some(id)),
            None => other(ProviderFact::Unrelated),
        },
    }
}

/// The starts of the codes of errors about messages that ask for no response.
const OF_OTHERS: [&str; 5] =
    ["input_audio_buffer", "item_", "session_", "response_cancel", "cannot_update_voice"];
