//! What an extractor is: what it is shown of an answer, and what it finds there.

use tollgate_pricing::{Amount, Part, PerUnit};

use super::excerpt::Excerpt;

/// Reads the answers of one kind of endpoint: pure, shown one event or one body at a time.
///
/// A new kind is a file beside this one and an arm in [`extractor`](super::formats::extractor).
pub(super) trait Extract {
    /// How the lines begin that end an event stream, in the spellings that are sent. A piece that
    /// is cut within such a line is kept back until the line is whole. Without any, a stream ends
    /// with its body.
    fn ends(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// Whether the event whose fields are known so far is the last of its stream.
    fn ends_stream(&self, _name: &[u8], _data: &[u8]) -> bool {
        false
    }

    /// Whether text can be told from what is around it. If not, all bytes count as text where they
    /// must be estimated, and no body is kept to be read.
    fn tells_text(&self) -> bool {
        true
    }

    /// The key under which the usage stands at the end of a body that is too large to be kept.
    fn usage_key(&self) -> &'static str {
        "usage"
    }

    /// Takes one event of a stream: its name, which may be empty, and its data.
    fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind;

    /// Takes an event, or an item of a stream, that was too large to be kept: of it there are only
    /// beginning and end.
    fn excerpt(&mut self, name: &[u8], excerpt: &Excerpt) {
        if let Some(usage) = excerpt.object(self.usage_key()) {
            self.event(name, usage.as_bytes());
        }
    }

    /// Reads a whole body; false if nothing in it could be understood.
    fn body(&mut self, body: &[u8]) -> bool;

    /// What was found in all.
    fn found(self: Box<Self>) -> Found;
}

/// What an event is to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// Something it expects.
    Content,
    /// The extra event that `include_usage` brings: usage and no choices. An event with neither is
    /// not one, though its choices are empty too.
    UsageOnly,
}

/// What was found in an answer, in disjoint quantities. A side that was not reported, or not
/// readably, is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Tokens of the prompt.
    pub(super) input: Option<PerUnit<u64>>,
    /// Tokens of the answer.
    pub(super) output: Option<PerUnit<u64>>,
    /// What is no token: searches, seconds, characters, images, pages.
    pub(super) others: PerUnit<u64>,
    /// What each model used, where several served the call.
    pub(super) parts: Vec<Part>,
    /// The provider's own figure for the cost.
    pub(super) cost: Option<Amount>,
    /// The parts do not come to the total that is stated beside them.
    pub(super) total_differs: bool,
    /// Both sides are reported and nothing can be added any more.
    pub(super) is_final: bool,
    pub(super) facts: Facts,
    /// The text that passed, for an estimate.
    pub(super) text_bytes: u64,
}

/// What an answer says of itself besides its usage.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) model: Option<String>,
    pub(super) response_id: Option<String>,
    pub(super) created_unix_s: Option<i64>,
    /// The provider's word for the tier that served it.
    pub(super) service_tier: Option<String>,
    /// What else multiplies its prices: `fast`, `us`.
    pub(super) modes: Vec<String>,
    pub(super) provider_error: bool,
}

/// How many models of one call are told apart.
pub(super) const MAX_PARTS: usize = 32;

/// What all parts come to: input and output.
pub(super) fn sides(parts: &[Part]) -> (PerUnit<u64>, PerUnit<u64>) {
    let add = |all: PerUnit<u64>, part: &Part| PerUnit::sum(&all, &part.quantities);
    let all = parts.iter().fold(PerUnit::default(), add);
    (all.inputs(), all.outputs())
}

/// Nothing is known of the answer: its bytes are counted as they come.
pub(super) struct Opaque;

impl Extract for Opaque {
    fn tells_text(&self) -> bool {
        false
    }

    fn event(&mut self, _: &[u8], _: &[u8]) -> EventKind {
        EventKind::Content
    }

    fn body(&mut self, _: &[u8]) -> bool {
        true
    }

    fn found(self: Box<Self>) -> Found {
        Found::default()
    }
}

/// Whether a line that begins like this could turn out to end the stream.
pub(super) fn may_end_stream(extractor: &dyn Extract, line: &[u8]) -> bool {
    let may = |end: &&[u8]| end.starts_with(line) || line.starts_with(end);
    !line.is_empty() && extractor.ends().iter().any(may)
}
