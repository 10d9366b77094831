//! OpenAI's responses dialect.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{AnswerContent, FinishReason, GeneratedAnswer, TokenCounts, new_id};
use crate::behavior::Behavior;
use crate::deliver::{EventBuffer, SimulatedResponse};
use crate::request::SimulatedRequest;

#[derive(Serialize)]
struct ResponsesUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<TokenCounts> for ResponsesUsage {
    fn from(tokens: TokenCounts) -> Self {
        Self {
            input_tokens: tokens.input,
            input_tokens_details: InputDetails { cached_tokens: tokens.cached },
            output_tokens: tokens.output,
            output_tokens_details: OutputDetails { reasoning_tokens: tokens.reasoning },
            total_tokens: tokens.input.saturating_add(tokens.output),
        }
    }
}

/// Answers `POST /v1/responses`.
pub(crate) fn respond(request: &SimulatedRequest, behavior: &Behavior) -> SimulatedResponse {
    let answer = GeneratedAnswer::new(request, behavior);
    let id = new_id("resp_");
    let response = ResponseObject { id, answer: &answer, behavior, in_background: false };
    let item = OutputItem::new(&answer);
    match request.stream() {
        true => SimulatedResponse::events(stream(&response, &item), answer.tokens),
        false => SimulatedResponse::json(&response.final_json(&item), answer.tokens),
    }
}

/// A response at its beginning and at its end, with its events.
pub(crate) struct ResponsePair {
    pub(crate) id: String,
    pub(crate) first: Value,
    pub(crate) last: Value,
    pub(crate) events: EventBuffer,
    pub(crate) tokens: TokenCounts,
}

/// A response in the background.
pub(crate) fn pair(request: &SimulatedRequest, behavior: &Behavior) -> ResponsePair {
    let answer = GeneratedAnswer::new(request, behavior);
    let id = new_id("resp_");
    let response = ResponseObject { id, answer: &answer, behavior, in_background: true };
    let item = OutputItem::new(&answer);
    ResponsePair {
        first: response.initial_json(),
        last: response.final_json(&item),
        events: stream(&response, &item),
        tokens: answer.tokens,
        id: response.id,
    }
}

struct ResponseObject<'a> {
    id: String,
    answer: &'a GeneratedAnswer,
    behavior: &'a Behavior,
    in_background: bool,
}

impl ResponseObject<'_> {
    fn initial_json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.answer.created,
            "status": "in_progress",
            "background": self.in_background,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": null,
            "metadata": {},
            "model": self.answer.model,
            "output": [],
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "service_tier": self.behavior.service_tier,
            "store": self.in_background,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": null,
            "user": null,
        })
    }

    fn final_json(&self, item: &OutputItem<'_>) -> Value {
        let mut response = self.initial_json();
        let Some(fields) = response.as_object_mut() else { return response };
        fields.insert("status".to_owned(), self.status().into());
        fields.insert("output".to_owned(), json!([item.final_json(self.status())]));
        if self.answer.finish == FinishReason::Length {
            let details = json!({"reason": "max_output_tokens"});
            fields.insert("incomplete_details".to_owned(), details);
        }
        match self.answer.tokens.usage_field::<ResponsesUsage>(self.behavior.usage) {
            Some(usage) => fields.insert("usage".to_owned(), json!(usage)),
            None => fields.remove("usage"),
        };
        response
    }

    fn status(&self) -> &'static str {
        match self.answer.finish {
            FinishReason::Length => "incomplete",
            FinishReason::Stop | FinishReason::Tool => "completed",
        }
    }
}

/// The only output item of a response.
struct OutputItem<'a> {
    id: String,
    call_id: String,
    speech: &'a AnswerContent,
}

impl<'a> OutputItem<'a> {
    fn new(answer: &'a GeneratedAnswer) -> Self {
        let prefix = if answer.finish == FinishReason::Tool { "fc_" } else { "msg_" };
        Self { id: new_id(prefix), call_id: new_id("call_"), speech: &answer.speech }
    }

    fn initial_json(&self) -> Value {
        self.value("in_progress", "", json!([]))
    }

    fn final_json(&self, status: &str) -> Value {
        match self.speech {
            AnswerContent::Text(text) => self.value(status, "", json!([text_part(text)])),
            AnswerContent::Call { arguments, .. } => self.value(status, arguments, Value::Null),
        }
    }

    fn value(&self, status: &str, arguments: &str, content: Value) -> Value {
        let id = &self.id;
        match self.speech {
            AnswerContent::Text(_) => json!({
                "id": id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }),
            AnswerContent::Call { tool, .. } => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": self.call_id,
                "name": tool,
                "arguments": arguments,
            }),
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Adds an event whose name is also its type, with its sequence number.
fn push(events: &mut EventBuffer, name: &str, mut data: Value) {
    if let Some(fields) = data.as_object_mut() {
        fields.insert("type".to_owned(), name.into());
        fields.insert("sequence_number".to_owned(), events.len().into());
    }
    events.named(name, &data);
}

fn stream(response: &ResponseObject<'_>, item: &OutputItem<'_>) -> EventBuffer {
    let mut events = EventBuffer::new();
    let events = &mut events;
    let item_id = &item.id;
    push(events, "response.created", json!({"response": response.initial_json()}));
    push(events, "response.in_progress", json!({"response": response.initial_json()}));
    let added = json!({"output_index": 0, "item": item.initial_json()});
    push(events, "response.output_item.added", added);
    match item.speech {
        AnswerContent::Text(text) => {
            let at = |key: &str, value: Value| json!({"item_id": item_id, "output_index": 0, "content_index": 0, key: value});
            push(events, "response.content_part.added", at("part", text_part("")));
            for piece in response.answer.pieces() {
                let mut delta = at("delta", piece.into());
                with_logprobs(&mut delta);
                push(events, "response.output_text.delta", delta);
            }
            let mut done = at("text", text.as_str().into());
            with_logprobs(&mut done);
            push(events, "response.output_text.done", done);
            push(events, "response.content_part.done", at("part", text_part(text)));
        }
        AnswerContent::Call { tool, arguments } => {
            for piece in response.answer.pieces() {
                let delta = json!({"item_id": item_id, "output_index": 0, "delta": piece});
                push(events, "response.function_call_arguments.delta", delta);
            }
            let done = json!({
                "item_id": item_id,
                "output_index": 0,
                "name": tool,
                "arguments": arguments,
            });
            push(events, "response.function_call_arguments.done", done);
        }
    }
    let status = response.status();
    let done = json!({"output_index": 0, "item": item.final_json(status)});
    push(events, "response.output_item.done", done);
    push(events, &format!("response.{status}"), json!({"response": response.final_json(item)}));
    std::mem::replace(events, EventBuffer::new())
}

fn with_logprobs(event: &mut Value) {
    if let Some(fields) = event.as_object_mut() {
        fields.insert("logprobs".to_owned(), json!([]));
    }
}

/// The event that ends a stream in an error.
pub(crate) fn error_event(events: &mut EventBuffer) {
    let message = "a simulated error in the stream";
    push(events, "error", json!({"code": "server_error", "message": message, "param": null}));
}
