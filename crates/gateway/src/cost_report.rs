//! The cost of a call in its answer, for a caller that requests it.
//!
//! | answer | place |
//! |---|---|
//! | not streamed | headers: the head waits for the settlement |
//! | a stream of events that is not compressed | a comment before the last event, or at the end |
//! | another stream | trailers, if the client takes them |
//!
//! The body of an answer is not changed but for the comment, which readers of events ignore.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{AnswerReport, CallCost, Issue, RequestId};
use tollgate_pricing::Amount;
use tollgate_provider::http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE,
};
use tollgate_usage::{AnswerForm, MemoryReservation};

use crate::error::CallError;
use crate::relay::RelayedHead;
use crate::request::RequestHead;

/// The header that asks for a report.
pub(crate) const REPORT: HeaderName = HeaderName::from_static("x-service-report");
const COST: HeaderName = HeaderName::from_static("x-service-cost");
const WALLET_COST: HeaderName = HeaderName::from_static("x-service-wallet-cost");
const REMAINING: HeaderName = HeaderName::from_static("x-service-remaining");

/// The report that the head of a request asks for, and whether its client takes trailers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportRequest {
    pub(crate) report: Option<AnswerReport>,
    pub(crate) takes_trailers: bool,
}

impl ReportRequest {
    pub(crate) fn of(head: &RequestHead<'_>) -> Result<Self, CallError> {
        let mut reports = head.headers.get_all(REPORT).map(HeaderValue::as_bytes);
        let report = match (reports.next(), reports.next()) {
            (None, _) => None,
            (Some(b"cost"), None) => Some(AnswerReport::Cost),
            _ => {
                let issue = Issue::at([REPORT.as_str()], "must be cost");
                return Err(CallError::ParametersInvalid(vec![issue]));
            }
        };
        let mut codings = head.headers.get_all(TE).filter_map(|value| value.to_str().ok());
        let is_trailers = |coding: &str| coding.trim().eq_ignore_ascii_case("trailers");
        let takes_trailers = codings.any(|list| list.split(',').any(is_trailers));
        Ok(Self { report, takes_trailers })
    }
}

/// The headers with the cost of a call.
pub fn cost_headers(cost: &CallCost) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let named = [
        (COST, Some(cost.total_request_cost)),
        (WALLET_COST, Some(cost.total_wallet_cost)),
        (REMAINING, cost.remaining),
    ];
    named.into_iter().filter_map(|(name, amount)| {
        let value = HeaderValue::from_str(&amount?.to_string()).ok()?;
        Some((name, value))
    })
}

/// The names of [`cost_headers`], as the `Trailer` header lists them.
pub const COST_TRAILERS: HeaderValue =
    HeaderValue::from_static("x-service-cost, x-service-wallet-cost, x-service-remaining");

/// The place of the report in an answer.
pub(crate) enum ReportPlace {
    /// No report is requested, or the answer has no place for it.
    None,
    /// The headers. The head and the body wait for the settlement, as far as there is memory for the body.
    Headers { waiting: Option<RelayedHead>, memory: MemoryReservation },
    /// A comment in a stream of events.
    Comment(CommentPlace),
    /// The trailers.
    Trailers,
}

impl ReportPlace {
    /// The place in an answer of this form.
    pub(crate) fn of(
        form: AnswerForm,
        headers: &HeaderMap,
        takes_trailers: bool,
        memory: MemoryReservation,
    ) -> Self {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        // Speech is played while it comes.
        let is_speech = content_type
            .is_some_and(|kind| kind.to_ascii_lowercase().starts_with("audio/"))
            && !headers.contains_key(CONTENT_LENGTH);
        match form {
            AnswerForm::Events => Self::Comment(CommentPlace::default()),
            AnswerForm::Whole if !is_speech => Self::Headers { waiting: None, memory },
            AnswerForm::Whole | AnswerForm::Stream if takes_trailers => Self::Trailers,
            AnswerForm::Whole | AnswerForm::Stream => Self::None,
        }
    }

    /// Takes memory for a piece of a body that waits. Returns `false` if there is none.
    pub(crate) fn has_room(memory: &mut MemoryReservation, piece: &[u8]) -> bool {
        memory.grow(piece.len().saturating_add(PIECE_OVERHEAD_BYTES))
    }
}

/// The memory that a waiting piece takes beside its bytes. A provider chooses how many pieces there are.
const PIECE_OVERHEAD_BYTES: usize = 128;

/// The place of the comment in a stream of events.
#[derive(Debug, Default)]
pub(crate) struct CommentPlace {
    /// The last bytes before the place, at most four.
    before: Vec<u8>,
    /// The number of waiting pieces before the place. `None` while no event is withheld.
    waiting: Option<usize>,
}

impl CommentPlace {
    /// Must be called for each piece before the last event.
    pub(crate) fn pass(&mut self, piece: &[u8]) {
        let tail = piece.len().saturating_sub(4);
        self.before.extend_from_slice(piece.get(tail..).unwrap_or_default());
        let excess = self.before.len().saturating_sub(4);
        self.before.drain(..excess);
    }

    /// Must be called when the last event begins, with the number of pieces that wait before it.
    pub(crate) fn withhold(&mut self, waiting: usize) {
        self.waiting.get_or_insert(waiting);
    }

