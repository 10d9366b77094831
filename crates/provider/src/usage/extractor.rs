use awc::http::header::HeaderMap;

use super::anthropic::Anthropic;
use super::bedrock::{Converse, Invoke};
use super::cohere::Cohere;
use super::deepgram::Deepgram;
use super::elevenlabs::ElevenLabs;
use super::excerpt::Excerpt;
use super::google::Google;
use super::openai::{Media, OpenAi, Thoughts};
use super::{EventKind, Found};
use crate::dialect::Api;
use crate::request::CallBody;
use crate::table::Endpoint;

/// Reads the answers of one kind of endpoint: pure, shown one event or one body at a time.
///
/// A new kind is a file beside this one and an arm in [`extractor`].
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

/// The extractor for what an endpoint answers to a request, with these headers.
pub(super) fn extractor(
    endpoint: &Endpoint,
    headers: &HeaderMap,
    request: &CallBody,
) -> Box<dyn Extract> {
    let api = endpoint.api();
    let path = endpoint.operation.map(|operation| operation.path);
    let asked = || endpoint.named_model().or_else(|| request.model.clone());
    match api {
        Api::Chat | Api::Responses | Api::Embeddings | Api::Rerank | Api::Ocr => {
            Box::new(OpenAi::new(api, Thoughts::of(&endpoint.provider.price_list)))
        }
        Api::Transcription | Api::Speech | Api::Images => Box::new(Media::new(api, request)),
        Api::Messages => Box::new(Anthropic::new(request.hour_cache)),
        Api::GenerateContent | Api::EmbedContent | Api::Predict => {
            Box::new(Google::new(api, headers, asked(), request.choices))
        }
        Api::Cohere => Box::new(Cohere::default()),
        Api::Converse => Box::new(Converse::new(headers)),
        Api::Invoke => Box::new(Invoke::new(headers, request)),
        Api::ElevenLabs => Box::new(ElevenLabs::new(path, headers, request)),
        Api::Deepgram => Box::new(Deepgram::new(path, headers, request)),
        Api::Opaque => Box::new(Opaque),
    }
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
