//! A receiver of webhooks that keeps its messages for tests to read.

use std::collections::{BTreeMap, VecDeque};
use std::future;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use actix_web::http::StatusCode;
use actix_web::http::header::LOCATION;
use actix_web::web::{Bytes, Data, Path, PayloadConfig, Query, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, rt, web};
use futures_util::stream;
use serde::{Deserialize, Serialize};

use crate::deliver::to_json;

/// The most messages that are kept, over all names, and their bytes. The oldest are dropped first.
const MOST_MESSAGES: usize = 4_096;
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of a message, and of an answer to one.
const MESSAGE_LIMIT_BYTES: usize = 1024 * 1024;

/// The behaviour of a receiver, from the query.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReceiverBehavior {
    status: u16,
    fail: u64,
    hang: u8,
    cut: u8,
    delay_ms: u64,
    body_bytes: Option<usize>,
    redirect: Option<String>,
}

impl Default for ReceiverBehavior {
    fn default() -> Self {
        Self {
            status: 200,
            fail: 0,
            hang: 0,
            cut: 0,
            delay_ms: 0,
            body_bytes: None,
            redirect: None,
        }
    }
}

/// The answer to a message.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ReceiverResponse {
    Hang,
    Cut,
    #[serde(untagged)]
    With(u16),
}

impl ReceiverBehavior {
    /// The answer to the message with this number.
    const fn answer_to(&self, number: u64) -> ReceiverResponse {
        match self {
            Self { hang: 1.., .. } => ReceiverResponse::Hang,
            Self { cut: 1.., .. } => ReceiverResponse::Cut,
            Self { fail, .. } if number <= *fail => ReceiverResponse::With(500),
            Self { redirect: Some(_), .. } => ReceiverResponse::With(307),
            Self { status, .. } => ReceiverResponse::With(*status),
        }
    }
}

#[derive(Serialize)]
struct ReceivedMessage {
    #[serde(skip)]
    name: String,
    /// The position among the messages of its name, from 1.
    number: u64,
    at_ms: u128,
    headers: BTreeMap<String, String>,
    body: String,
    answered: ReceiverResponse,
}

/// The messages of all receivers.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<KeptMessages>);

#[derive(Default)]
struct KeptMessages {
    messages: VecDeque<ReceivedMessage>,
    bytes: usize,
}

impl Mailbox {
    /// Keeps a message, and returns the answer to it.
    fn keep(
        &self,
        name: String,
        http: &HttpRequest,
        body: &[u8],
        manner: &ReceiverBehavior,
    ) -> ReceiverResponse {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = http.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), text(value.as_bytes())));
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = letters.messages.iter().rfind(|message| message.name == name);
        let number = last.map_or(1, |message| message.number + 1);
        let answered = manner.answer_to(number);
        let message = ReceivedMessage {
            name,
            number,
            at_ms: at.as_millis(),
            headers: headers.collect(),
            body: text(body),
            answered,
        };
        letters.bytes += message.body.len();
        letters.messages.push_back(message);
        while letters.messages.len() > MOST_MESSAGES || letters.bytes > MOST_BYTES {
            let Some(oldest) = letters.messages.pop_front() else { break };
            letters.bytes -= oldest.body.len();
        }
        answered
    }

    /// The messages of one name, oldest first, as JSON.
    fn read(&self, name: &str) -> Vec<u8> {
        #[derive(Serialize)]
        struct MessageList<'a> {
            data: Vec<&'a ReceivedMessage>,
        }
        let letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let data = letters.messages.iter().filter(|message| message.name == name).collect();
        to_json(&MessageList { data })
    }
}

pub(crate) fn routes(config: &mut ServiceConfig) {
    let resource = web::resource("/webhooks/{name}")
        .app_data(PayloadConfig::new(MESSAGE_LIMIT_BYTES))
        .route(web::post().to(receive))
        .route(web::get().to(list));
    config.service(resource);
}

async fn list(name: Path<String>, mailbox: Data<Mailbox>) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(mailbox.read(&name))
}

async fn receive(
    name: Path<String>,
    http: HttpRequest,
    body: Bytes,
    manner: Query<ReceiverBehavior>,
    mailbox: Data<Mailbox>,
) -> HttpResponse {
    let manner = manner.into_inner();
    let size = manner.body_bytes.unwrap_or_default();
    if !(200..600).contains(&manner.status) || size > MESSAGE_LIMIT_BYTES {
        return HttpResponse::BadRequest().body("a status or body_bytes that cannot be answered");
    }
    let answered = mailbox.keep(name.into_inner(), &http, &body, &manner);
    rt::time::sleep(Duration::from_millis(manner.delay_ms)).await;
    let status = match answered {
        ReceiverResponse::With(status) => status,
        ReceiverResponse::Hang => future::pending().await,
        ReceiverResponse::Cut => {
            // When a body fails at once, the server drops the head too, which it has not written yet.
            let cut = io::Error::from(io::ErrorKind::ConnectionAborted);
            return HttpResponse::Ok().streaming(stream::iter([Err::<Bytes, _>(cut)]));
        }
    };
    let mut answer = HttpResponse::build(StatusCode::from_u16(status).unwrap_or_default());
    if let (307, Some(url)) = (status, manner.redirect) {
        answer.insert_header((LOCATION, url));
    }
    match manner.body_bytes {
        Some(size) => answer.content_type("text/plain").body("x".repeat(size)),
        None => answer.content_type("application/json").body(r#"{"received":true}"#),
    }
}
