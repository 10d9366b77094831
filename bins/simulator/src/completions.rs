//! OpenAI's older completions dialect.

use serde::Serialize;

use crate::answer::{Answer, Speech, id};
use crate::behavior::Behavior;
use crate::chat::{Envelope, FINGERPRINT, Usage, finish_reason, streams_usage};
use crate::deliver::{Events, Reply};
use crate::request::Request;

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

/// Answers `POST /v1/completions`.
pub(crate) fn reply(request: &Request, behavior: &Behavior) -> Reply {
    let answer = Answer::new(request, behavior);
    let id = id("cmpl-");
    let finish = Some(finish_reason(answer.finish));
    let (text, tokens) = (spoken(&answer.speech), answer.tokens);
    if !request.stream() {
        let choice = |index| Choice { index, text, logprobs: (), finish_reason: finish };
        let choices = (0..request.choices()).map(choice).collect::<Vec<_>>();
        let usage = tokens.reported(behavior.usage);
        return Reply::json(&envelope(&id, &answer, behavior, choices, usage), tokens);
    }

    let mut events = Events::new();
    let streams_usage = streams_usage(request, behavior);
    let ending = std::iter::once(("", finish));
    for (text, finish_reason) in answer.pieces().map(|piece| (piece, None)).chain(ending) {
        for index in 0..request.choices() {
            let choices = [Choice { index, text, logprobs: (), finish_reason }];
            let usage = streams_usage.then_some(None);
            events.data(&envelope(&id, &answer, behavior, choices, usage));
        }
    }
    if streams_usage {
        let choices: [(); 0] = [];
        let usage = tokens.reported(behavior.usage);
        events.data(&envelope(&id, &answer, behavior, choices, usage));
    }
    events.done();
    Reply::events(events, tokens)
}

/// The answer as text. This dialect has no tools, so a tool call is written as text.
fn spoken(speech: &Speech) -> &str {
    match speech {
        Speech::Text(text) => text,
        Speech::Call { arguments, .. } => arguments,
    }
}

fn envelope<'a, C>(
    id: &'a str,
    answer: &'a Answer,
    behavior: &'a Behavior,
    choices: C,
    usage: Option<Option<Usage>>,
) -> Envelope<'a, C> {
    Envelope {
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
