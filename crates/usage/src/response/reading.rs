//! The results of the meter: for each piece of an answer, and at its end.

use bytes::Bytes;
use tollgate_pricing::{PerModelUsage, Usage, UsageSource};

use super::error_words::ErrorWords;

/// The bytes of one piece that pass, and those that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeteredPiece {
    /// The bytes that may go to the client now. May be empty, and may begin with bytes of earlier
    /// pieces.
    pub pass: Bytes,
    /// The bytes that must wait until the call is recorded, from the event that ends the stream on.
    /// Once bytes are held, all that follow are, until
    /// [`ResponseMeter::done`](super::ResponseMeter::done).
    pub held: Option<Bytes>,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// A body that is no stream.
    Whole,
    /// A stream of events that is not compressed.
    Events,
    /// Another stream: of compressed events, of JSON objects, of binary frames.
    Stream,
}

/// The way in which reading the provider's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The provider sent the whole answer.
    Complete,
    /// The provider broke off, or was silent for too long.
    Broken,
    /// The caller of this crate stopped reading, for example because its client left.
    Left,
}

impl UsageReading {
    /// The reading of an error that stands in place of an answer, with the provider's words in it.
    pub fn of_error(error: &[u8]) -> Self {
        Self { error: ErrorWords::of(error), ..Self::nothing() }
    }

    /// The reading of an answer that reports nothing.
    pub fn nothing() -> Self {
        Self {
            usage: Usage::default(),
            source: UsageSource::None,
            model: None,
            response_id: None,
            created_unix_s: None,
            tiers: Vec::new(),
            parts: Vec::new(),
            total_differs: false,
            provider_error: false,
            error: None,
            object_state: None,
            expires_at: None,
            request_path: None,
            result_files: Vec::new(),
            answered_requests: None,
            samples: None,
            complete: false,
            rest: Bytes::new(),
        }
    }
}

/// The state of an object that a provider keeps, such as a response in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// The provider works on it.
    Running,
    /// It is complete, or as complete as its limits allow.
    Succeeded,
    /// The provider gave up.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// The provider did not finish it in time.
    Expired,
}

/// The usage of one answer, and the facts that price it.
///
/// `model`, `tiers`, `usage` and `parts` are the fields of `tollgate_pricing::ServedCall`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReading {
    /// The usage to be priced.
    pub usage: Usage,
    /// The source of the usage.
    pub source: UsageSource,
    /// The model that served the call, by its own name.
    pub model: Option<String>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The provider's own time of the answer, in seconds since 1970.
    pub created_unix_s: Option<i64>,
    /// The tiers that served the call, other than the provider's standard: `priority`, `flex`.
    pub tiers: Vec<String>,
    /// The usage of each model, if several served the call.
    pub parts: Vec<PerModelUsage>,
    /// Whether the sum of the parts differs from the total that the provider states.
    pub total_differs: bool,
    /// Whether the provider answered 2xx and then reported an error, in an event or as the body.
    pub provider_error: bool,
    /// The provider's words about an error, if the body of an answer with an error status has any.
    pub error: Option<ErrorWords>,
    /// The state of the object that the answer is, if it is one.
    pub object_state: Option<ObjectState>,
    /// The time at which the object expires, as the provider writes it.
    pub expires_at: Option<String>,
    /// The path of the requests of a batch, such as `/v1/chat/completions`, if its object states it.
    pub request_path: Option<String>,
    /// The provider's ids of the files with the results of the object.
    pub result_files: Vec<String>,
    /// The number of requests of a batch that were answered, if its object states it.
    pub answered_requests: Option<u64>,
    /// The number of videos that were delivered, if an object without their length states it.
    pub samples: Option<u64>,
    /// Whether the event that ends the stream, or the end of a body, was seen.
    pub complete: bool,
    /// The last bytes for the client, kept back because they might have begun the last event. Empty
    /// unless the stream was cut within a line.
    pub rest: Bytes,
}
