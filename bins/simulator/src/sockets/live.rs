//! Google's Gemini Live API. Its messages are JSON, sent as bytes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse, rt};
use actix_ws::{CloseCode, CloseReason, Session};
use bytes::Bytes;
use serde_json::{Value, json};

use super::peer::{SocketPeer, serve};
use super::speech::{Speech, SpeechChange, sound};
use crate::answer::{TokenCounts, new_id, spoken_words};
use crate::behavior::{Behavior, UsageReport};
use crate::endpoint::SimulatedEndpoint;
use crate::stats::SimulatorCounters;

/// The sound of a word.
const WORD_MS: usize = 20;
/// The silence that ends speech.
const SILENCE_MS: u64 = 500;
/// The bytes of a second of samples of 16 bits at 16 kHz.
const BYTES_PER_SECOND: u64 = 32_000;

/// Opens a conversation.
pub(crate) fn live(
    http: &HttpRequest,
    payload: Payload,
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
) -> actix_web::Result<HttpResponse> {
    serve(http, payload, |session| LiveSession {
        behavior,
        counters,
        session,
        setup: RefCell::default(),
        input: RefCell::default(),
        interrupted: RefCell::default(),
    })
}

/// A conversation.
struct LiveSession {
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
    session: Session,
    /// The message that began it.
    setup: RefCell<Value>,
    input: RefCell<LiveInput>,
    /// Whether the turn in progress is interrupted; `None` without one.
    interrupted: RefCell<Option<Rc<Cell<bool>>>>,
}

/// The input so far.
#[derive(Default)]
struct LiveInput {
    speech: Speech,
    text_tokens: u64,
    audio_tokens: u64,
    /// The last words of it.
    tail: String,
    ends_in_tool_result: bool,
}

impl LiveInput {
    fn add_text(&mut self, text: &str) {
        let words = u64::try_from(text.split_whitespace().count()).unwrap_or(u64::MAX);
        self.text_tokens = self.text_tokens.saturating_add(words);
        text.clone_into(&mut self.tail);
        self.ends_in_tool_result = false;
    }
}

/// The value under either spelling of a key.
fn field<'a>(value: &'a Value, camel: &str, snake: &str) -> Option<&'a Value> {
    value.get(camel).or_else(|| value.get(snake)).filter(|value| !value.is_null())
}

impl SocketPeer for LiveSession {
    const TAKES_BINARY: bool = true;

    async fn begin(self: Rc<Self>) {
        let Some(ms) = self.behavior.session_ms else { return };
        rt::spawn(async move {
            rt::time::sleep(Duration::from_millis(ms)).await;
            self.send(&json!({"goAway": {"timeLeft": "0.05s"}})).await;
            rt::time::sleep(Duration::from_millis(50)).await;
            self.close(CloseCode::Away, "The session has expired.").await;
        });
    }

    async fn take(self: Rc<Self>, message: Bytes) {
        let message: Value = serde_json::from_slice(&message).unwrap_or_default();
        if let Some(setup) = message.get("setup") {
            self.setup.replace(setup.clone());
            return self.send(&json!({"setupComplete": {}})).await;
        }
        if self.setup.borrow().is_null() {
            return self.close(CloseCode::Invalid, "The first message must be setup.").await;
        }
        if let Some(content) = field(&message, "clientContent", "client_content") {
            let turns = content.get("turns").and_then(Value::as_array).into_iter().flatten();
            let parts = turns.filter_map(|turn| turn.get("parts")?.as_array()).flatten();
            for text in parts.filter_map(|part| part.get("text")?.as_str()) {
                self.input.borrow_mut().add_text(text);
            }
            if field(content, "turnComplete", "turn_complete") == Some(&true.into()) {
                self.begin_turn();
            }
        } else if let Some(input) = field(&message, "realtimeInput", "realtime_input") {
            self.take_realtime(input).await;
        } else if field(&message, "toolResponse", "tool_response").is_some() {
            self.input.borrow_mut().add_text("a tool's result");
            self.input.borrow_mut().ends_in_tool_result = true;
            self.begin_turn();
        } else {
            self.close(CloseCode::Invalid, "Request contains an invalid argument.").await;
        }
    }
}

impl LiveSession {
    async fn send(&self, message: &Value) {
        drop(self.session.clone().binary(message.to_string()).await);
    }

    async fn close(&self, code: CloseCode, reason: &str) {
        let reason = CloseReason::from((code, reason));
        drop(self.session.clone().close(Some(reason)).await);
    }

    async fn take_realtime(self: &Rc<Self>, input: &Value) {
        let chunks = field(input, "mediaChunks", "media_chunks").and_then(Value::as_array);
        let media = chunks.into_iter().flatten().chain(input.get("audio"));
        for media in media {
            let data = media.get("data").and_then(Value::as_str).unwrap_or_default();
            let change = self.input.borrow_mut().speech.hear(data, BYTES_PER_SECOND, SILENCE_MS);
            match change {
                Some(SpeechChange::Started) => self.interrupt(),
                Some(SpeechChange::Stopped) => self.end_speech(),
                None => {}
            }
        }
        if let Some(text) = input.get("text").and_then(Value::as_str) {
            self.input.borrow_mut().add_text(text);
            self.begin_turn();
        }
        if field(input, "audioStreamEnd", "audio_stream_end").is_some()
            && self.input.borrow().speech.ms > 0
        {
            self.end_speech();
        }
    }

