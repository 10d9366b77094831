//! Access lines: one log line for each request, with only what is safe to log.
//!
//! A line holds ids, numbers and words that this service defines. It holds nothing that a caller chooses: no
//! body, no query, no header, only the template of the route as path, and no model, which the record has. A line
//! is written when it is complete: the answer has left, and the call is settled, also if its client has left
//! before.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use actix_web::HttpMessage;
use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use serde::Serialize;
use tollgate_domain::admission::CallKey;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::{MerchantId, PendingRecord};
use tollgate_gateway::CallObserver;
use tollgate_pricing::Amount;
use tollgate_provider::trace_id;

use crate::http::error::ErrorCode;

/// One access line. A field that does not apply is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AccessLine {
    /// The method; `OTHER` if HTTP does not define it.
    pub method: &'static str,
    /// The route's path, with names in the place of ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The status; `None` if the client left before there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The code of the error, if this service made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// The time from the head of the request to the last byte of the answer, in microseconds.
    pub duration_us: u64,
    /// The id of the call's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The trace that the caller named, if it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The merchant of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merchant_id: Option<String>,
    /// The id of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The provider that the call was forwarded to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The provider's own status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_status: Option<u16>,
    /// The input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// The output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The base cost, in USD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Amount>,
}

/// Written as `name=value`. No value needs quotes, because none has a space.
impl fmt::Display for AccessLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method={}", self.method)?;
        show(f, "path", self.path.as_ref())?;
        show(f, "status", self.status)?;
        show(f, "error", self.error)?;
        write!(f, " duration_us={}", self.duration_us)?;
        show(f, "request_id", self.request_id.as_ref())?;
        show(f, "trace_id", self.trace_id.as_ref())?;
        show(f, "merchant_id", self.merchant_id.as_ref())?;
        show(f, "key_id", self.key_id.as_ref())?;
        show(f, "provider", self.provider.as_ref())?;
        show(f, "provider_status", self.provider_status)?;
        show(f, "input_tokens", self.input_tokens)?;
        show(f, "output_tokens", self.output_tokens)?;
        show(f, "cost", self.cost)
    }
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
}

/// The function that writes lines.
pub type AccessLog = fn(&AccessLine);

/// The line of a request, shared by all code that adds to it; empty if no lines are written. It belongs to
/// one worker, which is one thread.
#[derive(Clone, Default)]
pub(crate) struct AccessEntry(Option<Rc<AccessDraft>>);

struct AccessDraft {
    line: RefCell<AccessLine>,
    began: Instant,
    log: AccessLog,
}

impl Drop for AccessDraft {
    fn drop(&mut self) {
        let line = self.line.get_mut();
        if line.duration_us == 0 {
            line.duration_us = micros_since(self.began);
        }
        (self.log)(line);
    }
}

impl AccessEntry {
    /// Begins the line of a request and puts it into the request's extensions.
    pub(crate) fn begin(request: &ServiceRequest, log: Option<AccessLog>) -> Self {
        let Some(log) = log else { return Self::default() };
        let line = AccessLine {
            method: method(request.method()),
            trace_id: trace_id_of(request),
            ..AccessLine::default()
        };
        let draft = AccessDraft { line: RefCell::new(line), began: Instant::now(), log };
        let access = Self(Some(Rc::new(draft)));
        request.extensions_mut().insert(access.clone());
        access
    }

    /// The line of a request.
    pub(crate) fn of(request: &impl HttpMessage) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// Changes the line, if there is one.
    fn note(&self, add: impl FnOnce(&mut AccessLine)) {
        if let Some(draft) = &self.0 {
            add(&mut draft.line.borrow_mut());
        }
    }

    /// Notes the head of the answer.
    pub(crate) fn answered(
        &self,
        path: impl FnOnce() -> Option<String>,
        status: u16,
        error: Option<ErrorCode>,
    ) {
        self.note(|line| {
            line.path = path();
            line.status = Some(status);
            line.error = error.map(ErrorCode::name);
        });
    }

    /// Notes the merchant and the key.
    pub(crate) fn caller(&self, merchant_id: MerchantId, key: CallKey) {
        self.note(|line| {
            line.merchant_id = Some(merchant_id.to_string());
            line.key_id = Some(match key {
                CallKey::Secret(id) => id.to_string(),
                CallKey::Spend(id, _) => id.to_string(),
            });
        });
    }

    /// Notes that the last byte of the answer has left, or the client has.
    pub(crate) fn left(&self) {
        if let Some(draft) = &self.0 {
            draft.line.borrow_mut().duration_us = micros_since(draft.began);
        }
    }
}

/// Notes the merchant and the key of a request in its access line.
pub fn note_caller(request: &impl HttpMessage, merchant_id: MerchantId, key: CallKey) {
    AccessEntry::of(request).caller(merchant_id, key);
}

impl CallObserver for AccessEntry {
    fn admitted(&self, pending: &PendingRecord) {
        self.note(|line| {
            line.request_id = Some(pending.request_id.to_string());
            line.provider = Some(pending.forwarded.provider.clone());
        });
    }

    fn ended(&self, report: &CallReport) {
        self.note(|line| {
            let priced = &report.priced;
            line.provider_status = report.provider_status;
            line.input_tokens = Some(priced.usage.input_tokens());
            line.output_tokens = Some(priced.usage.output_tokens());
            line.cost = Some(priced.base.input.saturating_add(priced.base.output));
        });
    }
}

fn micros_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
}

fn trace_id_of(request: &ServiceRequest) -> Option<String> {
    trace_id(request.headers()).map(str::to_owned)
}

fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_applies_in_either_form() {
        let line = AccessLine {
            method: "POST",
            path: Some("/v1/forward".to_owned()),
            status: Some(200),
            duration_us: 7,
            request_id: Some("req_1".to_owned()),
            cost: Some(Amount::from_units(20_000_000)),
            ..AccessLine::default()
        };
        assert_eq!(
            line.to_string(),
            "method=POST path=/v1/forward status=200 duration_us=7 request_id=req_1 cost=0.0020000000"
        );
        let shown = serde_json::to_string(&line).unwrap();
        assert_eq!(
            shown,
            r#"{"method":"POST","path":"/v1/forward","status":200,"duration_us":7,"request_id":"req_1","cost":"0.0020000000"}"#
        );
    }
}
