//! OpenAI's Realtime API.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::{Payload, Query};
use actix_web::{HttpRequest, HttpResponse, rt};
use actix_ws::{CloseCode, CloseReason, Session};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::peer::{SocketPeer, serve};
use super::speech::{Speech, SpeechChange, sound};
use crate::answer::{TokenCounts, new_id, spoken_words, unix_seconds};
use crate::behavior::{Behavior, UsageReport};
use crate::deliver::fill_stamp;
use crate::endpoint::SimulatedEndpoint;
use crate::stats::SimulatorCounters;

/// The sound of a word.
const WORD_MS: usize = 20;
/// The longest conversation, in seconds.
const LONGEST_S: u64 = 3_600;

#[derive(Deserialize)]
struct RealtimeQuery {
    model: Option<String>,
    intent: Option<String>,
}

/// Opens a conversation.
pub(crate) fn realtime(
    http: &HttpRequest,
    payload: Payload,
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
) -> actix_web::Result<HttpResponse> {
    let query = Query::<RealtimeQuery>::from_query(http.query_string())?.into_inner();
    serve(http, payload, |session| RealtimeSession {
        behavior,
        counters,
        session,
        settings: RefCell::new(first_settings(&query)),
        input: RefCell::default(),
        active: RefCell::default(),
    })
}

/// A conversation.
struct RealtimeSession {
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
    session: Session,
    /// The session, as the provider states it.
    settings: RefCell<Value>,
    input: RefCell<RealtimeInput>,
    active: RefCell<Option<Rc<ActiveResponse>>>,
}

/// The input so far.
#[derive(Default)]
struct RealtimeInput {
    speech: Speech,
    text_tokens: u64,
    audio_tokens: u64,
    /// The last words of it.
    tail: String,
    ends_in_tool_result: bool,
    items: Vec<Value>,
}

/// A response in progress.
struct ActiveResponse {
    id: String,
    /// The reason of its cancellation.
    cancelled: Cell<Option<&'static str>>,
}

fn first_settings(query: &RealtimeQuery) -> Value {
    let kind = match query.intent.as_deref() {
        Some("transcription") => "transcription",
        _ => "realtime",
    };
    json!({
        "object": "realtime.session",
        "type": kind,
        "id": new_id("sess_"),
        "model": query.model,
        "expires_at": unix_seconds().saturating_add(LONGEST_S),
        "output_modalities": ["audio"],
        "instructions": "You are a simulated model.",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "prompt": null,
        "include": null,
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": null,
                "noise_reduction": null,
                "turn_detection": {
                    "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300,
                    "silence_duration_ms": 200, "idle_timeout_ms": null,
                    "create_response": true, "interrupt_response": true,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "alloy", "speed": 1.0},
        },
    })
}

