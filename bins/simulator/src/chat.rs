//! OpenAI's chat dialect, and the parts of it that the completions dialect shares.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Finish, Speech, Tokens, id};
use crate::behavior::{Behavior, UsageReport};
use crate::deliver::{Events, Reply};
use crate::request::Request;

/// The fields around the choices in every body and chunk of this family.
#[derive(Serialize)]
pub(crate) struct Envelope<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) service_tier: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: C,
    /// Absent, `null` or a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

pub(crate) const FINGERPRINT: &str = "fp_simulated";

#[derive(Serialize)]
pub(crate) struct Usage {
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

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
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
struct Choice<M> {
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
pub(crate) fn reply(request: &Request, behavior: &Behavior) -> Reply {
    let answer = Answer::new(request, behavior);
    match request.stream() {
        true => Reply::events(stream(&answer, request, behavior), answer.tokens),
        false => whole(&answer, request, behavior),
    }
}

fn whole(answer: &Answer, request: &Request, behavior: &Behavior) -> Reply {
    let choice = |index| Choice {
        index,
        message: message(&answer.speech),
        logprobs: (),
        finish_reason: finish_reason(answer.finish),
    };
    let body = Envelope {
        id: &id("chatcmpl-"),
        object: "chat.completion",
        created: answer.created,
        model: &answer.model,
        service_tier: &behavior.service_tier,
        system_fingerprint: FINGERPRINT,
        choices: (0..request.choices()).map(choice).collect::<Vec<_>>(),
        usage: answer.tokens.reported(behavior.usage),
    };
    Reply::json(&body, answer.tokens)
}

fn message(speech: &Speech) -> Value {
    match speech {
        Speech::Text(text) => {
            json!({"role": "assistant", "content": text, "refusal": null, "annotations": []})
        }
        Speech::Call { tool, arguments } => json!({
            "role": "assistant",
            "content": null,
            "refusal": null,
            "annotations": [],
            "tool_calls": [{
                "id": id("call_"),
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }],
        }),
    }
}

pub(crate) const fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Tool => "tool_calls",
    }
}

/// Whether chunks carry `usage`: the call requests it, and the behaviour does not omit it.
pub(crate) fn streams_usage(request: &Request, behavior: &Behavior) -> bool {
    request.include_usage() && behavior.usage != UsageReport::Missing
}

struct Chunks<'a> {
    id: String,
    answer: &'a Answer,
    behavior: &'a Behavior,
    choices: usize,
    streams_usage: bool,
    events: Events,
}

impl Chunks<'_> {
    fn push(&mut self, delta: &impl Serialize, finish_reason: Option<&'static str>) {
        for index in 0..self.choices {
            let choice = ChunkChoice { index, delta, logprobs: (), finish_reason };
            self.push_choices([choice], self.streams_usage.then_some(None));
        }
    }

    fn push_choices(&mut self, choices: impl Serialize, usage: Option<Option<Usage>>) {
        self.events.data(&Envelope {
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

fn stream(answer: &Answer, request: &Request, behavior: &Behavior) -> Events {
    let mut chunks = Chunks {
        id: id("chatcmpl-"),
        answer,
        behavior,
        choices: request.choices(),
        streams_usage: streams_usage(request, behavior),
        events: Events::new(),
    };
    match &answer.speech {
        Speech::Text(_) => {
            chunks.push(&json!({"role": "assistant", "content": "", "refusal": null}), None);
            for content in answer.pieces() {
                chunks.push(&ContentDelta { content }, None);
            }
        }
        Speech::Call { tool, .. } => {
            let function = json!({"name": tool, "arguments": ""});
            let call =
                json!({"index": 0, "id": id("call_"), "type": "function", "function": function});
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
        chunks.push_choices(nothing, answer.tokens.reported(behavior.usage));
    }
    chunks.events.done();
    chunks.events
}

/// The event that ends a stream of this family in an error.
pub(crate) fn error_event(events: &mut Events) {
    events.data(&json!({"error": {
        "message": "a simulated error in the stream",
        "type": "server_error",
        "param": null,
        "code": null,
    }}));
}
