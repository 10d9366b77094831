//! The most that a call can use, by its body. Limits that must never be passed rest on these
//! figures, so each is rather too large than too small, and a part without a bound is named.

use tollgate_pricing::PerUnit;

use super::body::InspectedBody;
use super::scan::FindingKind;
use super::tools::{ToolCharge, most_searches};
use crate::dialect::Api;
use crate::endpoint::EndpointFormat;

/// The most tokens that one call of a provider's tool adds to the conversation: its result, and the
/// model's text about it. An assumption: no provider states it. A fetched page, or the results of a
/// search, are commonly 1,000 to 20,000 tokens.
const TOKENS_PER_TOOL_CALL: u64 = 32_768;

/// The most tokens of a made image: 6,240 at the highest quality, and three previews of 100 each.
pub const TOKENS_PER_IMAGE_MADE: u64 = 10_000;

/// The most tokens of a second or character. Sound has about 10 tokens a second as input and 20 as
/// output; speech has about 15 characters and 4 words a second. On sockets it has 10 at OpenAI, and 32 at Google.
const TOKENS_PER_SECOND_HEARD: u64 = 40;
const TOKENS_PER_SECOND_OF_REALTIME: u64 = 10;
const TOKENS_PER_SECOND_SPOKEN: u64 = 20;
const TOKENS_PER_CHARACTER_READ: u64 = 6;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// Parts of the names of models that search the web, or call others, without a request for it.
const SEARCH_UNASKED: [&str; 7] = [
    "compound",
    "-search-preview",
    "-search-api",
    "deep-research",
    "sonar",
    "model-router",
    ":online",
];

fn searches_by_default(endpoint: &EndpointFormat, model: Option<&str>) -> bool {
    let model = model.unwrap_or_default().to_ascii_lowercase();
    endpoint.provider.price_list == "perplexity"
        || SEARCH_UNASKED.iter().any(|mark| model.contains(mark))
}

/// The most that a call can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageBound {
    /// The most input tokens.
    pub input_tokens: u64,
    /// The most tokens of one answer.
    pub output: OutputBound,
    /// The most answers that are made; at least 1.
    pub answers: u64,
    /// The most calls of tools that run at the provider.
    pub tool_calls: u64,
    /// The charges for those tools, each with the path to the first tool that has it.
    pub tool_charges: Vec<(ToolCharge, Vec<String>)>,
    /// The most of other units: characters, seconds, images, pages.
    pub others: PerUnit<u64>,
    /// The first field that leaves the cost without a bound, as a path from the outside in. The
    /// path is empty if no field of the body can bound it, because the endpoint is not known.
    pub unbounded: Option<Vec<String>>,
}

/// The most tokens of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputBound {
    /// The endpoint answers without tokens.
    None,
    /// The maximum that the body states.
    Stated(u64),
    /// The body states none: the model's own maximum applies.
    Unstated,
}

impl UsageBound {
    /// Whether a call with this bound can use no more than one with the other.
    pub fn is_within(&self, other: &Self) -> bool {
        let is_output_within = match (self.output, other.output) {
            (OutputBound::None, _) | (_, OutputBound::Unstated) => true,
            (OutputBound::Stated(one), OutputBound::Stated(other)) => one <= other,
            (OutputBound::Unstated | OutputBound::Stated(_), _) => false,
        };
        is_output_within
            && self.input_tokens <= other.input_tokens
            && self.answers <= other.answers
            && self.others.input_second <= other.others.input_second
            && (self.unbounded.is_none() || other.unbounded.is_some())
    }
}

impl InspectedBody {
    /// The most that the call can use, by its body. A field bounds only if the endpoint has it:
    /// other providers may ignore it.
    pub fn bound(&self, endpoint: &EndpointFormat) -> UsageBound {
        let api = endpoint.api();
        let (tool_calls, tireless) = self.tool_calls(api);
        let unsized_part = self.findings.first(FindingKind::Unsized);
        let unbounded = unsized_part.or(tireless).or(self.open_ended.as_ref()).cloned();
        let of_model = || searches_by_default(endpoint, self.model.as_deref());
        let field = self.unmeasured(endpoint).or_else(|| of_model().then_some("model"));
        let unbounded = unbounded.or_else(|| field.map(|field| vec![field.to_owned()]));
        UsageBound {
            input_tokens: self.input_tokens(endpoint, tool_calls),
            output: self.output(endpoint),
            answers: self.choices.max(1),
            tool_calls,
            tool_charges: self.findings.charges().map(|(one, path)| (one, path.clone())).collect(),
            others: self.others(api),
            unbounded: unbounded.or_else(|| endpoint.operation.is_none().then(Vec::new)),
        }
    }

