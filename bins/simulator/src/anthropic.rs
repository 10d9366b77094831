//! Anthropic's dialect: messages, their streams, and token counts.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Finish, Speech, Tokens, id};
use crate::behavior::Behavior;
use crate::deliver::{Events, Reply};
use crate::request::Request;

/// The token counts. The prompt is the sum of three: `input_tokens` excludes cached tokens.
#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
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
    counts: Usage,
    cache_creation: CacheCreation,
    service_tier: &'a str,
}

#[derive(Serialize, Default)]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

#[derive(Serialize)]
struct Message<'a> {
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

impl<'a> Message<'a> {
    fn new(
        answer: &'a Answer,
        behavior: &'a Behavior,
        content: &'a [Value],
        tokens: Tokens,
    ) -> Self {
        let usage = tokens.reported::<Usage>(behavior.usage);
        let usage = usage.map(|usage| {
            usage.map(|counts| MessageUsage {
                counts,
                cache_creation: CacheCreation::default(),
                service_tier: service_tier(behavior),
            })
        });
        Self {
            id: id("msg_"),
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
pub(crate) fn reply(request: &Request, behavior: &Behavior) -> Reply {
    let answer = Answer::new(request, behavior);
    let tokens = answer.tokens;
    if request.stream() {
        return Reply::events(stream(&answer, behavior), tokens);
    }
    let block = match &answer.speech {
        Speech::Text(text) => json!({"type": "text", "text": text, "citations": null}),
        Speech::Call { tool, arguments } => tool_use(tool, arguments),
    };
    let content = [block];
    let stop_reason = Some(stop_reason(answer.finish));
    let message =
        Message { stop_reason, ..Message::new(&answer, behavior, &content, answer.tokens) };
    Reply::json(&message, tokens)
}

/// Answers `POST /v1/messages/count_tokens`, which costs nothing.
pub(crate) fn count_tokens(request: &Request, behavior: &Behavior) -> Reply {
    let input_tokens = behavior.input_tokens.unwrap_or_else(|| request.words());
    Reply::json(&json!({"input_tokens": input_tokens}), Tokens::default())
}

fn tool_use(tool: &str, arguments: &str) -> Value {
    let input: Value = serde_json::from_str(arguments).unwrap_or_default();
    json!({"type": "tool_use", "id": id("toolu_"), "name": tool, "input": input})
}

const fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::Tool => "tool_use",
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
    delta: Stop,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Stop {
    stop_reason: &'static str,
    stop_sequence: (),
}

fn stream(answer: &Answer, behavior: &Behavior) -> Events {
    let mut events = Events::new();
    // The first event has the usage of the prompt; the last one replaces its output tokens.
    let at_start = Tokens { output: answer.tokens.output.min(1), ..answer.tokens };
    let message = Message::new(answer, behavior, &[], at_start);
    events.named("message_start", &json!({"type": "message_start", "message": message}));

    let block = match &answer.speech {
        Speech::Text(_) => json!({"type": "text", "text": ""}),
        Speech::Call { tool, .. } => tool_use(tool, "{}"),
    };
    let start = json!({"type": "content_block_start", "index": 0, "content_block": block});
    events.named("content_block_start", &start);
    events.named("ping", &json!({"type": "ping"}));
    for piece in answer.pieces() {
        let delta = match answer.speech {
            Speech::Text(_) => Delta::TextDelta { text: piece },
            Speech::Call { .. } => Delta::InputJsonDelta { partial_json: piece },
        };
        let delta = BlockDelta { r#type: "content_block_delta", index: 0, delta };
        events.named("content_block_delta", &delta);
    }
    events.named("content_block_stop", &json!({"type": "content_block_stop", "index": 0}));

    let delta = Stop { stop_reason: stop_reason(answer.finish), stop_sequence: () };
    let usage = answer.tokens.reported(behavior.usage);
    events.named("message_delta", &MessageDelta { r#type: "message_delta", delta, usage });
    events.named("message_stop", &json!({"type": "message_stop"}));
    events
}

/// The event that ends a stream in an error.
pub(crate) fn error_event(events: &mut Events) {
    let error = json!({"type": "overloaded_error", "message": "a simulated error in the stream"});
    events.named("error", &json!({"type": "error", "error": error}));
}