    /// Inserts the comment among the waiting pieces.
    pub(crate) fn insert(&self, comment: &CostComment<'_>, waiting: &mut Vec<Bytes>) {
        let at = self.waiting.unwrap_or(waiting.len()).min(waiting.len());
        // A stream that ends within a line has no place for a comment. Within an event, the comment is a line of it.
        let Some(before) = without_line_end(&self.before) else { return };
        let is_between_events = before.is_empty() || without_line_end(before).is_some();
        let Ok(json) = serde_json::to_string(comment) else { return };
        let end = if is_between_events { "\n\n" } else { "\n" };
        waiting.insert(at, Bytes::from([": service ", &json, end].concat()));
    }
}

/// The bytes before the line end at the end of `bytes`. The beginning of a stream counts as a line end.
fn without_line_end(bytes: &[u8]) -> Option<&[u8]> {
    let ends: [&[u8]; 3] = [b"\r\n", b"\n", b"\r"];
    match bytes {
        [] => Some(bytes),
        _ => ends.iter().find_map(|end| bytes.strip_suffix(*end)),
    }
}

/// The content of a comment.
#[derive(Debug, Serialize)]
pub(crate) struct CostComment<'a> {
    request_id: RequestId,
    total_request_cost: &'a Amount,
    total_wallet_cost: &'a Amount,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<&'a Amount>,
}

impl<'a> CostComment<'a> {
    pub(crate) fn new(request_id: RequestId, cost: &'a CallCost) -> Self {
        Self {
            request_id,
            total_request_cost: &cost.total_request_cost,
            total_wallet_cost: &cost.total_wallet_cost,
            remaining: cost.remaining.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(passed: &[&str], waiting: &[&str], withheld_at: Option<usize>) -> String {
        let mut place = CommentPlace::default();
        passed.iter().for_each(|piece| place.pass(piece.as_bytes()));
        withheld_at.into_iter().for_each(|at| place.withhold(at));
        let cost = CallCost {
            total_request_cost: Amount::from_units(12_000),
            total_wallet_cost: Amount::ZERO,
            remaining: None,
        };
        let id: RequestId = "req_01KXM7Z1FKRDKQ9PSTVX2Y0Z3A".parse().unwrap();
        let mut pieces: Vec<Bytes> =
            waiting.iter().map(|piece| Bytes::copy_from_slice(piece.as_bytes())).collect();
        place.insert(&CostComment::new(id, &cost), &mut pieces);
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn a_comment_stands_before_the_withheld_event_or_at_the_end() {
        let comment = ": service {\"request_id\":\"req_01KXM7Z1FKRDKQ9PSTVX2Y0Z3A\",\
                       \"total_request_cost\":\"0.0000012000\",\"total_wallet_cost\":\"0.0000000000\"}";
        for boundary in ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"] {
            let (first, second) = boundary.split_at(1);
            let passed = ["data: x", first, second];
            let expected = format!("{comment}\n\ndata: [DONE]\n\n");
            assert_eq!(inserted(&passed, &["data: [DONE]\n\n"], Some(0)), expected);
            assert_eq!(inserted(&passed, &[], None), format!("{comment}\n\n"));
        }
        // A piece that waits before the event stays before the comment.
        let shown = inserted(&["data: x\n\n"], &["data: x\n\n", "data: [DONE]\n\n"], Some(1));
        assert_eq!(shown, format!("data: x\n\n{comment}\n\ndata: [DONE]\n\n"));
        // Within an event the comment is a line of it.
        let shown = inserted(&["event: end\n"], &["data: {}\n\n"], Some(0));
        assert_eq!(shown, format!("{comment}\ndata: {{}}\n\n"));
        assert_eq!(inserted(&["data: broken o"], &[], None), "");
        assert_eq!(inserted(&[], &[], None), format!("{comment}\n\n"));
    }

    #[test]
    fn the_place_depends_on_the_answer() {
        let word = |form, headers: &[(HeaderName, &'static str)], takes_trailers| {
            let value = |value| HeaderValue::from_static(value);
            let headers = headers.iter().map(|(name, text)| (name.clone(), value(text)));
            let memory = MemoryReservation::default();
            match ReportPlace::of(form, &headers.collect(), takes_trailers, memory) {
                ReportPlace::None => "none",
                ReportPlace::Headers { .. } => "headers",
                ReportPlace::Comment(_) => "comment",
                ReportPlace::Trailers => "trailers",
            }
        };
        assert_eq!(word(AnswerForm::Events, &[], true), "comment");
        assert_eq!(word(AnswerForm::Stream, &[], true), "trailers");
        assert_eq!(word(AnswerForm::Stream, &[], false), "none");
        assert_eq!(word(AnswerForm::Whole, &[(CONTENT_TYPE, "application/json")], true), "headers");
        let speech = (CONTENT_TYPE, "audio/mpeg");
        assert_eq!(word(AnswerForm::Whole, std::slice::from_ref(&speech), true), "trailers");
        assert_eq!(word(AnswerForm::Whole, std::slice::from_ref(&speech), false), "none");
        assert_eq!(word(AnswerForm::Whole, &[speech, (CONTENT_LENGTH, "10")], true), "headers");
    }
}
