//! OpenAI's GPT-Live: a session that is billed by its time, and the responses that it delegates to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse, rt};
use actix_ws::{CloseCode, Session};
use bytes::Bytes;
use serde_json::{Value, json};

use super::peer::{SocketPeer, serve};
use super::speech::{Speech, SpeechChange, sound};
use crate::answer::{TokenCounts, new_id, spoken_words, unix_seconds};
use crate::behavior::{Behavior, UsageReport};
use crate::deliver::{ResponseContent, SimulatedResponse};
use crate::endpoint::SimulatedEndpoint;
use crate::request::SimulatedRequest;
use crate::responses;
use crate::stats::SimulatorCounters;

/// The sound of a word.
const WORD_MS: usize = 20;
/// The silence that ends speech.
const SILENCE_MS: u64 = 200;
/// The bytes of a second of samples of 16 bits at 24 kHz.
const BYTES_PER_SECOND: u64 = 48_000;
/// The time between two reports of the usage.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// The longest session, in seconds.
const LONGEST_S: u64 = 3_600;

/// Opens a conversation.
pub(crate) fn gpt_live(
    http: &HttpRequest,
    payload: Payload,
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
) -> actix_web::Result<HttpResponse> {
    serve(http, payload, |session| GptLiveSession {
        behavior,
        counters,
        session,
        settings: RefCell::default(),
        started: Cell::default(),
        speech: RefCell::default(),
    })
}

/// A conversation.
struct GptLiveSession {
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
    session: Session,
    /// The session, as the provider states it. Null before it has started.
    settings: RefCell<Value>,
    /// When it has started. `None` before, and after its end.
    started: Cell<Option<Instant>>,
    speech: RefCell<Speech>,
}

impl SocketPeer for GptLiveSession {
    const TAKES_BINARY: bool = false;

    async fn take(self: Rc<Self>, message: Bytes) {
        let message: Value = serde_json::from_slice(&message).unwrap_or_default();
        let event_id = message.get("event_id").cloned().unwrap_or_default();
        let kind = message.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "session.start" {
            return self.start(message.get("session"), &event_id).await;
        }
        if self.started.get().is_none() {
            return self.fail("session_not_started", "Send session.start first.", &event_id).await;
        }
        match kind {
            "session.update" => {
                let change = message.pointer("/session/delegation/responses").cloned();
                if let (Some(Value::Object(config)), Some(Value::Object(change))) =
                    (self.settings.borrow_mut().pointer_mut("/delegation/responses"), change)
                {
                    config.extend(change);
                }
                self.send_session("session.updated", &event_id).await;
            }
            "session.input_audio.append" => {
                let audio = message.get("audio").and_then(Value::as_str).unwrap_or_default();
                let change = self.speech.borrow_mut().hear(audio, BYTES_PER_SECOND, SILENCE_MS);
                if change == Some(SpeechChange::Stopped) {
                    rt::spawn(async move { self.answer().await });
                }
            }
            "session.instructions.append"
            | "session.commentary.append"
            | "session.thinking.append" => {
                let kind = format!("{kind}ed");
                self.send(json!({"type": kind, "client_event_id": event_id})).await;
            }
            "response.create" => {
                rt::spawn(async move { self.delegate().await });
            }
            "session.close" => self.close("close_requested", &event_id).await,
            "session.input_audio.mute" | "session.input_audio.unmute" | "response.item.create" => {}
            other => {
                let message = format!("Invalid value: '{other}'.");
                self.fail("invalid_value", &message, &event_id).await;
            }
        }
    }
}

impl GptLiveSession {
    async fn send(&self, mut message: Value) {
        if let Some(fields) = message.as_object_mut() {
            fields.insert("event_id".to_owned(), new_id("event_").into());
        }
        drop(self.session.clone().text(message.to_string()).await);
    }

    async fn fail(&self, code: &str, message: &str, event_id: &Value) {
        self.send(json!({"type": "error", "client_event_id": event_id, "error": {
            "type": "invalid_request_error", "code": code, "message": message, "param": null,
            "client_event_id": event_id}}))
            .await;
    }

    async fn send_session(&self, kind: &str, event_id: &Value) {
        let session = self.settings.borrow().clone();
        self.send(json!({"type": kind, "session": session, "client_event_id": event_id})).await;
    }

