//! What a call used, read from the answer while it passes.
//!
//! [`ResponseMeter`] is fed every piece of a body as it comes. It says what may go to the client at
//! once and what waits for the settlement, keeps bounded memory, never changes a byte it was not
//! told to remove, and in the end gives a [`Reading`] that is honest about where its figures come
//! from.

mod anthropic;
mod bedrock;
mod cohere;
mod decode;
mod deepgram;
mod elevenlabs;
mod estimate;
mod events;
mod excerpt;
mod extractor;
mod frames;
mod google;
mod json;
mod kept;
mod meter;
mod objects;
mod openai;

use bytes::Bytes;
use tollgate_domain::UsageSource;
use tollgate_pricing::{Amount, Part, PerUnit, Usage};

pub use self::estimate::estimate_input;
pub use self::kept::AnswerMemory;
pub use self::meter::ResponseMeter;

/// What to do with the bytes of one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// May go to the client now. It may be empty, and it may begin with bytes of earlier pieces.
    pub pass: Bytes,
    /// Must wait until the call is settled: bytes from the first one of the event that ends the
    /// stream on. Once something is held, all that follows is, until [`ResponseMeter::done`].
    pub held: Option<Bytes>,
}

/// How reading the provider's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The provider sent all it had.
    Complete,
    /// The provider broke off, or was silent for too long.
    Broken,
    /// We stopped reading.
    Left,
}

/// What an answer came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is to be priced.
    pub usage: Usage,
    /// Where it comes from.
    pub source: UsageSource,
    /// The model that served the call, by its own name.
    pub model: Option<String>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The provider's own time of the answer, in seconds since 1970.
    pub created_unix_s: Option<i64>,
    /// How the call was served, where that is not the provider's standard: `priority`, `flex`.
    pub tiers: Vec<String>,
    /// What each model used, where several served the call.
    pub parts: Vec<Part>,
    /// The parts of the usage do not come to the total that the provider states beside them.
    pub total_differs: bool,
    /// The provider answered 2xx and then reported an error, in an event or as the body.
    pub provider_error: bool,
    /// The event that ends the stream, or the end of a body, was seen.
    pub complete: bool,
    /// The client's last bytes: what was kept back because the stream ended before it could be
    /// told whether it is the end. Empty unless the stream was cut within a line.
    pub rest: Bytes,
}

/// How many models of one call are told apart.
const MAX_PARTS: usize = 32;

/// What an answer says of itself besides its usage.
#[derive(Clone, Debug, Default)]
struct Facts {
    model: Option<String>,
    response_id: Option<String>,
    created_unix_s: Option<i64>,
    /// The provider's word for the tier that served it.
    service_tier: Option<String>,
    /// What else multiplies its prices: `fast`, `us`.
    modes: Vec<String>,
    provider_error: bool,
}

/// What was found in an answer, in disjoint quantities. A side that was not reported, or not
/// readably, is `None`.
#[derive(Clone, Debug, Default)]
struct Found {
    /// Tokens of the prompt.
    input: Option<PerUnit<u64>>,
    /// Tokens of the answer.
    output: Option<PerUnit<u64>>,
    /// What is no token: searches, seconds, characters, images, pages.
    others: PerUnit<u64>,
    /// What each model used, where several served the call.
    parts: Vec<Part>,
    /// The provider's own figure for the cost.
    cost: Option<Amount>,
    /// The parts do not come to the total that is stated beside them.
    total_differs: bool,
    /// Both sides are reported and nothing can be added any more.
    is_final: bool,
    facts: Facts,
    /// The text that passed, for an estimate.
    text_bytes: u64,
}

/// What all parts come to: input and output.
fn sides(parts: &[Part]) -> (PerUnit<u64>, PerUnit<u64>) {
    let add = |all: PerUnit<u64>, part: &Part| PerUnit::sum(&all, &part.quantities);
    let all = parts.iter().fold(PerUnit::default(), add);
    (all.inputs(), all.outputs())
}

/// What an event is to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    /// Something it expects.
    Content,
    /// The extra event that `include_usage` brings: usage and no choices. An event with neither is
    /// not one, though its choices are empty too.
    UsageOnly,
}
