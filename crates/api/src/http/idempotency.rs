//! Operations that may be sent twice. The answer is kept in the transaction that does the work.

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tollgate_domain::{Issue, Timestamp};
use tollgate_store::Conn;
use tollgate_store::idempotency::{
    IdempotencyClaim, IdempotencyKey, IdempotencyScope, StoredAnswer, claim, keep,
};
use utoipa::IntoParams;

use super::error::{ApiError, ErrorCode};
use crate::app::App;

const HEADER: &str = "idempotency-key";
const MAX_CHARS: usize = 255;
/// The fields that a repeated answer does not carry, because they are shown once.
const SHOWN_ONCE: [&str; 3] = ["key", "secret_key", "webhook_secret"];

/// The idempotency key of a POST, if it has one. Other methods may be repeated without one.
pub(super) fn key(
    http: &HttpRequest,
    scope: IdempotencyScope,
    body: &[u8],
) -> Result<Option<IdempotencyKey>, ApiError> {
    let header = http.headers().get(HEADER).filter(|_| http.method() == Method::POST);
    let Some(header) = header else { return Ok(None) };
    let key = header.to_str().ok().filter(|key| (1..=MAX_CHARS).contains(&key.len()));
    let key = key.ok_or_else(|| {
        ApiError::invalid(vec![Issue::at([HEADER], "must have 1 to 255 ASCII characters")])
    })?;
    let mut hash = Sha256::new();
    for part in [http.method().as_str().as_bytes(), http.path().as_bytes(), body] {
        hash.update(part);
        hash.update([0]);
    }
    Ok(Some(IdempotencyKey { scope, key: key.to_owned(), fingerprint: hash.finalize().into() }))
}

/// The header of an operation that may be sent twice, as documents have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read by its derive only")]
pub(crate) struct IdempotencyHeader {
    /// Makes the operation safe to repeat: it is done once, and a repetition gets the same answer.
    #[param(
        rename = "Idempotency-Key",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]([ -~]*[!-~])?$"
    )]
    idempotency_key: Option<String>,
}

/// The answer of an operation.
pub(crate) struct ApiResponse {
    status: StatusCode,
    body: Value,
}

impl ApiResponse {
    /// A reply with status 201, for a new resource.
    pub(crate) fn created(view: &impl Serialize) -> Self {
        Self { status: StatusCode::CREATED, body: to_value(view) }
    }

    /// A reply with status 200.
    pub(crate) fn ok(view: &impl Serialize) -> Self {
        Self { status: StatusCode::OK, body: to_value(view) }
    }
}

/// Views are structs of strings and numbers; they always make JSON.
fn to_value(view: &impl Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_default()
}

impl App {
    /// Does `work` in one write transaction and answers with its reply. A repetition with the same
    /// idempotency key gets the same answer, and `work` is not done again.
    pub(crate) async fn write(
        &self,
        key: Option<IdempotencyKey>,
        work: impl FnOnce(&mut Conn) -> Result<ApiResponse, ApiError> + Send + 'static,
    ) -> Result<HttpResponse, ApiError> {
        let work = once(key, self.clock.now(), work);
        self.store.write(work).await.map(answer)
    }

    /// As [`App::write`], outside the transactions of admissions. The work may have to wait for others. It
    /// must not change the configuration.
    pub(crate) async fn write_apart(
        &self,
        key: Option<IdempotencyKey>,
        work: impl FnOnce(&mut Conn) -> Result<ApiResponse, ApiError> + Send + 'static,
    ) -> Result<HttpResponse, ApiError> {
        let work = once(key, self.clock.now(), work);
        self.store.write_outside_calls(work).await.map(answer)
    }
}

fn answer(reply: ApiResponse) -> HttpResponse {
    HttpResponse::build(reply.status).json(reply.body)
}

/// The work, done once for its key.
fn once(
    key: Option<IdempotencyKey>,
    now: Timestamp,
    work: impl FnOnce(&mut Conn) -> Result<ApiResponse, ApiError> + Send + 'static,
) -> impl FnOnce(&mut Conn) -> Result<ApiResponse, ApiError> + Send + 'static {
    move |conn| {
        let Some(key) = key else { return work(conn) };
        match claim(conn, &key, now)? {
            IdempotencyClaim::New => {
                let reply = work(conn)?;
                let mut kept = reply.body.clone();
                if let Value::Object(fields) = &mut kept {
                    fields.retain(|name, _| !SHOWN_ONCE.contains(&name.as_str()));
                }
                let status = reply.status.as_u16();
                keep(conn, &key, &StoredAnswer { status, body: kept.to_string() })?;
                Ok(reply)
            }
            IdempotencyClaim::Done(answer) => Ok(ApiResponse {
                status: StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK),
                body: serde_json::from_str(&answer.body).unwrap_or_default(),
            }),
            IdempotencyClaim::Reused => Err(ApiError::new(
                ErrorCode::IdempotencyKeyReused,
                "This Idempotency-Key was used for another request. Use a new one.",
            )),
        }
    }
}
