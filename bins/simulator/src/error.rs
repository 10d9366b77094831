//! Answers that are errors.

use serde_json::{Value, json};

use crate::endpoint::SimulatedDialect;

/// An answer that is an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SimulatedError {
    pub(crate) status: u16,
    message: String,
    pub(crate) retry_after_s: Option<u32>,
}

impl SimulatedError {
    pub(crate) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after_s: None }
    }

    /// The error that the call requested.
    pub(crate) fn simulated(status: u16, retry_after_s: Option<u32>) -> Self {
        let retry_after_s = retry_after_s.or((status == 429).then_some(1));
        Self { retry_after_s, ..Self::new(status, format!("a simulated error {status}")) }
    }

    /// The error in the format of the dialect.
    pub(crate) fn body(&self, dialect: SimulatedDialect, request_id: &str) -> Value {
        let message = &self.message;
        match dialect {
            SimulatedDialect::OpenAi => json!({"error": {
                "message": message,
                "type": openai_type(self.status),
                "param": null,
                "code": openai_code(self.status),
            }}),
            SimulatedDialect::Anthropic => json!({
                "type": "error",
                "error": {"type": anthropic_type(self.status), "message": message},
                "request_id": request_id,
            }),
            SimulatedDialect::Google => json!({"error": {
                "code": self.status,
                "message": message,
                "status": google_status(self.status),
            }}),
        }
    }
}

const fn openai_type(status: u16) -> &'static str {
    match status {
        429 => "requests",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

const fn openai_code(status: u16) -> Option<&'static str> {
    match status {
        401 => Some("invalid_api_key"),
        404 => Some("model_not_found"),
        429 => Some("rate_limit_exceeded"),
        _ => None,
    }
}

const fn google_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    }
}

const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}
