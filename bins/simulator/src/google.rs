//! Google's dialect: `generateContent`, whole and as a stream.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{AnswerContent, FinishReason, GeneratedAnswer, TokenCounts, new_id};
use crate::behavior::Behavior;
use crate::deliver::{EventBuffer, SimulatedResponse};
use crate::error::SimulatedError;
use crate::request::SimulatedRequest;

/// The token counts. Thoughts are beside the candidates.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GoogleUsage {
    prompt_token_count: u64,
    cached_content_token_count: u64,
    candidates_token_count: u64,
    thoughts_token_count: u64,
    total_token_count: u64,
}

impl From<TokenCounts> for GoogleUsage {
    fn from(tokens: TokenCounts) -> Self {
        Self {
            prompt_token_count: tokens.input,
            cached_content_token_count: tokens.cached,
            candidates_token_count: tokens.output.saturating_sub(tokens.reasoning),
            thoughts_token_count: tokens.reasoning,
            total_token_count: tokens.input.saturating_add(tokens.output),
        }
    }
}

/// The request of `generateContent` as the other dialects write it.
pub(crate) fn request(model: &str, body: &Value) -> Result<SimulatedRequest, SimulatedError> {
    if body.get("contents").is_none() {
        return Err(SimulatedError::new(400, "contents is not specified"));
    }
    let config = body.get("generationConfig").or_else(|| body.get("generation_config"));
    let most = config.and_then(|config| {
        config.get("maxOutputTokens").or_else(|| config.get("max_output_tokens"))
    });
    let mut texts = Vec::new();
    for part in ["systemInstruction", "system_instruction", "contents"] {
        collect_texts(body.get(part).unwrap_or(&Value::Null), &mut texts);
    }
    let request = json!({"model": model, "prompt": texts.join(" "), "max_tokens": most});
    serde_json::from_value(request).map_err(|error| SimulatedError::new(400, error.to_string()))
}

/// The texts of all parts, in their order.
fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            texts.extend(fields.get("text").and_then(Value::as_str));
            fields.values().for_each(|value| collect_texts(value, texts));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        _ => {}
    }
}

/// The answer as one object, and its tokens.
pub(crate) fn respond(request: &SimulatedRequest, behavior: &Behavior) -> (Value, TokenCounts) {
    let answer = GeneratedAnswer::new(request, behavior);
    let text = answer.pieces().collect::<String>();
    (chunk(&answer, behavior, &new_id("r"), &text, true), answer.tokens)
}

/// The answer as a stream, as with `alt=sse`.
pub(crate) fn stream(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let answer = GeneratedAnswer::new(request, behavior);
    let (id, mut events) = (new_id("r"), EventBuffer::new());
    let mut pieces = answer.pieces().peekable();
    while let Some(piece) = pieces.next() {
        events.data(&chunk(&answer, behavior, &id, piece, pieces.peek().is_none()));
    }
    SimulatedResponse::events(events, answer.tokens)
}

/// A part of the answer. The last one has the usage.
fn chunk(
    answer: &GeneratedAnswer,
    behavior: &Behavior,
    id: &str,
    text: &str,
    is_last: bool,
) -> Value {
    let part = match &answer.speech {
        AnswerContent::Text(_) => json!({"text": text}),
        AnswerContent::Call { tool, .. } => json!({"functionCall": {"name": tool, "args": {}}}),
    };
    let mut candidate = json!({"content": {"role": "model", "parts": [part]}, "index": 0});
    let mut whole = json!({"modelVersion": answer.model, "responseId": id});
    if is_last {
        put(
            &mut candidate,
            "finishReason",
            match answer.finish {
                FinishReason::Length => json!("MAX_TOKENS"),
                FinishReason::Stop | FinishReason::Tool => json!("STOP"),
            },
        );
        if let Some(usage) = answer.tokens.usage_field::<GoogleUsage>(behavior.usage) {
            put(&mut whole, "usageMetadata", json!(usage));
        }
    }
    put(&mut whole, "candidates", json!([candidate]));
    whole
}

fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value);
    }
}
