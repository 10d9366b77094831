//! OpenAI's embeddings dialect.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{TokenCounts, answer_model};
use crate::behavior::Behavior;
use crate::deliver::SimulatedResponse;
use crate::error::SimulatedError;
use crate::request::SimulatedRequest;

const DEFAULT_DIMENSIONS: usize = 1536;
const MAX_DIMENSIONS: usize = 4096;

/// The components of the vectors, in turn; at the default number of dimensions a vector has length 1.
const COMPONENTS: [f32; 2] = [0.025_515_518, -0.025_515_518];

#[derive(Serialize)]
struct EmbeddingsUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl From<TokenCounts> for EmbeddingsUsage {
    fn from(tokens: TokenCounts) -> Self {
        Self { prompt_tokens: tokens.input, total_tokens: tokens.input }
    }
}

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<Embedding<'a>>,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<EmbeddingsUsage>>,
}

#[derive(Serialize)]
struct Embedding<'a> {
    object: &'static str,
    index: usize,
    embedding: &'a Value,
}

/// Answers `POST /v1/embeddings`.
pub(crate) fn respond(
    request: &SimulatedRequest,
    behavior: &Behavior,
) -> Result<SimulatedResponse, SimulatedError> {
    let dimensions = request.dimensions.unwrap_or(DEFAULT_DIMENSIONS);
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(SimulatedError::new(
            400,
            format!("dimensions: 1 to {MAX_DIMENSIONS} are possible"),
        ));
    }
    let components = COMPONENTS.into_iter().cycle().take(dimensions);
    // The official clients request base64 by default.
    let embedding = match request.encoding_format.as_deref() {
        Some("base64") => {
            let bytes = components.flat_map(f32::to_le_bytes).collect::<Vec<_>>();
            json!(BASE64_STANDARD.encode(bytes))
        }
        _ => components.collect(),
    };
    let vector = |index| Embedding { object: "embedding", index, embedding: &embedding };
    let tokens =
        TokenCounts { output: 0, reasoning: 0, ..TokenCounts::new(request.words(), 0, behavior) };
    let list = EmbeddingList {
        object: "list",
        data: (0..request.inputs()).map(vector).collect(),
        model: answer_model(request, behavior),
        usage: tokens.usage_field(behavior.usage),
    };
    Ok(SimulatedResponse::json(&list, tokens))
}
