//! Anthropic's dialect: messages, their streams, and token counts.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{AnswerContent, FinishReason, GeneratedAnswer, TokenCounts, new_id};
use crate::behavior::Behavior;
use crate::deliver::{EventBuffer, SimulatedResponse};
use crate::request::SimulatedRequest;

/// The token counts. The prompt is the sum of three: `input_tokens` excludes cached tokens.
#[derive(Serialize)]
struct AnthropicUsage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

impl From<TokenCounts> for AnthropicUsage {
    fn from(tokens: TokenCounts) -> Self {
        Self {
            input_tokens: tokens.input.saturating_sub(tokens.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: tokens.cached,
            output_tokens: tokens.output,
        }
    }
}

/// The usage of a message: its counts, and the details beside them.
#[derive(Serialize)]
struct MessageUsage<'a> {
    #[serde(flatten)]
    counts: AnthropicUsage,
    cache_creation: CacheCreation,
    service_tier: &'a str,
}

#[derive(Serialize, Default)]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

#[derive(Serialize)]
struct AnthropicMessage<'a> {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: &'a [Value],
    stop_reason: Option<&'static str>,
    stop_sequence: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<MessageUsage<'a>>>,
}

impl<'a> AnthropicMessage<'a> {
    fn new(
        answer: &'a GeneratedAnswer,
        behavior: &'a Behavior,
        content: &'a [Value],
        tokens: TokenCounts,
    ) -> Self {
        let usage = tokens.usage_field::<AnthropicUsage>(behavior.usage);
        let usage = usage.map(|usage| {
            usage.map(|counts| MessageUsage {
                counts,
                cache_creation: CacheCreation::default(),
                service_tier: service_tier(behavior),
            })
        });
        Self {
            id: new_id("msg_"),
            r#type: "message",
            role: "assistant",
            model: &answer.model,
            content,
            stop_reason: None,
            stop_sequence: (),
            usage,
        }
    }
}

/// Returns the service tier, where `default` of the other dialects is `standard`.
fn service_tier(behavior: &Behavior) -> &str {
    match behavior.service_tier.as_str() {
        "default" => "standard",
        tier => tier,
    }
}

/// Answers `POST /v1/messages`.
pub(crate) fn respond(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let answer = GeneratedAnswer::new(request, behavior);
    let tokens = answer.tokens;
    if request.stream() {
        return SimulatedResponse::events(stream(&answer, behavior), tokens);
    }
    let block = match &answer.speech {
        AnswerContent::Text(text) => json!({"type": "text", "text": text, "citations": null}),
        AnswerContent::Call { tool, arguments } => tool_use(tool, arguments),
    };
    let content = [block];
    let stop_reason = Some(stop_reason(answer.finish));
    let message = AnthropicMessage {
        stop_reason,
        ..AnthropicMessage::new(&answer, behavior, &content, answer.tokens)
    };
    SimulatedResponse::json(&message, tokens)
}

/// Answers `POST /v1/messages/count_tokens`, which costs nothing.
pub(crate) fn count_tokens(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let input_tokens = behavior.input_tokens.unwrap_or_else(|| request.words());
    SimulatedResponse::json(&json!({"input_tokens": input_tokens}), TokenCounts::default())
}

fn tool_use(tool: &str, arguments: &str) -> Value {
    let input: Value = serde_json::from_str(arguments).unwrap_or_default();
    json!({"type": "tool_use", "id": new_id("toolu_"), "name": tool, "input": input})
}

const fn stop_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::Tool => "tool_use",
    }
}

#[derive(Serialize)]
struct BlockDelta<'a> {
    r#type: &'static str,
    index: u64,
    delta: Delta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

#[derive(Serialize)]
struct MessageDelta {
    r#type: &'static str,
    delta: StopDelta,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<AnthropicUsage>>,
}

#[derive(Serialize)]
struct StopDelta {
    stop_reason: &'static str,
    stop_sequence: (),
}

fn stream(answer: &GeneratedAnswer, behavior: &Behavior) -> EventBuffer {
    let mut events = EventBuffer::new();
    // The first event has the usage of the prompt; the last one replaces its output tokens.
    let at_start = TokenCounts { output: answer.tokens.output.min(1), ..answer.tokens };
    let message = AnthropicMessage::new(answer, behavior, &[], at_start);
    events.named("message_start", &json!({"type": "message_start", "message": message}));

    let block = match &answer.speech {
        AnswerContent::Text(_) => json!({"type": "text", "text": ""}),
        AnswerContent::Call { tool, .. } => tool_use(tool, "{}"),
    };
    let start = json!({"type": "content_block_start", "index": 0, "content_block": block});
    events.named("content_block_start", &start);
    events.named("ping", &json!({"type": "ping"}));
    for piece in answer.pieces() {
        let delta = match answer.speech {
            AnswerContent::Text(_) => Delta::TextDelta { text: piece },
            AnswerContent::Call { .. } => Delta::InputJsonDelta { partial_json: piece },
        };
        let delta = BlockDelta { r#type: "content_block_delta", index: 0, delta };
        events.named("content_block_delta", &delta);
    }
    events.named("content_block_stop", &json!({"type": "content_block_stop", "index": 0}));

    let delta = StopDelta { stop_reason: stop_reason(answer.finish), stop_sequence: () };
    let usage = answer.tokens.usage_field(behavior.usage);
    events.named("message_delta", &MessageDelta { r#type: "message_delta", delta, usage });
    events.named("message_stop", &json!({"type": "message_stop"}));
    events
}

/// The event that ends a stream in an error.
pub(crate) fn error_event(events: &mut EventBuffer) {
    let error = json!({"type": "overloaded_error", "message": "a simulated error in the stream"});
    events.named("error", &json!({"type": "error", "error": error}));
}
