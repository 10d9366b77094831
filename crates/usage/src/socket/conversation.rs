//! The conversation on a socket: what its messages mean, and the most that its next response can use.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::AddAssign;

use serde_json::value::RawValue;

use super::live::{self, Turns};
use super::message::{
    AddedInput, ClientMessage, MaxOutput, ProviderFact, ProviderMessage, SettingsChange,
};
use super::{gpt_live, realtime, responses};
use crate::dialect::Api;
use crate::endpoint::EndpointFormat;
use crate::issue::Issue;
use crate::object::JsonObject;
use crate::request::InspectedBody;

/// A conversation on a socket.
///
/// A message of Responses has all of its input. On the other sockets a response has all that was sent before as its
/// input, so the conversation counts it.
#[derive(Clone, Debug)]
pub struct Conversation {
    protocol: Protocol,
    endpoint: EndpointFormat,
    checks_stored: bool,
    /// The facts that all responses share.
    body: InspectedBody,
    /// The model of the session, once it is asked for, where the session is a call of its own.
    session_model: Option<String>,
    /// The time of that session as it was reported last, in microseconds.
    session_micros: u64,
    /// The id of the message that begins the session, as long as it is the only one that was sent.
    only_sent: Option<Option<String>>,
    /// The settings that the provider has stated, and those that it has not.
    stated: SessionSettings,
    asked: SessionSettings,
    /// The changes of the client that the provider has not stated yet.
    changes: u32,
    /// The input so far.
    input: SocketInput,
    /// The tokens of the last response with all that came before it, and the input until then.
    context_tokens: u64,
    context_until: SocketInput,
    /// The input until the last transcription and the one before it. A later part may have been in the former.
    transcribed: [SocketInput; 2],
    /// The models that transcribe the parts of the input that are complete, in their order.
    transcribers: VecDeque<String>,
    /// Whether the provider has stated the settings.
    has_begun: bool,
    /// Hashes of the ids of the last messages of the client.
    event_ids: VecDeque<u64>,
}

#[derive(Clone, Debug)]
enum Protocol {
    Responses,
    Realtime,
    Live(Turns),
    GptLive,
}

/// An amount of input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketInput {
    /// Bytes of anything but sound, which are at most this number of tokens.
    pub bytes: u64,
    /// Microseconds of sound.
    pub micros: u64,
}

impl AddAssign for SocketInput {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.micros = self.micros.saturating_add(other.micros);
    }
}

impl SocketInput {
    /// The input that the money for a response of the provider is held for, beyond what was sent.
    pub const AHEAD: Self = Self { bytes: 200, micros: 30 * MICROS_PER_SECOND };

    /// The sum.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self += other;
        self
    }

    /// Whether it is no more than `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.bytes <= other.bytes && self.micros <= other.micros
    }

    const fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            micros: self.micros.saturating_sub(before.micros),
        }
    }
}

/// The settings of a session.
#[derive(Clone, Debug, Default)]
struct SessionSettings {
    begins_responses: bool,
    max_output: Option<MaxOutput>,
    transcription: Option<String>,
    is_open_ended: bool,
    bytes_per_second: Option<u64>,
}

const MICROS_PER_SECOND: u64 = 1_000_000;
/// The most tokens that a provider adds around the input of a response.
const TOKENS_AROUND: u64 = 100;
/// The most ids of messages that are remembered.
const MOST_EVENT_IDS: usize = 1_024;
/// The most parts of the input whose transcription is waited for.
const MOST_TRANSCRIBERS: usize = 256;
/// The issue of an id that an earlier message has.
const REPEATED_ID: &str = "must differ from the ids of earlier messages: an error of the provider names its message by it";
/// The least bytes of a second of sound whose format is not known.
const LEAST_BYTES_PER_SECOND: u64 = 8_000;

impl Conversation {
    /// The message that ends a session which is a call of its own. The provider answers it with the usage.
    pub const FAREWELL: &'static str = gpt_live::CLOSE;

    /// The conversation on a socket of an endpoint. `managed` says that the operator's key is used.
    pub fn of(endpoint: &EndpointFormat, managed: bool) -> Self {
        let protocol = match endpoint.api() {
            Api::Realtime => Protocol::Realtime,
            Api::Live => Protocol::Live(Turns::default()),
            Api::GptLive => Protocol::GptLive,
            _ => Protocol::Responses,
        };
        Self {
            protocol,
            checks_stored: managed && !endpoint.provider.allow_stored_state,
            endpoint: endpoint.clone(),
            body: InspectedBody::of_socket(endpoint.named_model()),
            session_model: None,
            session_micros: 0,
            only_sent: None,
            stated: SessionSettings::default(),
            asked: SessionSettings::default(),
            changes: 0,
            input: SocketInput::default(),
            context_tokens: 0,
            context_until: SocketInput::default(),
            transcribed: [SocketInput::default(); 2],
            transcribers: VecDeque::new(),
            has_begun: false,
            event_ids: VecDeque::new(),
        }
    }

