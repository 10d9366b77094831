//! The interface of an extractor: the parts of an answer that it reads, and the usage it finds.

use tollgate_pricing::{Amount, PerModelUsage, PerUnit};

use super::excerpt::Excerpt;
use super::reading::ObjectState;

/// Reads the answers of one kind of endpoint, one event or one body at a time, without side
/// effects.
///
/// A new kind is a file beside this one and an arm in [`extractor`](super::formats::extractor).
pub(super) trait UsageExtractor {
    /// The starts of the lines that end an event stream, in all spellings that are sent. A piece
    /// that is cut within such a line is kept back until the line is whole. If there are none, a
    /// stream ends with its body.
    fn end_markers(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// Whether the event whose fields are known so far is the last of its stream.
    fn ends_stream(&self, _name: &[u8], _data: &[u8]) -> bool {
        false
    }

    /// Whether text can be distinguished from the bytes around it. If not, all bytes count as text
    /// in an estimate, and no body is kept for reading.
    fn tells_text(&self) -> bool {
        true
    }

    /// The key of the usage at the end of a body that is too large to be kept.
    fn usage_key(&self) -> &'static str {
        "usage"
    }

    /// Takes one event of a stream: its name, which may be empty, and its data.
    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind;

    /// Takes the time that the answer has taken so far, in microseconds.
    fn passed(&mut self, _micros: u64) {}

    /// Takes the beginning and end of an event, or an item of a stream, that was too large to be
    /// kept.
    fn excerpt(&mut self, name: &[u8], excerpt: &Excerpt) {
        if let Some(usage) = excerpt.object(self.usage_key()) {
            self.event(name, usage.as_bytes());
        }
    }

    /// Reads a whole body; false if no part of it was understood.
    fn body(&mut self, body: &[u8]) -> bool;

    /// The facts that are known so far, of an answer that is an object which the provider keeps.
    fn object(&self) -> Option<&ResponseFacts> {
        None
    }

    /// The result.
    fn found(self: Box<Self>) -> ExtractedUsage;
}

/// The meaning of an event for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEventKind {
    /// An event that the client expects.
    Content,
    /// The additional event of `include_usage`, with usage and no choices. An event with neither is
    /// not one, though its choices are empty too.
    UsageOnly,
}

/// The findings in an answer, as disjoint quantities. A side without a readable report is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtractedUsage {
    /// Tokens of the prompt.
    pub(super) input: Option<PerUnit<u64>>,
    /// Tokens of the answer.
    pub(super) output: Option<PerUnit<u64>>,
    /// Other units: searches, seconds, characters, images, pages.
    pub(super) others: PerUnit<u64>,
    /// The usage of each model, if several served the call.
    pub(super) parts: Vec<PerModelUsage>,
    /// The cost that the provider states.
    pub(super) cost: Option<Amount>,
    /// Whether the sum of the parts differs from the stated total.
    pub(super) total_differs: bool,
    /// Whether both sides are reported and nothing can be added.
    pub(super) is_final: bool,
    pub(super) facts: ResponseFacts,
    /// The text that passed, for an estimate.
    pub(super) text_bytes: u64,
}

/// The facts of an answer, beside its usage.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseFacts {
    pub(super) model: Option<String>,
    pub(super) response_id: Option<String>,
    pub(super) created_unix_s: Option<i64>,
    /// The provider's word for the tier that served the call.
    pub(super) service_tier: Option<String>,
    /// Other modes that multiply its prices: `fast`, `us`.
    pub(super) modes: Vec<String>,
    pub(super) provider_error: bool,
    /// The state of the object that the answer is.
    pub(super) object_state: Option<ObjectState>,
    /// The time at which the object expires, as it is written.
    pub(super) expires_at: Option<String>,
    /// The path of the requests of a batch.
    pub(super) request_path: Option<String>,
    /// The files with the results of the object.
    pub(super) result_files: Vec<String>,
    /// The number of requests of a batch that were answered.
    pub(super) answered_requests: Option<u64>,
    /// The number of videos that were delivered.
    pub(super) samples: Option<u64>,
}

/// The most models of one call that are kept apart.
pub(super) const MAX_PARTS: usize = 32;

/// The sums of all parts: input and output.
pub(super) fn sides(parts: &[PerModelUsage]) -> (PerUnit<u64>, PerUnit<u64>) {
    let add = |all: PerUnit<u64>, part: &PerModelUsage| PerUnit::sum(&all, &part.quantities);
    let all = parts.iter().fold(PerUnit::default(), add);
    (all.inputs(), all.outputs())
}

/// The extractor for unknown answers: their bytes are counted as they come.
pub(super) struct OpaqueExtractor;

impl UsageExtractor for OpaqueExtractor {
    fn tells_text(&self) -> bool {
        false
    }

    fn event(&mut self, _: &[u8], _: &[u8]) -> StreamEventKind {
        StreamEventKind::Content
    }

    fn body(&mut self, _: &[u8]) -> bool {
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        ExtractedUsage::default()
    }
}

/// Whether a line with this start may turn out to end the stream.
pub(super) fn may_end_stream(extractor: &dyn UsageExtractor, line: &[u8]) -> bool {
    let may = |end: &&[u8]| end.starts_with(line) || line.starts_with(end);
    !line.is_empty() && extractor.end_markers().iter().any(may)
}
