//! All errors of the API: one table of codes, one envelope.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_domain::{Issue, LimitState, RefusalId, RequestFormat, Timestamp};
use tollgate_store::StoreError;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::openapi::types::*;

macro_rules! error_codes {
    ($( $Code:ident = $status:literal $name:literal; )*) => {
        /// The kind of an error, as a word that does not change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "docs/api/error-codes*.md explain each code, and a test holds it to this table")]
        pub enum ErrorCode { $( $Code, )* }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[ $( Self::$Code, )* ];

            /// The code as it is in the envelope.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$Code => $name, )* }
            }

            /// The HTTP status of the code.
            pub const fn status(self) -> u16 {
                match self { $( Self::$Code => $status, )* }
            }
        }
    };
}

error_codes! {
    JsonInvalid = 400 "json_invalid";
    ValidationFailed = 400 "validation_failed";
    ForwardTokenJsonInvalid = 400 "forward_token_json_invalid";
    ForwardEndpointNotSupported = 400 "forward_endpoint_not_supported";
    MetadataInvalid = 400 "metadata_invalid";
    ModelPriceUnknown = 400 "model_price_unknown";
    CostBoundUnknown = 400 "cost_bound_unknown";
    CursorInvalid = 400 "cursor_invalid";
    AuthHeaderMissing = 401 "auth_header_missing";
    AuthInvalid = 401 "auth_invalid";
    WalletBalanceInsufficient = 402 "wallet_balance_insufficient";
    SpendLimitReached = 402 "spend_limit_reached";
    BudgetExhausted = 402 "budget_exhausted";
    RunLimitReached = 402 "run_limit_reached";
    ConnectionDisabled = 403 "connection_disabled";
    OperationNotAllowed = 403 "operation_not_allowed";
    BudgetPaused = 403 "budget_paused";
    SpendKeyPaused = 403 "spend_key_paused";
    SpendKeyExpired = 403 "spend_key_expired";
    SpendKeyRequestShapeMismatch = 403 "spend_key_request_shape_mismatch";
    SpendKeyModelNotAllowed = 403 "spend_key_model_not_allowed";
    SpendKeyProviderNotAllowed = 403 "spend_key_provider_not_allowed";
    RouteNotFound = 404 "route_not_found";
    BudgetNotFound = 404 "budget_not_found";
    ConnectionNotFound = 404 "connection_not_found";
    CreditBundleNotFound = 404 "credit_bundle_not_found";
    DeliveryNotFound = 404 "delivery_not_found";
    JobNotFound = 404 "job_not_found";
    MeterNotFound = 404 "meter_not_found";
    ModelNotFound = 404 "model_not_found";
    ProviderObjectNotFound = 404 "provider_object_not_found";
    RequestNotFound = 404 "request_not_found";
    RefusalNotFound = 404 "refusal_not_found";
    SecretKeyNotFound = 404 "secret_key_not_found";
    SpendKeyNotFound = 404 "spend_key_not_found";
    SubscriptionConfigNotFound = 404 "subscription_config_not_found";
    SubscriptionNotFound = 404 "subscription_not_found";
    WalletNotFound = 404 "wallet_not_found";
    WebhookNotFound = 404 "webhook_not_found";
    MethodNotAllowed = 405 "method_not_allowed";
    BodyTooSlow = 408 "body_too_slow";
    MeterSlugTaken = 409 "meter_slug_taken";
    MeterInUse = 409 "meter_in_use";
    BudgetInUse = 409 "budget_in_use";
    JobRunning = 409 "job_running";
    RunLimitConflict = 409 "run_limit_conflict";
    IdempotencyKeyReused = 409 "idempotency_key_reused";
    SubscriptionExists = 409 "subscription_exists";
    LastSecretKey = 409 "last_secret_key";
    BodyTooLarge = 413 "body_too_large";
    ContentTypeUnsupported = 415 "content_type_unsupported";
    UpgradeRequired = 426 "upgrade_required";
    RateLimited = 429 "rate_limited";
    RequestLimitReached = 429 "request_limit_reached";
    BudgetRequestsExhausted = 429 "budget_exhausted";
    InternalError = 500 "internal_error";
    ProviderUnreachable = 502 "provider_unreachable";
    StoreUnavailable = 503 "store_unavailable";
    ShuttingDown = 503 "shutting_down";
    Overloaded = 503 "overloaded";
    ProviderTimeout = 504 "provider_timeout";
}

impl PartialSchema for ErrorCode {
    fn schema() -> RefOr<Schema> {
        let mut names: Vec<_> = Self::ALL.iter().map(|code| code.name()).collect();
        // Two codes of one name have different statuses.
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What went wrong, as a word that does not change."))
            .enum_values(Some(names))
            .into()
    }
}