/// Puts the fields of `change` into `value`, object by object.
fn merge(value: &mut Value, change: &Value) {
    match (value, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(fields.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change.clone(),
    }
}

impl SocketPeer for RealtimeSession {
    const TAKES_BINARY: bool = false;

    async fn begin(self: Rc<Self>) {
        let session = self.settings.borrow().clone();
        self.send(json!({"type": "session.created", "session": session})).await;
        if let Some(ms) = self.behavior.session_ms {
            let session = Rc::clone(&self);
            rt::spawn(async move {
                rt::time::sleep(Duration::from_millis(ms)).await;
                let message = "Your session hit the maximum duration.";
                session.fail("session_expired", message, None).await;
                let reason = CloseReason::from((CloseCode::Away, "session_expired"));
                drop(session.session.clone().close(Some(reason)).await);
            });
        }
    }

    async fn take(self: Rc<Self>, message: Bytes) {
        let message: Value = serde_json::from_slice(&message).unwrap_or_default();
        let event_id = message.get("event_id").and_then(Value::as_str).map(str::to_owned);
        let text = |name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "session.update" => {
                if let Some(change) = message.get("session") {
                    merge(&mut self.settings.borrow_mut(), change);
                }
                let session = self.settings.borrow().clone();
                self.send(json!({"type": "session.updated", "session": session})).await;
            }
            "input_audio_buffer.append" => self.hear(text("audio")).await,
            "input_audio_buffer.commit" => {
                if self.input.borrow().speech.ms < 100 {
                    let message = "Error committing input audio buffer: buffer too small.";
                    self.fail("input_audio_buffer_commit_empty", message, event_id).await;
                    return;
                }
                self.commit().await;
            }
            "input_audio_buffer.clear" => {
                self.input.borrow_mut().speech = Speech::default();
                self.send(json!({"type": "input_audio_buffer.cleared"})).await;
            }
            "conversation.item.create" => {
                let mut item = message.get("item").cloned().unwrap_or_default();
                self.input.borrow_mut().add_item(&item);
                if let Some(fields) = item.as_object_mut() {
                    fields.entry("id").or_insert_with(|| new_id("item_").into());
                    fields.insert("object".to_owned(), "realtime.item".into());
                    fields.insert("status".to_owned(), "completed".into());
                }
                self.send_item(&item).await;
            }
            "conversation.item.truncate" => {
                let (item, index) = (message.get("item_id"), message.get("content_index"));
                self.send(json!({"type": "conversation.item.truncated", "item_id": item,
                    "content_index": index, "audio_end_ms": message.get("audio_end_ms")}))
                    .await;
            }
            "conversation.item.delete" => {
                let item = message.get("item_id");
                self.input.borrow_mut().items.retain(|one| one.get("id") != item);
                self.send(json!({"type": "conversation.item.deleted", "item_id": item})).await;
            }
            "conversation.item.retrieve" => {
                let id = message.get("item_id");
                let item = {
                    let input = self.input.borrow();
                    input.items.iter().find(|one| one.get("id") == id).cloned()
                };
                match item {
                    Some(item) => {
                        let message = json!({"type": "conversation.item.retrieved", "item": item});
                        self.send(message).await;
                    }
                    None => {
                        let message = "Error retrieving item: the item_id does not exist.";
                        self.fail("item_retrieve_invalid_item_id", message, event_id).await;
                    }
                }
            }
            "response.create" => {
                let settings = message.get("response").cloned().unwrap_or_default();
                self.create(&settings, event_id).await;
            }
            "response.cancel" => {
                let active = self.active.borrow().clone();
                match active {
                    Some(active) => active.cancelled.set(Some("client_cancelled")),
                    None => {
                        let message = "Cancellation failed: no active response found";
                        self.fail("response_cancel_not_active", message, event_id).await;
                    }
                }
            }
            other => {
                let message = format!("Invalid value: '{other}'.");
                self.fail("invalid_value", &message, event_id).await;
            }
        }
    }
}

impl RealtimeSession {
    async fn send(&self, mut message: Value) {
        if let Some(fields) = message.as_object_mut() {
            fields.insert("event_id".to_owned(), new_id("event_").into());
        }
        drop(self.session.clone().text(message.to_string()).await);
    }

    async fn fail(&self, code: &str, message: &str, event_id: Option<String>) {
        self.send(json!({"type": "error", "error": {"type": "invalid_request_error", "code": code,
            "message": message, "param": null, "event_id": event_id}}))
            .await;
    }

    async fn send_item(&self, item: &Value) {
        self.input.borrow_mut().items.push(item.clone());
        for kind in ["conversation.item.added", "conversation.item.done"] {
            self.send(json!({"type": kind, "previous_item_id": null, "item": item})).await;
        }
    }

    /// A setting of the input, such as `turn_detection`.
    fn input_setting(&self, name: &str) -> Value {
        let settings = self.settings.borrow();
        let input = settings.pointer("/audio/input").cloned().unwrap_or_default();
        input.get(name).cloned().unwrap_or_default()
    }

    async fn hear(self: &Rc<Self>, sound: &str) {
        let detection = self.input_setting("turn_detection");
        let silence_ms = detection.get("silence_duration_ms").and_then(Value::as_u64);
        let format = self.input_setting("format");
        let bytes_per_second = match format.get("type").and_then(Value::as_str) {
            Some("audio/pcmu" | "audio/pcma") => 8_000,
            _ => 48_000,
        };
        let change =
            self.input.borrow_mut().speech.hear(sound, bytes_per_second, silence_ms.unwrap_or(200));
        let flag = |name: &str| detection.get(name).and_then(Value::as_bool).unwrap_or(true);
        match change.filter(|_| !detection.is_null()) {
            None => {}
            Some(SpeechChange::Started) => {
                self.send(json!({"type": "input_audio_buffer.speech_started",
                    "audio_start_ms": 0, "item_id": new_id("item_")}))
                    .await;
                let active = self.active.borrow().clone();
                if let Some(active) = active.filter(|_| flag("interrupt_response")) {
                    active.cancelled.set(Some("turn_detected"));
                }
            }
            Some(SpeechChange::Stopped) => {
                self.send(json!({"type": "input_audio_buffer.speech_stopped",
                    "audio_end_ms": self.input.borrow().speech.ms, "item_id": new_id("item_")}))
                    .await;
                self.commit().await;
                let makes_responses = !is(&self.settings.borrow(), "type", "transcription");
                if flag("create_response") && makes_responses {
                    self.create(&Value::Null, None).await;
                }
            }
        }
    }

