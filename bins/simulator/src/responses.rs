//! OpenAI's responses dialect.

use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Finish, Speech, Tokens, id};
use crate::behavior::Behavior;
use crate::deliver::{Events, Reply};
use crate::request::Request;

#[derive(Serialize)]
struct Usage {
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

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
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
pub(crate) fn reply(request: &Request, behavior: &Behavior) -> Reply {
    let answer = Answer::new(request, behavior);
    let response = Response { id: id("resp_"), answer: &answer, behavior };
    let item = Item::new(&answer);
    match request.stream() {
        true => Reply::events(stream(&response, &item), answer.tokens),
        false => Reply::json(&response.ended(&item), answer.tokens),
    }
}

struct Response<'a> {
    id: String,
    answer: &'a Answer,
    behavior: &'a Behavior,
}

impl Response<'_> {
    fn begun(&self) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.answer.created,
            "status": "in_progress",
            "background": false,
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
            "store": false,
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

    fn ended(&self, item: &Item<'_>) -> Value {
        let mut response = self.begun();
        let Some(fields) = response.as_object_mut() else { return response };
        fields.insert("status".to_owned(), self.status().into());
        fields.insert("output".to_owned(), json!([item.ended(self.status())]));
        if self.answer.finish == Finish::Length {
            let details = json!({"reason": "max_output_tokens"});
            fields.insert("incomplete_details".to_owned(), details);
        }
        match self.answer.tokens.reported::<Usage>(self.behavior.usage) {
            Some(usage) => fields.insert("usage".to_owned(), json!(usage)),
            None => fields.remove("usage"),
        };
        response
    }

    fn status(&self) -> &'static str {
        match self.answer.finish {
            Finish::Length => "incomplete",
            Finish::Stop | Finish::Tool => "completed",
        }
    }
}

/// The only output item of a response.
struct Item<'a> {
    id: String,
    call_id: String,
    speech: &'a Speech,
}

impl<'a> Item<'a> {
    fn new(answer: &'a Answer) -> Self {
        let prefix = if answer.finish == Finish::Tool { "fc_" } else { "msg_" };
        Self { id: id(prefix), call_id: id("call_"), speech: &answer.speech }
    }

    fn begun(&self) -> Value {
        self.value("in_progress", "", json!([]))
    }

    fn ended(&self, status: &str) -> Value {
        match self.speech {
            Speech::Text(text) => self.value(status, "", json!([text_part(text)])),
            Speech::Call { arguments, .. } => self.value(status, arguments, Value::Null),
        }
    }

    fn value(&self, status: &str, arguments: &str, content: Value) -> Value {
        let id = &self.id;
        match self.speech {
            Speech::Text(_) => json!({
                "id": id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }),
            Speech::Call { tool, .. } => json!({
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
fn push(events: &mut Events, name: &str, mut data: Value) {
    if let Some(fields) = data.as_object_mut() {
        fields.insert("type".to_owned(), name.into());
        fields.insert("sequence_number".to_owned(), events.len().into());
    }
    events.named(name, &data);
}

fn stream(response: &Response<'_>, item: &Item<'_>) -> Events {
    let mut events = Events::new();
    let events = &mut events;
    let item_id = &item.id;
    push(events, "response.created", json!({"response": response.begun()}));
    push(events, "response.in_progress", json!({"response": response.begun()}));
    let added = json!({"output_index": 0, "item": item.begun()});
    push(events, "response.output_item.added", added);
    match item.speech {
        Speech::Text(text) => {
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
        Speech::Call { tool, arguments } => {
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
    let done = json!({"output_index": 0, "item": item.ended(status)});
    push(events, "response.output_item.done", done);
    push(events, &format!("response.{status}"), json!({"response": response.ended(item)}));
    std::mem::replace(events, Events::new())
}

fn with_logprobs(event: &mut Value) {
    if let Some(fields) = event.as_object_mut() {
        fields.insert("logprobs".to_owned(), json!([]));
    }
}

/// The event that ends a stream in an error.
pub(crate) fn error_event(events: &mut Events) {
    let message = "a simulated error in the stream";
    push(events, "error", json!({"code": "server_error", "message": message, "param": null}));
}