impl ToSchema for ErrorCode {}

/// An error as the caller gets it. It carries no internal cause, query, path or key.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    issues: Vec<Issue>,
    headers: Vec<(HeaderName, HeaderValue)>,
    dialect: Option<RequestFormat>,
    limit: Option<Box<LimitState>>,
    refusal_id: Option<RefusalId>,
}

/// A header by which the official SDKs, and agents built on them, do not try again.
pub(crate) const DO_NOT_RETRY: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));

/// The header with the id of a refusal.
const REFUSAL_ID: HeaderName = HeaderName::from_static("x-service-refusal-id");

impl ApiError {
    /// An error with `code`. The `message` says what is wrong and what would be right.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            issues: Vec::new(),
            headers: Vec::new(),
            dialect: None,
            limit: None,
            refusal_id: None,
        }
    }

    /// An error with an issue for each fault.
    pub(crate) fn with_issues(
        code: ErrorCode,
        message: impl Into<String>,
        issues: Vec<Issue>,
    ) -> Self {
        Self { issues, ..Self::new(code, message) }
    }

    /// The error of an invalid input.
    pub fn invalid(issues: Vec<Issue>) -> Self {
        Self::with_issues(ErrorCode::ValidationFailed, "The request is not valid.", issues)
    }

    /// Puts the issues below the field whose value the input is.
    pub fn within(mut self, field: &str) -> Self {
        self.issues.iter_mut().for_each(|issue| issue.path.insert(0, field.to_owned()));
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Adds `Retry-After`, of at least one second.
    pub(crate) fn retry_after(self, wait_micros: i64) -> Self {
        let seconds = wait_micros.max(1).unsigned_abs().div_ceil(1_000_000);
        self.header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Adds [`DO_NOT_RETRY`], for errors that a wait does not solve, or not soon.
    pub(crate) fn do_not_retry(self) -> Self {
        let (name, value) = DO_NOT_RETRY;
        self.header(name, value)
    }

    /// Adds headers with the limit that was reached, its rest, and the time of its reset, if any.
    pub(crate) fn with_limit(
        mut self,
        limit: impl fmt::Display,
        remaining: impl fmt::Display,
        resets_at: Option<Timestamp>,
    ) -> Self {
        const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
        const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
        const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
        let stated = [
            (LIMIT, Some(limit.to_string())),
            (REMAINING, Some(remaining.to_string())),
            (RESET, resets_at.map(|at| at.to_string())),
        ];
        for (name, text) in stated {
            let value = text.and_then(|text| HeaderValue::from_str(&text).ok());
            self.headers.extend(value.map(|value| (name, value)));
        }
        self
    }

    /// Adds the state of the limit that refused the call, for its refusal.
    pub(crate) fn at_limit(self, limit: LimitState) -> Self {
        Self { limit: Some(Box::new(limit)), ..self }
    }

    /// The state of the limit that refused the call.
    pub fn limit(&self) -> LimitState {
        self.limit.as_deref().copied().unwrap_or_default()
    }

    /// Adds the id of the refusal that is kept.
    pub(crate) fn with_refusal(self, refusal_id: RefusalId) -> Self {
        Self { refusal_id: Some(refusal_id), ..self }
    }

    /// Adds the fields that the SDK of the request reads, if it came from one.
    pub(crate) fn for_sdk_of(self, http: &HttpRequest) -> Self {
        match sdk_of(http) {
            Some(shape) => self.for_sdk(shape),
            None => self,
        }
    }

    /// Adds the fields that an SDK of this format reads.
    pub(crate) fn for_sdk(self, shape: RequestFormat) -> Self {
        Self { dialect: Some(shape), ..self }
    }

    /// The message, with the issue in it if there is exactly one. Client libraries print only the message.
    pub(crate) fn full_message(&self) -> Cow<'_, str> {
        let [Issue { path, message }] = self.issues.as_slice() else {
            return Cow::Borrowed(&self.message);
        };
        let start = self.message.trim_end_matches('.');
        match path.as_slice() {
            [] => format!("{start}: {message}").into(),
            path => format!("{start}: {} {message}", path.join(".")).into(),
        }
    }

    /// The type of the error in the terms of the SDKs of both formats.
    fn sdk_type(&self) -> &'static str {
        if matches!(self.code, ErrorCode::RequestLimitReached | ErrorCode::BudgetRequestsExhausted)
            && self.dialect == Some(RequestFormat::ShapeA)
        {
            return "insufficient_quota";
        }
        match self.code.status() {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 | 405 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }

    fn envelope<'a>(&'a self, message: &'a str) -> ErrorEnvelope<'a> {
        let field =
            || self.issues.first().map(|issue| issue.path.join(".")).filter(|it| !it.is_empty());
        ErrorEnvelope {
            r#type: (self.dialect == Some(RequestFormat::ShapeB)).then_some("error"),
            error: ErrorBody {
                message,
                code: self.code.name(),
                refusal_id: self.refusal_id,
                status: self.code.status(),
                issues: &self.issues,
                r#type: self.dialect.map(|_| self.sdk_type()),
                param: (self.dialect == Some(RequestFormat::ShapeA)).then(field),
            },
        }
    }

    /// The error as the JSON object below `error` in an envelope.
    pub(crate) fn to_json(&self) -> Box<RawValue> {
        let message = self.full_message();
        // Texts and numbers can always be written.
        serde_json::value::to_raw_value(&self.envelope(&message).error).unwrap_or_default()
    }

    /// The code of the error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The message: what is wrong and what would be right.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The headers that are sent with the envelope.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// The issue of each fault.
    pub fn issues(&self) -> &[Issue] {
        &self.issues
    }
}

