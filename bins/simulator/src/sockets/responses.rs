//! OpenAI's responses over a WebSocket.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse, rt};
use actix_ws::{CloseCode, Session};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Mutex;

use super::peer::{SocketPeer, serve};
use crate::behavior::Behavior;
use crate::deliver::{EventBuffer, ResponseContent, SimulatedResponse, fill_stamp};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::request::SimulatedRequest;
use crate::responses;
use crate::stats::SimulatorCounters;

/// A socket with its responses.
struct ResponsesSocket {
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
    session: Session,
    /// Responses of one stream are made one after another.
    lanes: RefCell<HashMap<Option<String>, Rc<Mutex<()>>>>,
}

/// Answers the upgrade, and then each `response.create`.
pub(crate) fn responses(
    http: &HttpRequest,
    payload: Payload,
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
) -> actix_web::Result<HttpResponse> {
    serve(http, payload, |session| ResponsesSocket {
        behavior,
        counters,
        session,
        lanes: RefCell::default(),
    })
}

impl SocketPeer for ResponsesSocket {
    const TAKES_BINARY: bool = false;

    async fn take(self: Rc<Self>, message: Bytes) {
        rt::spawn(async move { self.answer(&message).await });
    }
}

impl ResponsesSocket {
    async fn answer(&self, text: &[u8]) {
        let message: Value = serde_json::from_slice(text).unwrap_or_default();
        let lane = message.get("stream_id").and_then(Value::as_str).map(str::to_owned);
        match message.get("type").and_then(Value::as_str) {
            Some("response.create") => {}
            other => {
                let words = format!("there is no type of messages {other:?}");
                return self.fail(&SimulatedError::new(400, words), &lane).await;
            }
        }
        let turn = Rc::clone(self.lanes.borrow_mut().entry(lane.clone()).or_default());
        let _turn = turn.lock().await;
        let endpoint = SimulatedEndpoint::Responses;
        self.counters.count_call(endpoint);
        rt::time::sleep(Duration::from_millis(self.behavior.first_byte_delay_ms)).await;
        let request = SimulatedRequest::parse(text);
        let request = match self.behavior.status {
            200 => request,
            status => Err(SimulatedError::simulated(status, None)),
        };
        match request {
            Ok(request) => self.respond(request, &lane).await,
            Err(fault) => {
                self.counters.count_error(endpoint);
                self.fail(&fault, &lane).await;
            }
        }
    }

    async fn respond(&self, request: SimulatedRequest, lane: &Option<String>) {
        let Self { behavior, counters, .. } = self;
        let reply = responses::respond(&request.streamed(), behavior);
        let SimulatedResponse { content: ResponseContent::Events(mut events), tokens } = reply
        else {
            return;
        };
        let whole = events.len();
        let most = behavior.cut_after_events.or(behavior.error_after_events).unwrap_or(whole);
        events.truncate(most);
        let delay = Duration::from_millis(behavior.chunk_delay_ms);
        for event in in_lane(&events, lane) {
            if self.session.clone().text(event).await.is_err() {
                return;
            }
            rt::time::sleep(delay).await;
        }
        if most < whole {
            counters.count_error(SimulatedEndpoint::Responses);
            match behavior.cut_after_events {
                Some(_) => drop(self.session.clone().close(Some(CloseCode::Error.into())).await),
                None => self.fail(&SimulatedError::new(500, "the model has failed"), lane).await,
            }
            return;
        }
        counters.count_tokens(SimulatedEndpoint::Responses, tokens.booked(behavior.usage));
    }

    async fn fail(&self, fault: &SimulatedError, lane: &Option<String>) {
        let mut message = fault.body(SimulatedDialect::OpenAi, "");
        if let Some(fields) = message.as_object_mut() {
            fields.insert("type".to_owned(), "error".into());
            fields.insert("status".to_owned(), fault.status.into());
        }
        put_lane(&mut message, lane);
        drop(self.session.clone().text(message.to_string()).await);
    }
}

/// The events as messages.
fn in_lane(events: &EventBuffer, lane: &Option<String>) -> Vec<String> {
    let message = |data: &[u8]| {
        let data = fill_stamp(Bytes::copy_from_slice(data));
        match lane {
            None => String::from_utf8_lossy(&data).into_owned(),
            Some(_) => {
                let mut message: Value = serde_json::from_slice(&data).unwrap_or_default();
                put_lane(&mut message, lane);
                message.to_string()
            }
        }
    };
    events.data_of_events().map(message).collect()
}

fn put_lane(message: &mut Value, lane: &Option<String>) {
    if let (Some(message), Some(lane)) = (message.as_object_mut(), lane) {
        message.insert("stream_id".to_owned(), lane.as_str().into());
    }
}
