//! The calls of a socket that are admitted ahead.

use std::cell::RefCell;

use tokio::sync::{Mutex, Notify};
use tollgate_provider::Endpoint;
use tollgate_usage::{InspectedBody, UsageBound};

use super::open_responses::OpenResponse;

/// The kinds of calls that the provider begins by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AheadKind {
    /// A response.
    Response,
    /// The transcription of input.
    Transcription,
}

/// A call that is admitted ahead.
pub(super) struct CallAhead<'a> {
    pub(super) call: OpenResponse<'a>,
    /// The facts by which it is admitted, and the bound that follows.
    pub(super) body: InspectedBody,
    pub(super) bound: UsageBound,
}

impl CallAhead<'_> {
    /// Whether its money is enough for a call with this body.
    pub(super) fn covers(&self, body: &InspectedBody, endpoint: &Endpoint) -> bool {
        self.body.model == body.model && body.bound(&endpoint.format).is_within(&self.bound)
    }
}

/// The calls that are admitted ahead: at most one of each kind.
#[derive(Default)]
pub(super) struct CallsAhead<'a> {
    response: RefCell<Option<CallAhead<'a>>>,
    transcription: RefCell<Option<CallAhead<'a>>>,
    /// Locked while one is admitted.
    pub(super) turn: Mutex<()>,
    /// Notified when one may be missing.
    pub(super) wanted: Notify,
}

impl<'a> CallsAhead<'a> {
    /// Notes that a call may be missing, or be admitted for less than is needed now.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    pub(super) fn of(&self, kind: AheadKind) -> &RefCell<Option<CallAhead<'a>>> {
        match kind {
            AheadKind::Response => &self.response,
            AheadKind::Transcription => &self.transcription,
        }
    }

    /// Whether nothing is admitted ahead.
    pub(super) fn is_empty(&self) -> bool {
        self.response.borrow().is_none() && self.transcription.borrow().is_none()
    }

    /// Whether a response is admitted ahead.
    pub(super) fn has_response(&self) -> bool {
        self.response.borrow().is_some()
    }

    /// Takes back what did not begin.
    pub(super) async fn take_back(&self) {
        for kind in [AheadKind::Response, AheadKind::Transcription] {
            take_back(self.of(kind).take()).await;
        }
    }

    /// Takes back the response that is admitted ahead.
    pub(super) async fn take_back_response(&self) {
        take_back(self.response.take()).await;
    }
}

/// Takes back a call that did not begin.
pub(super) async fn take_back(ahead: Option<CallAhead<'_>>) {
    if let Some(CallAhead { call, .. }) = ahead {
        call.admitted.take_back().await;
    }
}