/// The format of the SDK that sent a request, by headers that only SDKs send.
pub(crate) fn sdk_of(http: &HttpRequest) -> Option<RequestFormat> {
    let has = |name| http.headers().contains_key(name);
    match has("anthropic-version") {
        true => Some(RequestFormat::ShapeB),
        false => has("x-stainless-lang").then_some(RequestFormat::ShapeA),
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for ApiError {}

/// An error.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorEnvelope<'a> {
    /// Format b: the kind of this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    r#type: Option<&'a str>,
    /// The error.
    error: ErrorBody<'a>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ErrorBody)]
struct ErrorBody<'a> {
    /// The problem, and what is expected.
    message: &'a str,
    /// The code of the error.
    #[schema(value_type = ErrorCode)]
    code: &'a str,
    /// A refused call: the id by which `GET /v1/refusals/{id}` explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    refusal_id: Option<RefusalId>,
    /// The HTTP status.
    status: u16,
    /// One issue for each fault of an input.
    issues: &'a [Issue],
    /// Both formats: the kind of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    r#type: Option<&'a str>,
    /// Format a: the field that is wrong, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    param: Option<Option<String>>,
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        for header in &self.headers {
            response.insert_header(header.clone());
        }
        // Another try with the same key ends in the same way, and agents make many tries.
        if self.code.status() == 401 {
            response.insert_header(DO_NOT_RETRY);
        }
        if let Some(id) = self.refusal_id
            && let Ok(id) = HeaderValue::try_from(id.to_string())
        {
            response.insert_header((REFUSAL_ID, id));
        }
        // For the access line.
        response.extensions_mut().insert(self.code);
        response.json(self.envelope(&self.full_message()))
    }
}

/// Whether no failed read of the archive was logged in the last seconds.
fn is_first_for_a_while() -> bool {
    const WHILE: Duration = Duration::from_secs(10);
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = last.is_none_or(|at| at.elapsed() >= WHILE);
    if is_first {
        *last = Some(Instant::now());
    }
    is_first
}

impl From<StoreError> for ApiError {
    fn from(cause: StoreError) -> Self {
        let unavailable =
            |message| Self::new(ErrorCode::StoreUnavailable, message).retry_after(1_000_000);
        // Logged here, once; the caller gets only what it can act on.
        match cause {
            // A store that is away logs that itself: a line for each failed call would bury everything else.
            StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Interrupted => {
                log::debug!("{cause}");
                unavailable("The service cannot reach its store. Try again shortly.")
            }
            StoreError::Archive(_) => {
                let level = match is_first_for_a_while() {
                    true => log::Level::Warn,
                    false => log::Level::Debug,
                };
                log::log!(level, "{cause}");
                unavailable("The service cannot read its archive of old records. Try again later.")
            }
            StoreError::Moved(_) => {
                log::debug!("{cause}");
                unavailable("The merchant is not served here: it moves, or has moved.")
            }
            StoreError::Database(_) | StoreError::Corrupt { .. } => {
                log::error!("{cause}: {cause:?}");
                Self::new(ErrorCode::InternalError, "Something went wrong in the service.")
            }
        }
    }
}

impl ApiError {
    /// The error of a credential that is not valid here.
    pub fn auth_invalid() -> Self {
        Self::new(ErrorCode::AuthInvalid, "The credential is not valid for this route.")
    }

    /// The error of a resource that does not exist, or is another merchant's.
    pub(crate) fn not_found(code: ErrorCode, noun: &str) -> Self {
        Self::new(code, format!("There is no such {noun}."))
    }
}