    async fn start(self: Rc<Self>, session: Option<&Value>, event_id: &Value) {
        let endpoint = SimulatedEndpoint::LiveSessions;
        self.counters.count_call(endpoint);
        rt::time::sleep(Duration::from_millis(self.behavior.first_byte_delay_ms)).await;
        let model = session.and_then(|session| session.get("model")).and_then(Value::as_str);
        if self.behavior.status != 200 || model.is_none() || !self.settings.borrow().is_null() {
            self.counters.count_error(endpoint);
            return self.fail("invalid_session", "The session cannot start.", event_id).await;
        }
        let mut settings = session.cloned().unwrap_or_default();
        if let Some(fields) = settings.as_object_mut() {
            fields.insert("id".to_owned(), new_id("sess_").into());
            fields.insert("status".to_owned(), "active".into());
            let expires_at = unix_seconds().saturating_add(LONGEST_S);
            fields.insert("expires_at".to_owned(), expires_at.into());
            fields.entry("delegation").or_insert_with(|| json!({"type": "client"}));
        }
        self.settings.replace(settings);
        self.started.set(Some(Instant::now()));
        self.send_session("session.started", event_id).await;
        rt::spawn(async move { self.report().await });
    }

    /// Reports the usage from time to time, until the session ends.
    async fn report(&self) {
        let mut reports = 0;
        loop {
            rt::time::sleep(REPORT_EVERY).await;
            let Some(started) = self.started.get() else { return };
            if self.behavior.cut_after_events == Some(reports) {
                self.count(started);
                self.started.set(None);
                drop(self.session.clone().close(Some(CloseCode::Error.into())).await);
                return;
            }
            let longest = self.behavior.session_ms.map(Duration::from_millis);
            if longest.is_some_and(|longest| started.elapsed() >= longest) {
                return self.close("expired", &Value::Null).await;
            }
            if self.behavior.usage == UsageReport::Reported {
                let seconds = started.elapsed().as_secs_f64();
                self.send(json!({"type": "session.usage.updated", "usage": {"seconds": seconds},
                    "context_window": {"usage_ratio": 0.1}}))
                    .await;
            }
            reports += 1;
        }
    }

    /// Counts the time of the session, and returns it.
    fn count(&self, started: Instant) -> u64 {
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let counts = TokenCounts { input: ms, ..TokenCounts::default() };
        self.counters.count_tokens(SimulatedEndpoint::LiveSessions, counts);
        ms
    }

    async fn close(&self, reason: &str, event_id: &Value) {
        let Some(started) = self.started.take() else { return };
        let ms = self.count(started);
        let session = self.settings.borrow().clone();
        let mut message = json!({"type": "session.closed", "reason": reason, "session": session,
            "client_event_id": event_id});
        let whole = Duration::from_millis(ms).as_secs_f64();
        if let (UsageReport::Reported, Some(fields)) =
            (self.behavior.usage, message.as_object_mut())
        {
            fields.insert("usage".to_owned(), json!({"seconds": whole}));
        }
        self.send(message).await;
        drop(self.session.clone().close(Some(CloseCode::Normal.into())).await);
    }

    /// Speaks, and then delegates the work.
    async fn answer(&self) {
        for word in spoken_words("", &self.behavior, u64::MAX) {
            let delta = json!({"type": "session.output_audio.delta", "delta": sound(WORD_MS)});
            self.send(delta).await;
            let delta = json!({"type": "session.output_transcript.delta", "delta": word});
            self.send(delta).await;
            rt::time::sleep(Duration::from_millis(self.behavior.chunk_delay_ms)).await;
        }
        self.delegate().await;
    }

    async fn delegate(&self) {
        let delegation = self.settings.borrow().get("delegation").cloned().unwrap_or_default();
        let target = delegation.get("type").and_then(Value::as_str).unwrap_or("client");
        let id = new_id("deleg_");
        self.send(json!({"type": "session.delegation.created", "offset_ms": 0,
            "delegation": {"id": id, "type": "delegation", "target": target}}))
            .await;
        let mut body = match delegation.get("responses") {
            Some(config) if target == "responses" => config.clone(),
            _ => return,
        };
        if let Some(fields) = body.as_object_mut() {
            fields.insert("input".to_owned(), "the words of the conversation".into());
            fields.insert("stream".to_owned(), true.into());
        }
        let endpoint = SimulatedEndpoint::Responses;
        self.counters.count_call(endpoint);
        let Ok(request) = SimulatedRequest::parse(body.to_string().as_bytes()) else {
            return self.counters.count_error(endpoint);
        };
        let reply = responses::respond(&request, &self.behavior);
        let SimulatedResponse { content: ResponseContent::Events(events), tokens } = reply else {
            return;
        };
        for event in events.data_of_events() {
            let event: Value = serde_json::from_slice(event).unwrap_or_default();
            self.send(json!({"type": "response.event", "delegation_id": id, "event": event})).await;
            rt::time::sleep(Duration::from_millis(self.behavior.chunk_delay_ms)).await;
        }
        self.counters.count_tokens(endpoint, tokens.booked(self.behavior.usage));
    }
}