    /// Makes the sound an item of the conversation, and transcribes it.
    async fn commit(self: &Rc<Self>) {
        let (tokens, ms) = {
            let mut input = self.input.borrow_mut();
            let ms = input.speech.ms;
            let tokens = input.speech.take_tokens();
            input.audio_tokens = input.audio_tokens.saturating_add(tokens);
            input.ends_in_tool_result = false;
            (tokens, ms)
        };
        let id = new_id("item_");
        self.send(json!({"type": "input_audio_buffer.committed", "previous_item_id": null,
            "item_id": id}))
            .await;
        let item = json!({"id": id, "object": "realtime.item", "type": "message", "status": "completed",
            "role": "user", "content": [{"type": "input_audio", "transcript": null}]});
        self.send_item(&item).await;
        let transcription = self.input_setting("transcription");
        let model = transcription.get("model").and_then(Value::as_str).map(str::to_owned);
        if let Some(model) = model {
            let conversation = Rc::clone(self);
            rt::spawn(async move { conversation.transcribe(&id, &model, tokens, ms).await });
        }
    }

    async fn transcribe(&self, item_id: &str, model: &str, tokens: u64, ms: u64) {
        let endpoint = SimulatedEndpoint::RealtimeTranscriptions;
        self.counters.count_call(endpoint);
        rt::time::sleep(Duration::from_millis(self.behavior.chunk_delay_ms)).await;
        let transcript = "These are simulated words.";
        let words = 4;
        let counts = TokenCounts { input: tokens, output: words, ..TokenCounts::default() };
        let usage = match model.starts_with("whisper") {
            true => json!({"type": "duration", "seconds": ms.div_ceil(1_000)}),
            false => json!({"type": "tokens", "input_tokens": tokens, "output_tokens": words,
                "total_tokens": tokens.saturating_add(words),
                "input_token_details": {"audio_tokens": tokens, "text_tokens": 0}}),
        };
        self.counters.count_tokens(endpoint, counts);
        self.send(json!({"type": "conversation.item.input_audio_transcription.delta",
            "item_id": item_id, "content_index": 0, "delta": transcript}))
            .await;
        self.send(json!({"type": "conversation.item.input_audio_transcription.completed",
            "item_id": item_id, "content_index": 0, "transcript": transcript, "usage": usage}))
            .await;
    }

