//! What the meter says of an answer: of each piece, and in the end.

use bytes::Bytes;
use tollgate_domain::UsageSource;
use tollgate_pricing::{Part, Usage};

/// What to do with the bytes of one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// May go to the client now. It may be empty, and it may begin with bytes of earlier pieces.
    pub pass: Bytes,
    /// Must wait until the call is settled: bytes from the first one of the event that ends the
    /// stream on. Once something is held, all that follows is, until [`ResponseMeter::done`](super::ResponseMeter::done).
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
