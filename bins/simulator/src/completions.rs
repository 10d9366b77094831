//! OpenAI's older completions dialect.

use serde::Serialize;

use crate::answer::{AnswerContent, GeneratedAnswer, new_id};
use crate::behavior::Behavior;
use crate::chat::{ChatUsage, CompletionBody, FINGERPRINT, finish_reason, streams_usage};
use crate::deliver::{EventBuffer, SimulatedResponse};
use crate::request::SimulatedRequest;

#[derive(Serialize)]
struct TextChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

/// Answers `POST /v1/completions`.
pub(crate) fn respond(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let answer = GeneratedAnswer::new(request, behavior);
    let id = new_id("cmpl-");
    let finish = Some(finish_reason(answer.finish));
    let (text, tokens) = (content_text(&answer.speech), answer.tokens);
    if !request.stream() {
        let choice = |index| TextChoice { index, text, logprobs: (), finish_reason: finish };
        let choices = (0..request.choices()).map(choice).collect::<Vec<_>>();
        let usage = tokens.usage_field(behavior.usage);
        return SimulatedResponse::json(
            &completion_body(&id, &answer, behavior, choices, usage),
            tokens,
        );
    }

    let mut events = EventBuffer::new();
    let streams_usage = streams_usage(request, behavior);
    let ending = std::iter::once(("", finish));
    for (text, finish_reason) in answer.pieces().map(|piece| (piece, None)).chain(ending) {
        for index in 0..request.choices() {
            let choices = [TextChoice { index, text, logprobs: (), finish_reason }];
            let usage = streams_usage.then_some(None);
            events.data(&completion_body(&id, &answer, behavior, choices, usage));
        }
    }
    if streams_usage {
        let choices: [(); 0] = [];
        let usage = tokens.usage_field(behavior.usage);
        events.data(&completion_body(&id, &answer, behavior, choices, usage));
    }
    events.done();
    SimulatedResponse::events(events, tokens)
}

/// The answer as text. This dialect has no tools, so a tool call is written as text.
fn content_text(speech: &AnswerContent) -> &str {
    match speech {
        AnswerContent::Text(text) => text,
        AnswerContent::Call { arguments, .. } => arguments,
    }
}

fn completion_body<'a, C>(
    id: &'a str,
    answer: &'a GeneratedAnswer,
    behavior: &'a Behavior,
    choices: C,
    usage: Option<Option<ChatUsage>>,
) -> CompletionBody<'a, C> {
    CompletionBody {
        id,
        object: "text_completion",
        created: answer.created,
        model: &answer.model,
        service_tier: &behavior.service_tier,
        system_fingerprint: FINGERPRINT,
        choices,
        usage,
    }
}
