//! The errors of calls that have no answer from a provider.

use actix_web::http::header::{HeaderName, HeaderValue};
use tollgate_domain::admission::{LimitReset, MOST_HELD, Refusal, Shortage};
use tollgate_domain::{
    CallCost, Cycle, Issue, LimitOwner, LimitQuantity, LimitState, RequestId, RequestLimit,
    RequestShape, SpendLimit,
};
use tollgate_gateway::{CallError, cost_headers, request_id_header};
use tollgate_pricing::Amount;
use tollgate_provider::{SendError, SocketOpenError};

use crate::http::error::{ApiError, ErrorCode};

/// The wait before another try while calls in flight hold the missing amount.
const HELD_MICROS: i64 = 1_000_000;

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::CredentialMissing => Self::new(
                ErrorCode::AuthHeaderMissing,
                "Send a forward token, or a key, in the header `Authorization: Bearer …`.",
            ),
            CallError::CredentialInvalid => Self::auth_invalid(),
            CallError::TokenInvalid(issues) => Self::with_issues(
                ErrorCode::ForwardTokenJsonInvalid,
                "Invalid credentials: the forward token is not valid.",
                issues,
            ),
            CallError::TooManyCalls => {
                let message = "Too many calls in flight on this node; retry after 1 s.";
                Self::new(ErrorCode::Overloaded, message).retry_after(1_000_000)
            }
            CallError::TooManySockets => {
                let message = "Too many WebSockets are open on this node; retry after 1 s.";
                Self::new(ErrorCode::Overloaded, message).retry_after(1_000_000)
            }
            CallError::TooManyResponses => {
                let message = "Too many responses are open on this WebSocket; retry after 1 s.";
                Self::new(ErrorCode::Overloaded, message).retry_after(1_000_000)
            }
            CallError::SocketNotOpened(why) => socket_not_opened(why),
            CallError::ShuttingDown => Self::new(
                ErrorCode::ShuttingDown,
                "This node is shutting down. Send the call again; another one will take it.",
            ),
            CallError::ParametersInvalid(issues) => Self::invalid(issues),
            CallError::MetadataInvalid(issues) => {
                let message = "The metadata is not valid.";
                Self::with_issues(ErrorCode::MetadataInvalid, message, issues)
            }
            CallError::EndpointNotSupported(issue) => Self::with_issues(
                ErrorCode::ForwardEndpointNotSupported,
                "This URL cannot be forwarded to.",
                vec![issue],
            ),
            CallError::RouteNotSupported => Self::new(
                ErrorCode::ForwardEndpointNotSupported,
                "No configured provider speaks the format of this route.",
            ),
            CallError::ModelOnOtherRoute { route } => Self::with_issues(
                ErrorCode::ForwardEndpointNotSupported,
                "This model is not served on this route.",
                vec![Issue::at(["model"], format!("is served on POST {route}"))],
            ),
            CallError::ModelNotServed => Self::with_issues(
                ErrorCode::ModelPriceUnknown,
                "No configured provider serves this model at a known price.",
                vec![Issue::at(["model"], "is not in the list of GET /v1/models")],
            ),
            CallError::PriceUnknown(issue) => Self::with_issues(
                ErrorCode::ModelPriceUnknown,
                "The price of this call is not known, so it is not sent.",
                vec![issue],
            ),
            CallError::ContentTypeUnsupported(advice) => {
                Self::new(ErrorCode::ContentTypeUnsupported, advice)
            }
            CallError::BodyInvalid(issues) => {
                let message = "The body to be forwarded is not valid.";
                Self::with_issues(ErrorCode::ForwardTokenJsonInvalid, message, issues)
            }
            CallError::ObjectNotFound { id } => {
                let message = format!("There is no object with the id {id:?}.");
                Self::new(ErrorCode::ProviderObjectNotFound, message)
            }
            CallError::JobRunning { job_id } => {
                let message = format!("The job {job_id} of the object runs. Cancel it first.");
                Self::new(ErrorCode::JobRunning, message)
            }
            CallError::Refused(refusal) => refusal.into(),
            CallError::Store(cause) => cause.into(),
            CallError::NotSent { request_id, cost } => {
                let message =
                    "The provider could not be reached; the call was not sent and costs nothing.";
                Self::new(ErrorCode::ProviderUnreachable, message).with_record(request_id, cost)
            }
            CallError::NoAnswer { request_id, cost, timed_out } => {
                let (code, message) = match timed_out {
                    true => (
                        ErrorCode::ProviderTimeout,
                        "The provider took the call and did not answer in time.",
                    ),
                    false => (
                        ErrorCode::ProviderUnreachable,
                        "The provider took the call and closed without an answer.",
                    ),
                };
                Self::new(code, message).with_record(request_id, cost)
            }
            CallError::Aborted => {
                Self::new(ErrorCode::InternalError, "Something went wrong in the service.")
            }
        }
    }
}

