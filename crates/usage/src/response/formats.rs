//! The extractor for the answers of each endpoint.

use crate::headers::Headers;

use super::anthropic::AnthropicExtractor;
use super::batch::BatchExtractor;
use super::bedrock::{ConverseExtractor, InvokeExtractor};
use super::cohere::CohereExtractor;
use super::deepgram::DeepgramExtractor;
use super::elevenlabs::ElevenLabsExtractor;
use super::extractor::{OpaqueExtractor, UsageExtractor};
use super::google::{GoogleExtractor, OperationExtractor};
use super::openai::{MediaExtractor, OpenAiExtractor, ReasoningPlacement, SessionExtractor};
use super::video::VideoExtractor;
use crate::dialect::Api;
use crate::endpoint::EndpointFormat;
use crate::request::InspectedBody;

/// The extractor for an endpoint's answer to a request, with these headers.
pub(super) fn extractor(
    endpoint: &EndpointFormat,
    headers: &dyn Headers,
    request: &InspectedBody,
) -> Box<dyn UsageExtractor> {
    let api = endpoint.api();
    let path = endpoint.operation.map(|operation| operation.path);
    let asked = || endpoint.named_model().or_else(|| request.model.clone());
    match api {
        Api::Chat | Api::Responses | Api::Realtime | Api::Embeddings | Api::Rerank | Api::Ocr => {
            Box::new(OpenAiExtractor::new(
                api,
                ReasoningPlacement::of(&endpoint.provider.price_list),
            ))
        }
        Api::GptLive => Box::new(SessionExtractor::default()),
        Api::Transcription | Api::Speech | Api::Images => {
            Box::new(MediaExtractor::new(api, request))
        }
        Api::Batch | Api::Video if endpoint.answers_operation() => {
            Box::new(OperationExtractor::default())
        }
        Api::Batch | Api::File | Api::Conversation => Box::new(BatchExtractor::default()),
        Api::Video => Box::new(VideoExtractor::default()),
        Api::Messages => Box::new(AnthropicExtractor::new(request.hour_cache)),
        Api::GenerateContent | Api::Live | Api::EmbedContent | Api::Predict => {
            Box::new(GoogleExtractor::new(api, headers, asked(), request.choices))
        }
        Api::Cohere => Box::new(CohereExtractor::default()),
        Api::Converse => Box::new(ConverseExtractor::new(headers)),
        Api::Invoke => Box::new(InvokeExtractor::new(headers, request)),
        Api::ElevenLabs => Box::new(ElevenLabsExtractor::new(path, headers, request)),
        Api::Deepgram => Box::new(DeepgramExtractor::new(path, headers, request)),
        Api::Opaque => Box::new(OpaqueExtractor),
    }
}