    /// Begins a response, unless one is in progress.
    async fn create(self: &Rc<Self>, settings: &Value, event_id: Option<String>) {
        let active = self.active.borrow().clone();
        if let Some(active) = active {
            // One that was cancelled is about to end.
            if active.cancelled.get().is_none() {
                let message = format!(
                    "Conversation already has an active response in progress: {}. Wait until the response is \
                     finished before creating a new one.",
                    active.id
                );
                return self
                    .fail("conversation_already_has_active_response", &message, event_id)
                    .await;
            }
        }
        let active = Rc::new(ActiveResponse { id: new_id("resp_"), cancelled: Cell::new(None) });
        let before = self.active.replace(Some(Rc::clone(&active)));
        let mut all = self.settings.borrow().clone();
        if settings.is_object() {
            merge(&mut all, settings);
        }
        let conversation = Rc::clone(self);
        rt::spawn(async move {
            // The one before is about to end.
            while before.as_ref().is_some_and(|before| Rc::strong_count(before) > 1) {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            conversation.respond(&active, &all).await;
            let is_active = conversation
                .active
                .borrow()
                .as_ref()
                .is_some_and(|current| current.id == active.id);
            if is_active {
                conversation.active.replace(None);
            }
        });
    }

    async fn respond(&self, active: &ActiveResponse, settings: &Value) {
        let endpoint = SimulatedEndpoint::Realtime;
        self.counters.count_call(endpoint);
        rt::time::sleep(Duration::from_millis(self.behavior.first_byte_delay_ms)).await;
        let response = ResponseObject { id: &active.id, settings };
        self.send(json!({"type": "response.created",
            "response": response.json("in_progress", &Value::Null, &[], &Value::Null)}))
            .await;
        if self.behavior.status != 200 {
            self.counters.count_error(endpoint);
            let details = failed("server_error");
            let last = response.json("failed", &details, &[], &Value::Null);
            return self.send(json!({"type": "response.done", "response": last})).await;
        }
        let (plan, item) = self.plan(&response);
        let events = plan.events(&active.id, &item);
        let mut sent = 0;
        for event in events {
            if active.cancelled.get().is_some() {
                break;
            }
            if self.behavior.cut_after_events == Some(sent) {
                self.counters.count_error(endpoint);
                drop(self.session.clone().close(Some(CloseCode::Error.into())).await);
                return;
            }
            if self.behavior.error_after_events == Some(sent) {
                active.cancelled.set(Some("failed"));
                break;
            }
            self.send(event).await;
            sent += 1;
            rt::time::sleep(Duration::from_millis(self.behavior.chunk_delay_ms)).await;
        }
        let is_text = plan.is_text;
        let (status, details) = match active.cancelled.get() {
            Some("failed") => ("failed", failed("server_error")),
            Some(reason) => ("cancelled", json!({"type": "cancelled", "reason": reason})),
            None if plan.is_cut => {
                ("incomplete", json!({"type": "incomplete", "reason": "max_output_tokens"}))
            }
            None => ("completed", Value::Null),
        };
        let said = match status {
            "completed" | "incomplete" => plan.words.len(),
            _ => sent.min(plan.words.len()),
        };
        let usage = self.usage(u64::try_from(said).unwrap_or(u64::MAX), is_text);
        self.input.borrow_mut().items.push(item.clone());
        let mut last = response.json(status, &details, &[item], &usage.unwrap_or_default());
        if self.behavior.usage == UsageReport::Missing
            && let Some(fields) = last.as_object_mut()
        {
            fields.remove("usage");
        }
        self.send(json!({"type": "rate_limits.updated", "rate_limits": []})).await;
        self.send(json!({"type": "response.done", "response": last})).await;
    }

    /// The words of a response, and its only item.
    fn plan(&self, response: &ResponseObject<'_>) -> (ResponsePlan, Value) {
        let input = self.input.borrow();
        let settings = response.settings;
        let first_tool =
            settings.get("tools").and_then(Value::as_array).and_then(|all| all.first());
        let tool = first_tool.filter(|_| !input.ends_in_tool_result);
        let most = settings.get("max_output_tokens").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let modalities = settings.get("output_modalities").and_then(Value::as_array);
        let has_sound = modalities.is_none_or(|all| all.contains(&"audio".into()));
        if let Some(tool) = tool {
            let words = vec!["{}".to_owned()];
            let item = json!({"id": new_id("item_"), "object": "realtime.item", "type": "function_call",
                "status": "completed", "name": tool.get("name"), "call_id": new_id("call_"),
                "arguments": "{}"});
            return (ResponsePlan { words, is_text: true, is_call: true, is_cut: false }, item);
        }
        let words = spoken_words(&input.tail, &self.behavior, most);
        let is_cut = u64::from(self.behavior.words) > most;
        let content = match has_sound {
            true => json!({"type": "output_audio", "transcript": words.join(" ")}),
            false => json!({"type": "output_text", "text": words.join(" ")}),
        };
        let item = json!({"id": new_id("item_"), "object": "realtime.item", "type": "message",
            "status": "completed", "role": "assistant", "content": [content]});
        (ResponsePlan { words, is_text: !has_sound, is_call: false, is_cut }, item)
    }

    /// The usage of a response that has said this number of words. All of it is input of the next one.
    fn usage(&self, said: u64, is_text: bool) -> Option<Value> {
        let mut input = self.input.borrow_mut();
        let audio = if is_text { 0 } else { said };
        let before = input.text_tokens.saturating_add(input.audio_tokens);
        let tokens = TokenCounts::new(before, said.saturating_add(audio), &self.behavior);
        let input_audio = input.audio_tokens.min(tokens.input);
        input.text_tokens = input.text_tokens.saturating_add(said);
        input.audio_tokens = input.audio_tokens.saturating_add(audio);
        drop(input);
        let booked = tokens.booked(self.behavior.usage);
        self.counters.count_tokens(SimulatedEndpoint::Realtime, booked);
        let output_audio = audio.min(booked.output);
        let cached_text = booked.cached.min(booked.input.saturating_sub(input_audio));
        let usage = json!({
            "total_tokens": booked.input.saturating_add(booked.output),
            "input_tokens": booked.input,
            "output_tokens": booked.output,
            "input_token_details": {
                "text_tokens": booked.input.saturating_sub(input_audio), "audio_tokens": input_audio.min(booked.input),
                "image_tokens": 0, "cached_tokens": booked.cached,
                "cached_tokens_details": {"text_tokens": cached_text,
                    "audio_tokens": booked.cached.saturating_sub(cached_text), "image_tokens": 0},
            },
            "output_token_details": {
                "text_tokens": booked.output.saturating_sub(output_audio), "audio_tokens": output_audio,
            },
        });
        matches!(self.behavior.usage, UsageReport::Reported | UsageReport::Zero).then_some(usage)
    }
}

impl RealtimeInput {
    fn add_item(&mut self, item: &Value) {
        let is_result = is(item, "type", "function_call_output");
        let parts = item.get("content").and_then(Value::as_array).into_iter().flatten();
        let texts = parts.filter_map(|part| part.get("text")?.as_str());
        let output = item.get("output").and_then(Value::as_str);
        for text in texts.chain(output) {
            let words = u64::try_from(text.split_whitespace().count()).unwrap_or(u64::MAX);
            self.text_tokens = self.text_tokens.saturating_add(words);
            text.clone_into(&mut self.tail);
        }
        self.ends_in_tool_result = is_result;
    }
}

/// The words of a response, and how it says them.
struct ResponsePlan {
    words: Vec<String>,
    is_text: bool,
    is_call: bool,
    /// Whether a maximum cuts it.
    is_cut: bool,
}

impl ResponsePlan {
    /// The messages between the first and the last of a response.
    fn events(&self, response_id: &str, item: &Value) -> Vec<Value> {
        let of = |kind: &str, more: Value| {
            let mut event = Map::new();
            event.insert("type".to_owned(), kind.into());
            event.insert("response_id".to_owned(), response_id.into());
            event.insert("item_id".to_owned(), item.get("id").cloned().unwrap_or_default());
            event.insert("output_index".to_owned(), 0.into());
            event.insert("content_index".to_owned(), 0.into());
            event.extend(more.as_object().cloned().unwrap_or_default());
            Value::Object(event)
        };
        let mut events = vec![of("response.output_item.added", json!({"item": item}))];
        for (place, word) in self.words.iter().enumerate() {
            let space = if place == 0 { "" } else { " " };
            let word = format!("{space}{word}");
            let word = String::from_utf8_lossy(&fill_stamp(word.into())).into_owned();
            match (self.is_call, self.is_text) {
                (true, _) => {
                    let call_id = item.get("call_id");
                    let delta = json!({"call_id": call_id, "delta": word});
                    events.push(of("response.function_call_arguments.delta", delta));
                }
                (false, true) => {
                    events.push(of("response.output_text.delta", json!({"delta": word})))
                }
                (false, false) => {
                    let delta = json!({"delta": word});
                    events.push(of("response.output_audio_transcript.delta", delta));
                    let delta = json!({"delta": sound(WORD_MS)});
                    events.push(of("response.output_audio.delta", delta));
                }
            }
        }
        if self.is_call {
            let done = json!({"call_id": item.get("call_id"), "name": item.get("name"), "arguments": "{}"});
            events.push(of("response.function_call_arguments.done", done));
        }
        events.push(of("response.output_item.done", json!({"item": item})));
        events
    }
}

fn failed(code: &str) -> Value {
    json!({"type": "failed", "error": {"type": "server_error", "code": code}})
}

/// A response, as its messages show it.
struct ResponseObject<'a> {
    id: &'a str,
    settings: &'a Value,
}

impl ResponseObject<'_> {
    fn json(&self, status: &str, details: &Value, output: &[Value], usage: &Value) -> Value {
        let is_apart = is(self.settings, "conversation", "none");
        json!({
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": if is_apart { None } else { Some("conv_1") },
            "output_modalities": self.settings.get("output_modalities"),
            "max_output_tokens": self.settings.get("max_output_tokens"),
            "usage": usage,
            "metadata": self.settings.get("metadata"),
        })
    }
}

/// Whether a field has this text.
fn is(value: &Value, field: &str, text: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(text)
}
