//! The calls of a socket that are admitted ahead.

use std::cell::RefCell;

use tokio::sync::{Mutex, Notify};
use tollgate_provider::Endpoint;
use tollgate_usage::{InspectedBody, UsageBound};

use super::open_responses::OpenResponse;

/// The kinds of calls that the provider begins by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AheadKind {
    /// More time of a session that is a call of its own.
    Session,
    /// A response.
    Response,
    /// The transcription of input.
    Transcription,
}

/// A call that is admitted ahead.
pub(super) struct CallAhead<'a> {
    call: OpenResponse<'a>,
    /// The facts by which it is admitted, and the bound that follows.
    body: InspectedBody,
    bound: UsageBound,
}

impl<'a> CallAhead<'a> {
    pub(super) fn new(call: OpenResponse<'a>, body: InspectedBody, endpoint: &Endpoint) -> Self {
        let bound = body.bound(&endpoint.format);
        Self { call, body, bound }
    }

    async fn take_back(self) -> InspectedBody {
        self.call.admitted.take_back().await;
        self.body
    }
}

/// The calls that are admitted ahead: at most one of each kind.
#[derive(Default)]
pub(super) struct CallsAhead<'a> {
    session: RefCell<Option<Box<CallAhead<'a>>>>,
    response: RefCell<Option<Box<CallAhead<'a>>>>,
    transcription: RefCell<Option<Box<CallAhead<'a>>>>,
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

    fn of(&self, kind: AheadKind) -> &RefCell<Option<Box<CallAhead<'a>>>> {
        match kind {
            AheadKind::Session => &self.session,
            AheadKind::Response => &self.response,
            AheadKind::Transcription => &self.transcription,
        }
    }

    /// Whether no call is admitted ahead that the provider may begin.
    pub(super) fn is_empty(&self) -> bool {
        self.response.borrow().is_none() && self.transcription.borrow().is_none()
    }

    /// Whether a response is admitted ahead.
    pub(super) fn has_response(&self) -> bool {
        self.response.borrow().is_some()
    }

    /// Whether there is money for a call of this kind with this body.
    pub(super) fn covers(
        &self,
        kind: AheadKind,
        body: &InspectedBody,
        endpoint: &Endpoint,
    ) -> bool {
        self.of(kind).borrow().as_ref().is_some_and(|ahead| {
            ahead.body.model == body.model && body.bound(&endpoint.format).is_within(&ahead.bound)
        })
    }

    /// Adds the time of a session that is admitted ahead to the bound of its call.
    pub(super) fn extend_session(&self, session: &mut OpenResponse<'a>) {
        if let Some(ahead) = &*self.session.borrow() {
            session.admitted.bound.extend(&ahead.call.admitted.bound);
            session.admitted.is_extended = true;
        }
    }

    /// Keeps a call in place of the one before, which is taken back.
    pub(super) async fn replace(&self, kind: AheadKind, ahead: CallAhead<'a>) {
        let before = self.of(kind).replace(Some(Box::new(ahead)));
        if let Some(before) = before {
            before.take_back().await;
        }
    }

    /// The call that begins. A transcription has the model that it was admitted for.
    pub(super) fn take(
        &self,
        kind: AheadKind,
        transcriber: Option<&str>,
    ) -> Option<OpenResponse<'a>> {
        let fits = |ahead: &mut Box<CallAhead<'_>>| {
            kind == AheadKind::Response || ahead.body.model.as_deref() == transcriber
        };
        self.of(kind).borrow_mut().take_if(fits).map(|ahead| ahead.call)
    }

    /// Takes back the call of this kind. Returns its body.
    pub(super) async fn take_back(&self, kind: AheadKind) -> Option<InspectedBody> {
        let before = self.of(kind).take()?;
        Some(before.take_back().await)
    }

    /// Takes back what did not begin.
    pub(super) async fn take_back_all(&self) {
        for kind in [AheadKind::Session, AheadKind::Response, AheadKind::Transcription] {
            self.take_back(kind).await;
        }
    }
}
