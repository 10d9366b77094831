use super::anthropic::Anthropic;
use super::openai::OpenAi;
use super::{EventKind, Found};
use crate::dialect::Api;

/// Reads the answers of one dialect. A new dialect is a file beside this one and an arm in each
/// function here.
pub(super) enum Extractor {
    OpenAi(OpenAi),
    Anthropic(Anthropic),
    /// Nothing is known.
    Opaque,
}

/// How the lines begin that end a stream, in the spellings that are sent. A piece that is cut
/// within such a line is kept back until the line is whole.
const OPENAI_ENDS: &[&[u8]] = &[
    b"data: [DONE]",
    b"data:[DONE]",
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
    b"event:response.completed",
    b"event:response.incomplete",
    b"event:response.failed",
    b"data: {\"type\":\"response.completed\"",
    b"data: {\"type\":\"response.incomplete\"",
    b"data: {\"type\":\"response.failed\"",
];
const ANTHROPIC_ENDS: &[&[u8]] =
    &[b"event: message_stop", b"event:message_stop", b"data: {\"type\":\"message_stop\""];

impl Extractor {
    pub(super) fn new(api: Api, hour_cache: bool) -> Self {
        match api {
            Api::Chat | Api::Responses | Api::Embeddings => Self::OpenAi(OpenAi::new(api)),
            Api::Messages => Self::Anthropic(Anthropic::new(hour_cache)),
            Api::Opaque => Self::Opaque,
        }
    }

    /// Whether the event whose fields are known so far is the last of its stream.
    pub(super) fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        match self {
            Self::OpenAi(openai) => openai.ends_stream(name, data),
            Self::Anthropic(_) => Anthropic::ends_stream(name, data),
            Self::Opaque => false,
        }
    }

    /// Whether a line that begins like this could turn out to end the stream.
    pub(super) fn may_end_stream(&self, line: &[u8]) -> bool {
        let ends = match self {
            Self::OpenAi(_) => OPENAI_ENDS,
            Self::Anthropic(_) => ANTHROPIC_ENDS,
            Self::Opaque => &[],
        };
        !line.is_empty() && ends.iter().any(|end| end.starts_with(line) || line.starts_with(end))
    }

    /// Whether streams have an event that says they are over.
    pub(super) fn has_terminal_event(&self) -> bool {
        !matches!(self, Self::Opaque)
    }

    /// Whether text can be told from what is around it.
    pub(super) fn tells_text(&self) -> bool {
        !matches!(self, Self::Opaque)
    }

    pub(super) fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        match self {
            Self::OpenAi(openai) => openai.event(name, data),
            Self::Anthropic(anthropic) => anthropic.event(name, data),
            Self::Opaque => EventKind::Content,
        }
    }

    /// Reads a whole body; false if nothing in it could be understood.
    pub(super) fn body(&mut self, body: &[u8]) -> bool {
        match self {
            Self::OpenAi(openai) => openai.body(body),
            Self::Anthropic(anthropic) => anthropic.body(body),
            // Its bytes were counted as they came.
            Self::Opaque => true,
        }
    }

    pub(super) fn found(self) -> Found {
        match self {
            Self::OpenAi(openai) => openai.found(),
            Self::Anthropic(anthropic) => anthropic.found(),
            Self::Opaque => Found::default(),
        }
    }
}
