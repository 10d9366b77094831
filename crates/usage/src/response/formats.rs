//! The extractor for the answers of each endpoint.

use crate::headers::Headers;

use super::anthropic::Anthropic;
use super::bedrock::{Converse, Invoke};
use super::cohere::Cohere;
use super::deepgram::Deepgram;
use super::elevenlabs::ElevenLabs;
use super::extractor::{Extract, Opaque};
use super::google::Google;
use super::openai::{Media, OpenAi, Thoughts};
use crate::dialect::Api;
use crate::endpoint::EndpointFormat;
use crate::request::CallBody;

/// The extractor for an endpoint's answer to a request, with these headers.
pub(super) fn extractor(
    endpoint: &EndpointFormat,
    headers: &dyn Headers,
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