impl ApiError {
    /// Adds the headers with the id of the call's record and with its cost.
    fn with_record(self, request_id: RequestId, cost: Option<CallCost>) -> Self {
        let headers = cost.iter().flat_map(cost_headers).chain([request_id_header(request_id)]);
        headers.fold(self, |error, (name, value)| error.header(name, value))
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::KeyInvalid => Self::auth_invalid(),
            Refusal::ConnectionNotFound => Self::new(
                ErrorCode::ConnectionNotFound,
                "The connection_id of the credential is not a connection of this merchant.",
            ),
            Refusal::MeterNotFound => Self::new(
                ErrorCode::MeterNotFound,
                "The meter of the credential is not a meter of this merchant.",
            ),
            Refusal::ConnectionDisabled => {
                Self::new(ErrorCode::ConnectionDisabled, "The connection was deleted.")
            }
            Refusal::ConnectionSuspended => {
                Self::new(ErrorCode::ConnectionDisabled, "The connection is suspended.")
            }
            Refusal::SpendKeyPaused => {
                Self::new(ErrorCode::SpendKeyPaused, "This spend key is paused.")
            }
            Refusal::SpendKeyExpired { expired_at } => Self::new(
                ErrorCode::SpendKeyExpired,
                format!("This spend key expired at {expired_at}."),
            ),
            Refusal::RequestShapeMismatch { accepted } => shape_mismatch(accepted),
            Refusal::ModelNotAllowed { model } => Self::with_issues(
                ErrorCode::SpendKeyModelNotAllowed,
                "This spend key may not use the model.",
                vec![match model {
                    Some(model) => {
                        Issue::at(["model"], format!("{model:?} is not in its allowed_models"))
                    }
                    None => Issue::at(["models"], "a key with allowed_models names one model"),
                }],
            ),
            Refusal::ProviderNotAllowed { provider } => Self::new(
                ErrorCode::SpendKeyProviderNotAllowed,
                format!("This spend key may not use {provider}: see its allowed_providers."),
            ),
            Refusal::CostBoundUnknown { owner, field } => cost_bound_unknown(owner, field),
            Refusal::BoundTooLarge => Self::invalid(vec![Issue::at(
                [],
                format!("what this call may cost is beyond {MOST_HELD} USD"),
            )]),
            Refusal::RateLimited { rpm, reset } => {
                let message = format!(
                    "This spend key may make {rpm} calls a minute; the next one passes at {}.",
                    reset.at
                );
                let error = Self::new(ErrorCode::RateLimited, message);
                with_retry_after(error, Some(reset)).with_limit(rpm, 0, Some(reset.at)).at_limit(
                    LimitState {
                        limit: Some(LimitQuantity::Calls(rpm.into())),
                        resets_at: Some(reset.at),
                        ..LimitState::default()
                    },
                )
            }
            Refusal::BudgetPaused { budget_id } => {
                let message = format!("The budget {budget_id} is paused.");
                Self::new(ErrorCode::BudgetPaused, message).of_owner(LimitOwner::Budget(budget_id))
            }
            Refusal::RunLimitConflict { limit } => {
                let message = format!(
                    "The run has a limit of {} USD. A call may lower it, and not raise it.",
                    short_amount(limit)
                );
                Self::new(ErrorCode::RunLimitConflict, message)
            }
            Refusal::RequestLimitReached { owner, limit, used, reset } => {
                request_limit(owner, limit, used, reset)
            }
            Refusal::SpendLimitReached { owner, limit, spent, shortage, reset } => {
                spend_limit(owner, limit, spent, &shortage, reset)
            }
            Refusal::WalletInsufficient { wallet_id, shortage } => {
                let message = match wallet_id {
                    Some(wallet_id) => format!(
                        "The wallet {wallet_id} has {} USD available, and {} USD are held by calls \
                         in flight{}{}",
                        short_amount(shortage.left),
                        short_amount(shortage.held),
                        needed_phrase(&shortage),
                        remedy(&shortage, "Add credit to it.")
                    ),
                    None => {
                        "The merchant's own account cannot pay its part of this call.".to_owned()
                    }
                };
                let error = Self::new(ErrorCode::WalletBalanceInsufficient, message);
                let error = error.at_limit(LimitState {
                    held: wallet_id.map(|_| LimitQuantity::Money(shortage.held)),
                    would_hold: shortage.needed.map(LimitQuantity::Money),
                    ..LimitState::default()
                });
                match shortage.is_temporary() {
                    true => error.retry_after(HELD_MICROS),
                    false => error.do_not_retry(),
                }
            }
        }
    }
}