    /// Whether each message of the client is the whole body of a call.
    pub const fn has_whole_bodies(&self) -> bool {
        matches!(self.protocol, Protocol::Responses)
    }

    /// Whether messages may be binary.
    pub const fn takes_binary(&self) -> bool {
        matches!(self.protocol, Protocol::Live(_))
    }

    /// Reads a message of the client.
    ///
    /// # Errors
    /// The issues of a message that is not sent on.
    pub fn client_message(&self, text: &[u8]) -> Result<ClientMessage, Vec<Issue>> {
        match self.protocol {
            Protocol::Responses => responses::client_message(text),
            Protocol::Realtime => {
                let model = self.body.model.as_deref();
                let message = realtime::client_message(text, model, self.checks_stored)?;
                self.with_new_id(message)
            }
            Protocol::Live(_) => {
                let has_begun = self.body.model.is_some();
                live::client_message(text, &self.endpoint, has_begun, self.checks_stored)
            }
            Protocol::GptLive => {
                let state = gpt_live::SessionState {
                    has_begun: self.session_model.is_some(),
                    delegates: self.stated.begins_responses,
                };
                let message =
                    gpt_live::client_message(text, &self.endpoint, state, self.checks_stored)?;
                self.with_new_id(message)
            }
        }
    }

    /// The message, if no earlier one has its id.
    fn with_new_id(&self, message: ClientMessage) -> Result<ClientMessage, Vec<Issue>> {
        let id = message.event_id.as_deref().map(hash_of);
        match id.is_some_and(|id| self.event_ids.contains(&id)) {
            true => Err(vec![Issue::at(["event_id"], REPEATED_ID)]),
            false => Ok(message),
        }
    }

    /// The fields by which a client knows a message of its own, as far as they can be read, for the answer to one that
    /// is not sent on.
    pub fn unread_message(&self, text: &[u8]) -> ClientMessage {
        let fields = JsonObject::of(text);
        let text = |name: &str| fields.as_ref().and_then(|fields| fields.text(name));
        match self.protocol {
            Protocol::Responses => {
                ClientMessage { lane: text("stream_id"), ..ClientMessage::default() }
            }
            _ => ClientMessage { event_id: text("event_id"), ..ClientMessage::default() },
        }
    }

    /// Reads a message of the provider, which may state several facts.
    pub fn provider_messages(&mut self, text: &[u8]) -> Vec<ProviderMessage> {
        match &mut self.protocol {
            Protocol::Responses => vec![responses::provider_message(text)],
            Protocol::Realtime => {
                let (message, settings) = realtime::provider_message(text);
                if let Some(settings) = settings {
                    self.state(settings);
                }
                match message.fact {
                    ProviderFact::Committed if self.transcribers.len() < MOST_TRANSCRIBERS => {
                        self.transcribers.extend(self.stated.transcription.clone());
                    }
                    ProviderFact::NotTranscribed => drop(self.transcribers.pop_front()),
                    _ => {}
                }
                vec![message]
            }
            Protocol::Live(turns) => live::messages(turns.read(text)),
            Protocol::GptLive => {
                let mut news = gpt_live::provider_news(text);
                for message in &mut news.messages {
                    self.name_refused(message);
                }
                if let Some(settings) = news.settings {
                    self.state(settings);
                }
                self.session_micros = self.session_micros.max(news.session_micros.unwrap_or(0));
                news.messages
            }
        }
    }

    /// Finds the message that an error without an id refuses: the one that begins the session, if no other was sent.
    fn name_refused(&self, message: &mut ProviderMessage) {
        if let ProviderFact::Refused { event_id: event_id @ None } = &mut message.fact {
            match &self.only_sent {
                Some(start) => event_id.clone_from(start),
                None => message.fact = ProviderFact::Unrelated,
            }
        }
    }

    /// Whether the open response has ended, except for its usage.
    pub const fn waits_for_usage(&self) -> bool {
        match &self.protocol {
            Protocol::Live(turns) => turns.waits_for_usage(),
            Protocol::Responses | Protocol::Realtime | Protocol::GptLive => false,
        }
    }

    /// Ends the open response without its usage.
    pub fn give_up_usage(&mut self) {
        if let Protocol::Live(turns) = &mut self.protocol {
            turns.give_up();
        }
    }

