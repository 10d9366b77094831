//! The calls of a socket that are admitted ahead.

use std::cell::RefCell;

use tokio::sync::{Mutex, Notify};
use tollgate_provider::Endpoint;
use tollgate_usage::{InspectedBody, UsageBound};

use super::open_responses::OpenResponse;

/// The time of a session that is held when it begins, in microseconds.
pub(super) const SESSION_MICROS: u64 = 60_000_000;

/// The kinds of calls of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketCallKind {
    /// A session that is a call of its own.
    Session,
    Response,
    Transcription,
}

impl From<AheadKind> for SocketCallKind {
    fn from(kind: AheadKind) -> Self {
        match kind {
            AheadKind::Response => Self::Response,
            AheadKind::Transcription => Self::Transcription,
        }
    }
}

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
    /// More time of a session that is a call of its own, each with its microseconds. They are kept until it is settled,
    /// because the time may have passed.
    session: RefCell<Vec<(OpenResponse<'a>, u64)>>,
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

    /// Adds the time that is admitted ahead to the bound of the session.
    pub(super) fn extend_session(&self, session: &mut OpenResponse<'a>) {
        for (ahead, _) in &*self.session.borrow() {
            session.admitted.bound.extend(&ahead.admitted.bound);
            session.admitted.is_extended = true;
        }
    }

    /// Keeps a call for more time of a session.
    pub(super) fn add_to_session(&self, ahead: OpenResponse<'a>, micros: u64) {
        self.session.borrow_mut().push((ahead, micros));
    }

    /// The time of a session that is held beyond its own hold, in microseconds.
    pub(super) fn session_micros(&self) -> u64 {
        self.session.borrow().iter().fold(0, |sum, (_, micros)| sum.saturating_add(*micros))
    }

    /// Takes back the time of a session that is settled.
    pub(super) async fn take_back_session(&self) {
        for (ahead, _) in self.session.take() {
            ahead.admitted.take_back().await;
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
        self.take_back_session().await;
        for kind in [AheadKind::Response, AheadKind::Transcription] {
            self.take_back(kind).await;
        }
    }
}
