//! Messages of sockets, as far as they matter for calls.

use crate::request::InspectedBody;

/// A message from the client.
#[derive(Clone, Debug, Default)]
pub struct ClientMessage {
    /// The kind of the message.
    pub role: ClientRole,
    /// The stream that it belongs to.
    pub lane: Lane,
    /// Whether it begins a session that is a call of its own.
    pub begins_session: bool,
    /// The client's id of the message, to which an error of the provider refers.
    pub event_id: Option<String>,
    /// The addition to the input of responses.
    pub(super) input: AddedInput,
    /// The most tokens of the response that it asks for. `None` if it states none.
    pub(super) max_output: Option<MaxOutput>,
    /// Whether the response that it asks for is no part of the conversation.
    pub is_apart: bool,
    /// Whether the tools of the response that it asks for, or things that the provider stores, let it use more than the
    /// messages say. `None` if it states neither.
    pub(super) is_open_ended: Option<bool>,
    /// The settings of the session that it changes.
    pub(super) settings: Option<SettingsChange>,
}

/// The kind of a message of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientRole {
    /// It asks for a response.
    Asks,
    /// It adds input. The provider may begin a response by itself because of it.
    Adds,
    /// Neither.
    #[default]
    Other,
}

/// The stream of a multiplexed socket that a message belongs to; `None` where there is only one.
pub type Lane = Option<String>;

/// Input of a message, before its tokens are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AddedInput {
    /// Bytes of anything but sound.
    pub(super) bytes: u64,
    /// The bytes of sound as base64.
    pub(super) sound: u64,
    /// The bytes of sound in a second, if the message states it.
    pub(super) bytes_per_second: Option<u64>,
}

/// The most tokens of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaxOutput {
    /// As many as the model can make.
    Unlimited,
    /// At most this number.
    Tokens(u64),
}

impl MaxOutput {
    /// The larger one.
    pub(super) fn or_more(self, other: Self) -> Self {
        match (self, other) {
            (Self::Tokens(one), Self::Tokens(other)) => Self::Tokens(one.max(other)),
            _ => Self::Unlimited,
        }
    }

    pub(super) fn tokens(self) -> Option<u64> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Unlimited => None,
        }
    }
}

/// A change of the settings of a session. `None` leaves one as it is.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingsChange {
    /// The model of a session that is a call of its own.
    pub(super) session_model: Option<String>,
    pub(super) model: Option<String>,
    /// Whether it makes responses at all. A session may be for transcription alone.
    pub(super) makes_responses: Option<bool>,
    /// Whether the provider begins responses by itself.
    pub(super) begins_responses: Option<bool>,
    pub(super) max_output: Option<MaxOutput>,
    /// The model that transcribes the input; `None` in it for none.
    pub(super) transcription: Option<Option<String>>,
    /// The bytes of a second of the sound that is sent.
    pub(super) bytes_per_second: Option<u64>,
    /// Whether its tools, or things that the provider stores, let it use more than the messages say.
    pub(super) is_open_ended: Option<bool>,
    /// The bytes of its instructions and tools, as the provider states them.
    pub(super) prompt_bytes: u64,
    /// The facts of a message that begins the session, as those of a body.
    pub(super) body: Option<Box<InspectedBody>>,
}

/// A message from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderMessage {
    /// The stream that it belongs to.
    pub lane: Lane,
    /// Whether it is about a session that is a call of its own, and not about a response.
    pub of_session: bool,
    /// The provider's id of the response or the session that it shows.
    pub response_id: Option<String>,
    /// Whether it says that the response is no part of the conversation.
    pub is_apart: bool,
    /// The fact that it states.
    pub fact: ProviderFact,
}

impl ProviderMessage {
    /// A message that states a fact, of no stream and of a response without an id.
    pub const fn of(fact: ProviderFact) -> Self {
        Self { lane: None, of_session: false, response_id: None, is_apart: false, fact }
    }
}

/// The fact that a message from the provider states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderFact {
    /// A response has begun.
    Begun,
    /// A response has ended, with its usage.
    Ended,
    /// A response had ended before the message.
    EndedBefore,
    /// An error, in place of a response or in the middle of one.
    Failed {
        /// The status that the call would have had over HTTP, if it is stated.
        status: Option<u16>,
    },
    /// A message of the client was refused. A response that was asked for by it does not come.
    Refused {
        /// The client's id of the message, if it is known.
        event_id: Option<String>,
    },
    /// Input is complete, and may be transcribed.
    Committed,
    /// Input was transcribed, with its usage.
    Transcribed,
    /// Input could not be transcribed.
    NotTranscribed,
    /// The session has begun, or its settings have changed.
    Settings,
    /// Another one about a response.
    Other,
    /// Another one about no response.
    Unrelated,
}
