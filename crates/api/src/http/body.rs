//! The body of a request: read within its bounds, after the caller is known.

use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use actix_web::{FromRequest, HttpRequest};
use bytes::{Bytes, BytesMut};
use deserr::Deserr;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tollgate_domain::Issue;
use tollgate_store::idempotency::{IdempotencyKey, IdempotencyScope};

use super::auth::{Caller, Operator, app};
use super::body_memory::BodyReservation;
use super::earlier::RenamedFields;
use super::error::{ApiError, ErrorCode};
use super::fields::Issues;
use super::{idempotency, json};

/// A type that a body is read into.
pub(crate) trait Input: Deserr<Issues> + 'static {
    /// Fields that only responses have. They are ignored, so that a response can be sent back.
    const READ_ONLY: &'static [&'static str] = &[];
}

/// The caller, the body and the idempotency key of a request. The caller is known before the body is read.
pub(crate) struct ApiRequest<Who, What> {
    pub(crate) caller: Who,
    pub(crate) what: What,
    /// The body as it came, for operations that need its exact bytes.
    pub(crate) bytes: Bytes,
    pub(crate) idempotency_key: Option<IdempotencyKey>,
}

impl<What: Input> ApiRequest<Caller, What> {
    /// The request of a form, whose session has proved the caller. A form is sent once by its token, so it has no
    /// idempotency key.
    ///
    /// # Errors
    /// The issues of the body.
    pub(crate) fn of_form(caller: Caller, body: &Value) -> Result<Self, ApiError> {
        let bytes = Bytes::from(body.to_string());
        Ok(Self { caller, what: parse(&bytes)?, bytes, idempotency_key: None })
    }
}

/// The owner of an idempotency key.
pub(crate) trait IdempotencyOwner {
    fn scope(&self) -> IdempotencyScope;
}

impl IdempotencyOwner for Caller {
    fn scope(&self) -> IdempotencyScope {
        IdempotencyScope::Api(self.merchant_id)
    }
}

impl IdempotencyOwner for Operator {
    fn scope(&self) -> IdempotencyScope {
        IdempotencyScope::Operator
    }
}

impl<Who, What> FromRequest for ApiRequest<Who, What>
where
    Who: FromRequest<Error = ApiError> + IdempotencyOwner + 'static,
    What: Input,
{
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(http: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (http, mut payload) = (http.clone(), payload.take());
        Box::pin(async move {
            let who = Who::extract(&http).await?;
            let app = app(&http)?;
            let limit = app.settings.body_limit_bytes;
            let bytes = read(&http, &mut payload, limit).await?;
            require_json(&http, &bytes)?;
            let idempotency_key = idempotency::key(&http, who.scope(), &bytes)?;
            Ok(Self { caller: who, what: parse(&bytes)?, bytes, idempotency_key })
        })
    }
}

/// Returns the announced length of a body of at most `limit` bytes, or 0.
fn announced(http: &HttpRequest, limit: usize) -> Result<usize, ApiError> {
    let upgrade = http.headers().get(UPGRADE).and_then(|value| value.to_str().ok());
    if upgrade.is_some_and(|to| to.trim().eq_ignore_ascii_case("websocket")) {
        // The server would take everything that follows on the connection for this body, whatever its stated
        // length, and so the next caller's call, too.
        let message = "Connections are not upgraded. Leave `Upgrade: websocket` out.";
        return Err(ApiError::new(ErrorCode::ValidationFailed, message));
    }
    let announced = http.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced: usize = announced.and_then(|length| length.parse().ok()).unwrap_or(0);
    if announced > limit { Err(too_large(limit)) } else { Ok(announced) }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorCode::BodyTooLarge, format!("The body may have at most {limit} bytes."))
}

/// Reads a body of at most `limit` bytes, and passes on its pieces. The room for what has arrived is taken from each of
/// `rooms`.
pub(crate) async fn read_pieces(
    http: &HttpRequest,
    payload: &mut Payload,
    limit: usize,
    rooms: [&Arc<Semaphore>; 2],
    mut take: impl AsyncFnMut(Bytes) -> Result<(), ApiError>,
) -> Result<[BodyReservation; 2], ApiError> {
    announced(http, limit)?;
    let mut reservations = rooms.map(BodyReservation::of);
    let mut length = 0_usize;
    let mut pieces = BodyPieces::of(payload, app(http)?.settings.clients.body_timeout);
    while let Some(piece) = pieces.next().await? {
        length = length.saturating_add(piece.len());
        if length > limit {
            return Err(too_large(limit));
        }
        for reservation in &mut reservations {
            reservation.reserve(length)?;
        }
        take(piece).await?;
    }
    Ok(reservations)
}