    fn output(&self, endpoint: &EndpointFormat) -> OutputBound {
        match (endpoint.api(), self.max_output_tokens) {
            (Api::Cohere, _) if !endpoint.matches_operation("/chat") => OutputBound::None,
            (
                Api::Embeddings
                | Api::EmbedContent
                | Api::Rerank
                | Api::Predict
                | Api::Ocr
                | Api::Video
                | Api::ElevenLabs
                | Api::Deepgram
                | Api::GptLive,
                _,
            ) => OutputBound::None,
            (Api::Images, _) => OutputBound::Stated(TOKENS_PER_IMAGE_MADE),
            (Api::Speech, _) => {
                OutputBound::Stated(self.characters.saturating_mul(TOKENS_PER_CHARACTER_READ))
            }
            (Api::Transcription, _) => {
                let seconds = self.audio_micros.div_ceil(MICROS_PER_SECOND);
                OutputBound::Stated(seconds.saturating_mul(TOKENS_PER_SECOND_SPOKEN))
            }
            // Some servers take 0 for no maximum.
            (_, None | Some(0)) => OutputBound::Unstated,
            (_, Some(tokens)) => OutputBound::Stated(tokens),
        }
    }

    /// The usage in units other than tokens. If a model is billed by tokens, its price list has no
    /// price for these units, and the other way round.
    fn others(&self, api: Api) -> PerUnit<u64> {
        let mut others = PerUnit::default();
        match api {
            Api::Speech | Api::Deepgram => {
                others.input_characters = self.characters;
                others.input_second = self.audio_micros;
            }
            // A character costs up to two credits.
            Api::ElevenLabs => {
                others.input_characters = self.characters.saturating_mul(2);
                others.input_second = self.audio_micros;
            }
            Api::Transcription | Api::Realtime | Api::GptLive => {
                others.input_second = self.audio_micros;
            }
            Api::Images | Api::Predict => others.image = self.choices.max(1),
            Api::Ocr => others.page = 1,
            Api::Video => {
                others.output_second = self.video_micros.saturating_mul(self.choices.max(1));
            }
            Api::Rerank | Api::Cohere => others.search_unit = 1,
            _ => {}
        }
        others
    }

    /// The field whose length is not known, although the endpoint bills by it.
    fn unmeasured(&self, endpoint: &EndpointFormat) -> Option<&'static str> {
        match endpoint.api() {
            Api::Transcription if !self.audio_is_exact => Some("file"),
            Api::ElevenLabs if self.audio_micros > 0 && !self.audio_is_exact => Some("file"),
            // Channels and options multiply the price of a second.
            Api::Deepgram if self.characters == 0 => Some("audio"),
            Api::Ocr => Some("document"),
            Api::Rerank => Some("documents"),
            Api::Cohere if endpoint.matches_operation("/rerank") => Some("documents"),
            _ => None,
        }
    }

    /// The most input tokens: one for each byte, and those that are not in the body. After each
    /// call of a tool, the whole conversation is input again.
    fn input_tokens(&self, endpoint: &EndpointFormat, tool_calls: u64) -> u64 {
        let hidden = endpoint.hidden_tokens();
        let tokens_per_second = match endpoint.api() {
            Api::Realtime => TOKENS_PER_SECOND_OF_REALTIME,
            _ => TOKENS_PER_SECOND_HEARD,
        };
        // One for the prompt that explains tools as such, and one for each tool.
        let prompts = match self.findings.tools {
            0 => 0,
            tools => tools.saturating_add(1),
        };
        [
            hidden.per_image.saturating_mul(self.findings.images),
            hidden.per_tool.saturating_mul(prompts),
            self.previous_tokens,
            TOKENS_PER_TOOL_CALL.saturating_mul(tool_calls),
            self.audio_micros.div_ceil(MICROS_PER_SECOND).saturating_mul(tokens_per_second),
        ]
        .into_iter()
        .fold(self.input_bytes, u64::saturating_add)
        .saturating_mul(tool_calls.saturating_add(1))
    }

    /// The most calls of tools at the provider, and the first tool without a maximum.
    fn tool_calls(&self, api: Api) -> (u64, Option<&Vec<String>>) {
        let first = |kind| self.findings.first(kind);
        let searches = self.findings.searches.saturating_mul(most_searches(api));
        let uses = self.findings.tool_uses.saturating_add(searches);
        match (first(FindingKind::ServerTool), api, self.max_tool_calls) {
            (None, ..) => (0, None),
            (_, Api::Messages, _) => (uses, first(FindingKind::UnlimitedTool)),
            (_, Api::Responses, Some(most)) => (most, first(FindingKind::RemoteTool)),
            // `max_uses` is not a field of these tools.
            (_, Api::Responses, None) if self.findings.tool_uses == 0 => {
                (searches, first(FindingKind::UnlimitedTool))
            }
            (tool, ..) => (0, tool),
        }
    }
}