    /// The part of a message of the provider that a response has as an event.
    pub fn event_of<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        match self.protocol {
            Protocol::GptLive => gpt_live::inner_event(text).unwrap_or(text),
            _ => text,
        }
    }

    /// The message by which the client learns of an error. `error` is a JSON object, as the body of an answer over HTTP
    /// has it. `refused` is the message that is refused. `None` where the provider has no such message.
    pub fn error_message(
        &self,
        status: u16,
        error: &RawValue,
        refused: Option<&ClientMessage>,
    ) -> Option<String> {
        match self.protocol {
            Protocol::Responses => Some(responses::error_message(status, error, refused)),
            Protocol::Realtime => realtime::error_message(status, error, refused),
            Protocol::Live(_) => None,
            Protocol::GptLive => gpt_live::error_message(error, refused),
        }
    }

    /// The input so far, and that of a message.
    pub fn input_with(&self, message: &ClientMessage) -> SocketInput {
        let AddedInput { bytes, sound, bytes_per_second } = message.input;
        let stated = self.stated.bytes_per_second.unwrap_or(LEAST_BYTES_PER_SECOND);
        let asked = self.asked.bytes_per_second.unwrap_or(stated);
        let per_second = bytes_per_second.unwrap_or_else(|| stated.min(asked)).max(1);
        // Base64 has four characters for three bytes.
        let micros = u128::from(sound) * 3 * u128::from(MICROS_PER_SECOND);
        let micros = micros.div_ceil(4 * u128::from(per_second));
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.input.plus(SocketInput { bytes, micros })
    }

    /// The input so far.
    pub const fn input(&self) -> SocketInput {
        self.input
    }

    /// Whether a message changes settings.
    pub const fn is_changed_by(message: &ClientMessage) -> bool {
        message.settings.is_some()
    }

    /// Takes a message that is sent on.
    pub fn sent(&mut self, message: &ClientMessage) {
        self.input = self.input_with(message);
        if let Some(id) = message.event_id.as_deref() {
            if self.event_ids.len() >= MOST_EVENT_IDS {
                self.event_ids.pop_front();
            }
            self.event_ids.push_back(hash_of(id));
        }
        self.only_sent = message.begins_session.then(|| message.event_id.clone());
        let Some(change) = message.settings.clone() else { return };
        if matches!(self.protocol, Protocol::Live(_)) || message.begins_session {
            return self.state(change);
        }
        self.changes = self.changes.saturating_add(1);
        self.asked.widen(change);
    }

    /// Takes a message that was sent on and that the provider has refused. The response that it asks for may come all the
    /// same, because an error does not always say what it is about.
    pub fn refused(&mut self, message: &ClientMessage) {
        if message.begins_session {
            // The client may ask for another one.
            (self.session_model, self.stated) = (None, SessionSettings::default());
            return;
        }
        self.asked.widen(SettingsChange {
            max_output: Some(message.max_output.unwrap_or(MaxOutput::Tokens(0))),
            is_open_ended: message.is_open_ended,
            ..SettingsChange::default()
        });
    }

    /// Takes the settings that hold from now on.
    fn state(&mut self, mut change: SettingsChange) {
        match std::mem::replace(&mut self.has_begun, true) {
            true => self.changes = self.changes.saturating_sub(1),
            // The first message of the provider answers no change.
            false => self.input.bytes = self.input.bytes.saturating_add(change.prompt_bytes),
        }
        let takes_model = self.body.model.is_none();
        if let Some(body) = change.body.take() {
            self.body = *body;
        }
        self.session_model = change.session_model.take().or(self.session_model.take());
        // The provider may state a dated name. Keys and prices know the one of the URL.
        if let (Some(model), true) = (&change.model, takes_model) {
            self.body.model = Some(model.clone());
        }
        self.stated.set(change);
        if self.changes == 0 {
            self.asked = SessionSettings::default();
        }
    }

    /// Whether the provider may begin a response by itself.
    pub const fn begins_responses(&self) -> bool {
        self.stated.begins_responses || self.asked.begins_responses
    }

    /// Whether input is transcribed by a model of its own.
    pub const fn transcribes(&self) -> bool {
        self.stated.transcription.is_some() || self.asked.transcription.is_some()
    }

    /// The time of a session that is a call of its own, as it was reported last, in microseconds.
    pub const fn session_micros(&self) -> u64 {
        self.session_micros
    }

    /// The most that a session can use that is a call of its own and lasts this number of microseconds. `message` begins it.
    pub fn session(&self, message: Option<&ClientMessage>, micros: u64) -> InspectedBody {
        let settings = message.and_then(|message| message.settings.as_ref());
        let model = settings.and_then(|settings| settings.session_model.clone());
        let mut body = InspectedBody::of_socket(model.or_else(|| self.session_model.clone()));
        body.audio_micros = micros;
        body
    }

    /// The most that a response can use whose input is all that is sent `until` then. `message` asks for it.
    /// `open_tokens` is the most output of the responses that are open, which is input as well.
    pub fn response(
        &self,
        message: Option<&ClientMessage>,
        until: SocketInput,
        open_tokens: u64,
    ) -> InspectedBody {
        let mut body = self.body.clone();
        let added = until.since(self.context_until);
        body.input_bytes = added.bytes;
        body.audio_micros = added.micros;
        let tokens = self.context_tokens.saturating_add(open_tokens);
        body.continue_from(Some(tokens.saturating_add(TOKENS_AROUND)));
        if matches!(self.protocol, Protocol::Realtime | Protocol::GptLive) {
            let of_session = self.stated.max_output.unwrap_or(MaxOutput::Unlimited);
            let of_session =
                self.asked.max_output.map_or(of_session, |asked| of_session.or_more(asked));
            let of_message = message.and_then(|message| message.max_output);
            // With voice activity, the response that begins next may be another one than the one that is asked for.
            let most = match of_message {
                Some(of_message) if self.begins_responses() => of_message.or_more(of_session),
                Some(of_message) => of_message,
                None => of_session,
            };
            body.max_output_tokens = most.tokens();
            let of_session = self.stated.is_open_ended || self.asked.is_open_ended;
            let of_message = message.and_then(|message| message.is_open_ended);
            let is_open_ended = of_message.map_or(of_session, |of_message| {
                of_message || (of_session && self.begins_responses())
            });
            if is_open_ended {
                body.leave_open(&["tools"]);
            }
        }
        body
    }

    /// The model that transcribes what the client sends now.
    pub fn transcriber(&self) -> Option<&str> {
        self.asked.transcription.as_deref().or(self.stated.transcription.as_deref())
    }

    /// The model of the transcription that has just ended.
    pub fn ended_transcriber(&mut self) -> Option<String> {
        self.transcribers.pop_front().or_else(|| self.transcriber().map(str::to_owned))
    }

    /// The most that a transcription by a model can use of all that is sent `until` then.
    pub fn transcription(&self, model: Option<&str>, until: SocketInput) -> InspectedBody {
        let mut body = InspectedBody::of_socket(model.map(str::to_owned));
        body.audio_micros = until.since(self.transcribed[0]).micros;
        body
    }

    /// Takes the end of a response of the conversation, whose input was sent `until` then. `reported` are the tokens of its
    /// input and output, and `most` is the most that they can be together.
    pub fn ended(&mut self, reported: Option<(u64, u64)>, most: u64, until: SocketInput) {
        match reported {
            // One that was cancelled before it began says nothing about the conversation.
            Some((0, _)) => {}
            Some((input, output)) => {
                (self.context_tokens, self.context_until) = (input.saturating_add(output), until);
            }
            None => self.context_tokens = self.context_tokens.max(most),
        }
    }

    /// Whether input is complete and not transcribed.
    pub fn is_transcribing(&self) -> bool {
        !self.transcribers.is_empty()
    }

    /// Takes the end of a transcription.
    pub fn transcribed(&mut self) {
        self.transcribed = [self.transcribed[1], self.input];
    }
}

impl SessionSettings {
    /// Takes the settings that hold from now on.
    fn set(&mut self, change: SettingsChange) {
        if let Some(begins) = change.begins_responses {
            self.begins_responses = begins;
        }
        if change.makes_responses == Some(false) {
            self.begins_responses = false;
        }
        self.max_output = change.max_output.or(self.max_output);
        if let Some(transcription) = change.transcription {
            self.transcription = transcription;
        }
        self.is_open_ended = change.is_open_ended.unwrap_or(self.is_open_ended);
        self.bytes_per_second = change.bytes_per_second.or(self.bytes_per_second);
    }

    /// Takes settings that may hold beside these. The ones that cost more count.
    fn widen(&mut self, change: SettingsChange) {
        let begins = change.begins_responses == Some(true) && change.makes_responses != Some(false);
        self.begins_responses |= begins;
        let outputs = [self.max_output, change.max_output].into_iter().flatten();
        self.max_output = outputs.reduce(MaxOutput::or_more);
        self.transcription = change.transcription.flatten().or(self.transcription.take());
        self.is_open_ended |= change.is_open_ended == Some(true);
        let rates = [self.bytes_per_second, change.bytes_per_second].into_iter().flatten();
        self.bytes_per_second = rates.min();
    }
}

fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