fn socket_not_opened(why: SocketOpenError) -> ApiError {
    match why {
        SocketOpenError::Refused(status) => ApiError::new(
            ErrorCode::ProviderUnreachable,
            format!("The provider answers the request for a WebSocket with the status {status}."),
        ),
        SocketOpenError::NotASocket => ApiError::new(
            ErrorCode::ProviderUnreachable,
            "The provider's answer to the request for a WebSocket is not one of RFC 6455.",
        ),
        SocketOpenError::NoAnswer(SendError::NoAnswer { timed_out: true }) => ApiError::new(
            ErrorCode::ProviderTimeout,
            "The provider does not answer the request for a WebSocket in time.",
        ),
        SocketOpenError::NoAnswer(_) => {
            ApiError::new(ErrorCode::ProviderUnreachable, "The provider could not be reached.")
        }
    }
}

fn shape_mismatch(accepted: RequestShape) -> ApiError {
    let (word, route) = match accepted {
        RequestShape::Any => ("any", "every route"),
        RequestShape::ShapeA => ("shape_a", "/v1/chat/completions and its siblings"),
        RequestShape::ShapeB => ("shape_b", "/v1/messages"),
    };
    ApiError::new(
        ErrorCode::SpendKeyRequestShapeMismatch,
        format!("This spend key accepts {word}, the format of {route}, and no other."),
    )
}

fn cost_bound_unknown(owner: LimitOwner, field: Vec<String>) -> ApiError {
    let message = match field.as_slice() {
        [model] if model == "model" => "has no price, so what the call may cost is not known",
        [most] if most.starts_with("max_") => {
            "is needed: the longest answer of this model is not known"
        }
        _ => "leaves what the call may cost without a bound",
    };
    ApiError::with_issues(
        ErrorCode::CostBoundUnknown,
        format!("{} needs a bound on the cost.", subject(owner)),
        vec![Issue { path: field, message: message.to_owned() }],
    )
    .of_owner(owner)
}

fn request_limit(
    owner: LimitOwner,
    limit: RequestLimit,
    used: u64,
    reset: Option<LimitReset>,
) -> ApiError {
    let message = format!(
        "{} has made {used} of {} calls {}; {}.",
        subject(owner),
        limit.count,
        cycle_phrase(limit.cycle),
        reset_phrase(reset)
    );
    let code = match owner {
        // A run limits no number of calls.
        LimitOwner::SpendKey | LimitOwner::Run => ErrorCode::RequestLimitReached,
        LimitOwner::Budget(_) => ErrorCode::BudgetRequestsExhausted,
    };
    let error = ApiError::new(code, message);
    let state = LimitState {
        limit: Some(LimitQuantity::Calls(limit.count)),
        used: Some(LimitQuantity::Calls(used)),
        resets_at: reset.map(|reset| reset.at),
        ..LimitState::default()
    };
    let error = with_retry_after(error, reset).at_limit(state).of_owner(owner);
    error.with_limit(limit.count, 0, reset.map(|reset| reset.at))
}

/// The owner of a limit.
fn name_of(owner: LimitOwner) -> String {
    match owner {
        LimitOwner::SpendKey => "this spend key".to_owned(),
        LimitOwner::Budget(id) => format!("the budget {id}"),
        LimitOwner::Run => "this run".to_owned(),
    }
}

/// The owner of a limit, at the beginning of a sentence.
fn subject(owner: LimitOwner) -> String {
    name_of(owner).replacen('t', "T", 1)
}