    fn interrupt(&self) {
        if let Some(interrupted) = &*self.interrupted.borrow() {
            interrupted.set(true);
        }
    }

    fn end_speech(self: &Rc<Self>) {
        {
            let mut input = self.input.borrow_mut();
            let tokens = input.speech.take_tokens();
            input.audio_tokens = input.audio_tokens.saturating_add(tokens);
            input.ends_in_tool_result = false;
        }
        self.begin_turn();
    }

    /// Begins a turn of the model. It interrupts one in progress.
    fn begin_turn(self: &Rc<Self>) {
        self.interrupt();
        let interrupted = Rc::new(Cell::new(false));
        let before = self.interrupted.replace(Some(Rc::clone(&interrupted)));
        let conversation = Rc::clone(self);
        rt::spawn(async move {
            // The one before is about to end.
            while before.as_ref().is_some_and(|before| Rc::strong_count(before) > 1) {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            conversation.turn(&interrupted).await;
        });
    }

    async fn turn(&self, interrupted: &Cell<bool>) {
        let endpoint = SimulatedEndpoint::Live;
        self.counters.count_call(endpoint);
        rt::time::sleep(Duration::from_millis(self.behavior.first_byte_delay_ms)).await;
        if self.behavior.status != 200 {
            self.counters.count_error(endpoint);
            return self.close(CloseCode::Error, "Internal error encountered.").await;
        }
        let (tool, is_text, words) = self.plan();
        let mut said = 0_u64;
        if let Some(name) = tool {
            let call = json!({"toolCall": {"functionCalls": [
                {"id": new_id("function-call-"), "name": name, "args": {}}]}});
            self.send(&call).await;
            said = 1;
        }
        for word in words {
            if interrupted.get() {
                break;
            }
            let events = usize::try_from(said).unwrap_or(usize::MAX);
            if self.behavior.cut_after_events == Some(events) {
                self.counters.count_error(endpoint);
                return self.close(CloseCode::Error, "Internal error encountered.").await;
            }
            let part = match is_text {
                true => json!({"text": format!("{word} ")}),
                false => {
                    json!({"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": sound(WORD_MS)}})
                }
            };
            self.send(&json!({"serverContent": {"modelTurn": {"parts": [part]}}})).await;
            said += 1;
            rt::time::sleep(Duration::from_millis(self.behavior.chunk_delay_ms)).await;
        }
        match interrupted.get() {
            true => self.send(&json!({"serverContent": {"interrupted": true}})).await,
            false => self.send(&json!({"serverContent": {"generationComplete": true}})).await,
        }
        let mut last = json!({"serverContent": {"turnComplete": true}});
        if let (Some(usage), Some(fields)) = (self.usage(said, is_text), last.as_object_mut()) {
            fields.insert("usageMetadata".to_owned(), usage);
        }
        self.send(&last).await;
    }

    /// The tool that a turn calls, whether it answers with text, and its words.
    fn plan(&self) -> (Option<String>, bool, Vec<String>) {
        let (setup, input) = (self.setup.borrow(), self.input.borrow());
        let config = field(&setup, "generationConfig", "generation_config").unwrap_or(&Value::Null);
        let modalities = field(config, "responseModalities", "response_modalities");
        let is_text =
            modalities.and_then(Value::as_array).is_some_and(|all| all.contains(&"TEXT".into()));
        let tools = setup.get("tools").and_then(Value::as_array).into_iter().flatten();
        let mut functions = tools
            .filter_map(|tool| {
                field(tool, "functionDeclarations", "function_declarations")?.as_array()
            })
            .flatten();
        let first = functions.next().and_then(|function| function.get("name")?.as_str());
        let tool = first.filter(|_| !input.ends_in_tool_result).map(str::to_owned);
        let most = field(config, "maxOutputTokens", "max_output_tokens").and_then(Value::as_u64);
        let words = match tool {
            Some(_) => Vec::new(),
            None => spoken_words(&input.tail, &self.behavior, most.unwrap_or(u64::MAX)),
        };
        (tool, is_text, words)
    }

    /// The usage of a turn that has said this number of words. All of it is input of the next one.
    fn usage(&self, said: u64, is_text: bool) -> Option<Value> {
        let mut input = self.input.borrow_mut();
        let before = input.text_tokens.saturating_add(input.audio_tokens);
        let tokens = TokenCounts::new(before, said, &self.behavior);
        let booked = tokens.booked(self.behavior.usage);
        let input_audio = input.audio_tokens.min(booked.input);
        let output = if is_text { &mut input.text_tokens } else { &mut input.audio_tokens };
        *output = output.saturating_add(said);
        drop(input);
        self.counters.count_tokens(SimulatedEndpoint::Live, booked);
        let modality = if is_text { "TEXT" } else { "AUDIO" };
        let usage = json!({
            "promptTokenCount": booked.input,
            "responseTokenCount": booked.output,
            "totalTokenCount": booked.input.saturating_add(booked.output),
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": booked.input.saturating_sub(input_audio)},
                {"modality": "AUDIO", "tokenCount": input_audio},
            ],
            "responseTokensDetails": [{"modality": modality, "tokenCount": booked.output}],
        });
        matches!(self.behavior.usage, UsageReport::Reported | UsageReport::Zero).then_some(usage)
    }
}
