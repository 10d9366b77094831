//! OpenAI's chat dialect, and the parts of it that the completions dialect shares.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{AnswerContent, FinishReason, GeneratedAnswer, TokenCounts, new_id};
use crate::behavior::{Behavior, UsageReport};
use crate::deliver::{EventBuffer, SimulatedResponse};
use crate::request::SimulatedRequest;

/// The fields around the choices in every body and chunk of this family.
#[derive(Serialize)]
pub(crate) struct CompletionBody<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) service_tier: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: C,
    /// Absent, `null` or a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<ChatUsage>>,
}

pub(crate) const FINGERPRINT: &str = "fp_simulated";

#[derive(Serialize)]
pub(crate) struct ChatUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    audio_tokens: u64,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
    audio_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl From<TokenCounts> for ChatUsage {
    fn from(tokens: TokenCounts) -> Self {
        Self {
            prompt_tokens: tokens.input,
            completion_tokens: tokens.output,
            total_tokens: tokens.input.saturating_add(tokens.output),
            prompt_tokens_details: PromptDetails { cached_tokens: tokens.cached, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: tokens.reasoning,
                audio_tokens: 0,
                accepted_prediction_tokens: 0,
                rejected_prediction_tokens: 0,
            },
        }
    }
}

#[derive(Serialize)]
struct ChatChoice<M> {
    index: usize,
    message: M,
    logprobs: (),
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct ChunkChoice<'a, D> {
    index: usize,
    delta: &'a D,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ContentDelta<'a> {
    content: &'a str,
}

/// Answers `POST /v1/chat/completions`.
pub(crate) fn respond(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let answer = GeneratedAnswer::new(request, behavior);
    match request.stream() {
        true => SimulatedResponse::events(stream(&answer, request, behavior), answer.tokens),
        false => json_response(&answer, request, behavior),
    }
}

fn json_response(
    answer: &GeneratedAnswer,
    request: &SimulatedRequest,
    behavior: &Behavior,
) -> SimulatedResponse {
    let choice = |index| ChatChoice {
        index,
        message: message(&answer.speech),
        logprobs: (),
        finish_reason: finish_reason(answer.finish),
    };
    let body = CompletionBody {
        id: &new_id("chatcmpl-"),
        object: "chat.completion",
        created: answer.created,
        model: &answer.model,
        service_tier: &behavior.service_tier,
        system_fingerprint: FINGERPRINT,
        choices: (0..request.choices()).map(choice).collect::<Vec<_>>(),
        usage: answer.tokens.usage_field(behavior.usage),
    };
    SimulatedResponse::json(&body, answer.tokens)
}

fn message(speech: &AnswerContent) -> Value {
    match speech {
        AnswerContent::Text(text) => {
            json!({"role": "assistant", "content": text, "refusal": null, "annotations": []})
        }
        AnswerContent::Call { tool, arguments } => json!({
            "role": "assistant",
            "content": null,
            "refusal": null,
            "annotations": [],
            "tool_calls": [{
                "id": new_id("call_"),
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }],
        }),
    }
}

pub(crate) const fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Tool => "tool_calls",
    }
}

/// Whether chunks carry `usage`: the call requests it, and the behaviour does not omit it.
pub(crate) fn streams_usage(request: &SimulatedRequest, behavior: &Behavior) -> bool {
    request.include_usage() && behavior.usage != UsageReport::Missing
}

struct ChunkWriter<'a> {
    id: String,
    answer: &'a GeneratedAnswer,
    behavior: &'a Behavior,
    choices: usize,
    streams_usage: bool,
    events: EventBuffer,
}

impl ChunkWriter<'_> {
    fn push(&mut self, delta: &impl Serialize, finish_reason: Option<&'static str>) {
        for index in 0..self.choices {
            let choice = ChunkChoice { index, delta, logprobs: (), finish_reason };
            self.push_choices([choice], self.streams_usage.then_some(None));
        }
    }

    fn push_choices(&mut self, choices: impl Serialize, usage: Option<Option<ChatUsage>>) {
        self.events.data(&CompletionBody {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.answer.created,
            model: &self.answer.model,
            service_tier: &self.behavior.service_tier,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        });
    }
}

fn stream(
    answer: &GeneratedAnswer,
    request: &SimulatedRequest,
    behavior: &Behavior,
) -> EventBuffer {
    let mut chunks = ChunkWriter {
        id: new_id("chatcmpl-"),
        answer,
        behavior,
        choices: request.choices(),
        streams_usage: streams_usage(request, behavior),
        events: EventBuffer::new(),
    };
    match &answer.speech {
        AnswerContent::Text(_) => {
            chunks.push(&json!({"role": "assistant", "content": "", "refusal": null}), None);
            for content in answer.pieces() {
                chunks.push(&ContentDelta { content }, None);
            }
        }
        AnswerContent::Call { tool, .. } => {
            let function = json!({"name": tool, "arguments": ""});
            let call = json!({"index": 0, "id": new_id("call_"), "type": "function", "function": function});
            chunks.push(&json!({"role": "assistant", "content": null, "tool_calls": [call]}), None);
            for piece in answer.pieces() {
                let part = json!({"index": 0, "function": {"arguments": piece}});
                chunks.push(&json!({"tool_calls": [part]}), None);
            }
        }
    }
    chunks.push(&json!({}), Some(finish_reason(answer.finish)));
    if chunks.streams_usage {
        let nothing: [(); 0] = [];
        chunks.push_choices(nothing, answer.tokens.usage_field(behavior.usage));
    }
    chunks.events.done();
    chunks.events
}

/// The event that ends a stream of this family in an error.
pub(crate) fn error_event(events: &mut EventBuffer) {
    events.data(&json!({"error": {
        "message": "a simulated error in the stream",
        "type": "server_error",
        "param": null,
        "code": null,
    }}));
}