impl ApiError {
    /// Adds the header with the budget that refused the call, if it was one.
    fn of_owner(self, owner: LimitOwner) -> Self {
        const BUDGET: HeaderName = HeaderName::from_static("x-service-budget");
        match owner {
            LimitOwner::SpendKey | LimitOwner::Run => self,
            LimitOwner::Budget(id) => {
                let state = LimitState { budget_id: Some(id), ..self.limit() };
                let error = self.at_limit(state);
                match HeaderValue::from_str(&id.to_string()) {
                    Ok(value) => error.header(BUDGET, value),
                    Err(_) => error,
                }
            }
        }
    }
}

fn spend_limit(
    owner: LimitOwner,
    limit: SpendLimit,
    spent: Amount,
    shortage: &Shortage,
    reset: Option<LimitReset>,
) -> ApiError {
    let remaining = shortage.left.max(Amount::ZERO);
    let message = format!(
        "Of the {} USD that {} may spend {}, {} USD are spent and {} USD are held by calls in \
         flight; {}{}{}",
        short_amount(limit.amount),
        name_of(owner),
        cycle_phrase(limit.cycle),
        short_amount(spent),
        short_amount(shortage.held),
        reset_phrase(reset),
        needed_phrase(shortage),
        remedy(shortage, "Too little of it is left."),
    );
    let code = match owner {
        LimitOwner::SpendKey => ErrorCode::SpendLimitReached,
        LimitOwner::Budget(_) => ErrorCode::BudgetExhausted,
        LimitOwner::Run => ErrorCode::RunLimitReached,
    };
    let state = LimitState {
        limit: Some(LimitQuantity::Money(limit.amount)),
        used: Some(LimitQuantity::Money(spent)),
        held: Some(LimitQuantity::Money(shortage.held)),
        would_hold: shortage.needed.map(LimitQuantity::Money),
        resets_at: reset.map(|reset| reset.at),
        ..LimitState::default()
    };
    let error = ApiError::new(code, message).at_limit(state).of_owner(owner);
    let would_ever_fit = shortage.needed.is_none_or(|needed| needed <= limit.amount);
    let error = match shortage.is_temporary() {
        true => error.retry_after(HELD_MICROS),
        false if would_ever_fit => with_retry_after(error, reset),
        false => error.do_not_retry(),
    };
    error.with_limit(limit.amount, remaining, reset.map(|reset| reset.at))
}

/// The amount that a strict limit would have needed.
fn needed_phrase(shortage: &Shortage) -> String {
    match shortage.needed {
        None => ".".to_owned(),
        Some(needed) => format!("; this call can cost up to {} USD.", short_amount(needed)),
    }
}

/// An amount without the zeros at its end beyond two decimals. Some clients take a 500 in a text for a
/// status.
fn short_amount(amount: Amount) -> String {
    let text = amount.to_string();
    let Some((whole, decimals)) = text.split_once('.') else { return text };
    let kept = decimals.trim_end_matches('0');
    format!("{whole}.{kept:0<2}")
}

/// The advice that would help.
fn remedy(shortage: &Shortage, when_spent: &str) -> String {
    if let Some(largest) = shortage.largest_max_tokens {
        return format!(" With a maximum of {largest} tokens it would be admitted.");
    }
    match shortage.is_temporary() {
        true => " What is held may become available when those calls end.".to_owned(),
        false => format!(" {when_spent}"),
    }
}

/// The longest wait that is stated. Clients do not keep a call open for longer to try it again.
const WORTH_WAITING_MICROS: i64 = 60_000_000;

/// Adds `Retry-After` if the limit resets within a minute. A longer wait is not stated, because agents sleep
/// until then without notice; `x-ratelimit-reset` has the time.
fn with_retry_after(error: ApiError, reset: Option<LimitReset>) -> ApiError {
    match reset.filter(|reset| reset.wait_micros <= WORTH_WAITING_MICROS) {
        Some(reset) => error.retry_after(reset.wait_micros),
        None => error.do_not_retry(),
    }
}

fn cycle_phrase(cycle: Cycle) -> &'static str {
    match cycle {
        Cycle::Daily => "a day",
        Cycle::Weekly => "a week",
        Cycle::Monthly => "a month",
        Cycle::Total => "in total",
    }
}

fn reset_phrase(reset: Option<LimitReset>) -> String {
    match reset {
        Some(reset) => format!("it resets at {}", reset.at),
        None => "it never resets".to_owned(),
    }
}