/// Reads a whole body of at most `limit` bytes.
pub async fn read(
    http: &HttpRequest,
    payload: &mut Payload,
    limit: usize,
) -> Result<Bytes, ApiError> {
    let announced = announced(http, limit)?;
    let mut pieces = BodyPieces::of(payload, app(http)?.settings.clients.body_timeout);
    // Most bodies arrive in one piece, which is passed on without a copy.
    let Some(first) = pieces.next().await? else { return Ok(Bytes::new()) };
    let Some(second) = pieces.next().await? else {
        return if first.len() > limit { Err(too_large(limit)) } else { Ok(first) };
    };
    let mut reservation = BodyReservation::of(&app(http)?.body_memory);
    reservation.reserve(announced.max(first.len() * 2))?;
    let mut body = BytesMut::with_capacity(announced.max(first.len() * 2));
    body.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(piece) = next {
        if body.len() + piece.len() > limit {
            return Err(too_large(limit));
        }
        reservation.reserve(body.len() + piece.len())?;
        body.extend_from_slice(&piece);
        next = pieces.next().await?;
    }
    Ok(Bytes::from_owner(ReservedBody { body: body.freeze(), _reservation: reservation }))
}

/// A body that holds its memory until its last reader drops it.
struct ReservedBody {
    body: Bytes,
    _reservation: BodyReservation,
}

impl AsRef<[u8]> for ReservedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// A body that keeps this rate from its beginning may take any time.
const LEAST_BYTES_PER_SECOND: u64 = 16 * 1024;

/// The pieces of a body. The wait for each of them is bounded, and so is the wait for all of them.
struct BodyPieces<'a> {
    payload: &'a mut Payload,
    patience: Duration,
    began: Instant,
    bytes: u64,
}

impl<'a> BodyPieces<'a> {
    fn of(payload: &'a mut Payload, patience: Duration) -> Self {
        Self { payload, patience, began: Instant::now(), bytes: 0 }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let earned = Duration::from_secs(self.bytes / LEAST_BYTES_PER_SECOND);
        let deadline = (self.began + earned).min(Instant::now()) + self.patience;
        let piece = timeout_at(deadline, self.payload.next()).await.map_err(|_| {
            ApiError::new(ErrorCode::BodyTooSlow, "The body arrives too slowly. Send it again.")
        })?;
        let broken = |_| ApiError::new(ErrorCode::JsonInvalid, "The body did not arrive whole.");
        let piece = piece.transpose().map_err(broken)?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        self.bytes = self.bytes.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        Ok(piece)
    }
}

fn require_json(http: &HttpRequest, body: &Bytes) -> Result<(), ApiError> {
    let content_type = http.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|text| text.split(';').next()).map(str::trim);
    match essence {
        None => Ok(()),
        Some(_) if body.is_empty() => Ok(()),
        Some(essence) if essence.eq_ignore_ascii_case("application/json") => Ok(()),
        Some(_) => Err(ApiError::new(
            ErrorCode::ContentTypeUnsupported,
            "Send the body as Content-Type: application/json.",
        )),
    }
}

/// Parses the body of an operation. Fields may have their [earlier names](super::earlier); an empty body is
/// read as `{}`.
fn parse<What: Input>(bytes: &Bytes) -> Result<What, ApiError> {
    let text = if bytes.is_empty() { b"{}" } else { bytes.as_ref() };
    let (mut body, mut issues) = json::parse(text).map_err(|why| {
        ApiError::with_issues(
            ErrorCode::JsonInvalid,
            "The body is not valid JSON.",
            vec![Issue::at([], format!("line {}, column {}", why.line(), why.column()))],
        )
    })?;
    let mut renamed = RenamedFields::default();
    if let Value::Object(fields) = &mut body {
        renamed = RenamedFields::of(fields, &mut issues);
        fields.retain(|name, _| !What::READ_ONLY.contains(&name.as_str()));
    }
    match deserr::deserialize(body) {
        Ok(what) if issues.is_empty() => Ok(what),
        Ok(_) => Err(ApiError::invalid(issues)),
        Err(Issues(mut more)) => {
            renamed.restore_names(&mut more);
            issues.extend(more);
            Err(ApiError::invalid(issues))
        }
    }
}
