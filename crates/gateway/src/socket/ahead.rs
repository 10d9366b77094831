//! The money that is held for calls that the provider begins by itself.
//!
//! With voice activity, and at Gemini Live, the provider begins a response because of the input. Each such response needs
//! its money before the input is sent on, so one call is admitted ahead of the responses that have begun. The
//! transcription of the input is another such call. A call ahead has no record until it begins.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tollgate_provider::Endpoint;
use tollgate_usage::socket::SocketInput;

use super::admitting::SocketRequest;
use super::end::SocketEnd;
use super::open_responses::OpenResponse;
use super::session::{MOST_REFUSALS, Session, SocketInterface, is_lasting};
use crate::error::CallError;
use crate::outbound::CallSummary;

/// The kinds of calls that the provider begins by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AheadKind {
    /// A response.
    Response,
    /// The transcription of input.
    Transcription,
}

/// A call that is admitted ahead, and the input that its bound covers.
struct CallAhead<'a> {
    call: OpenResponse<'a>,
    until: SocketInput,
}

/// The calls that are admitted ahead: at most one of each kind.
#[derive(Default)]
pub(super) struct CallsAhead<'a> {
    response: RefCell<Option<CallAhead<'a>>>,
    transcription: RefCell<Option<CallAhead<'a>>>,
    /// Held by whoever admits one.
    turn: Mutex<()>,
    /// Notified when one may be missing.
    wanted: Notify,
    /// The refusal of a call that the provider has begun all the same.
    refusal: Cell<Option<CallError>>,
}

impl<'a> CallsAhead<'a> {
    /// Notes that a call may be missing.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    fn of(&self, kind: AheadKind) -> &RefCell<Option<CallAhead<'a>>> {
        match kind {
            AheadKind::Response => &self.response,
            AheadKind::Transcription => &self.transcription,
        }
    }

    fn covers(&self, kind: AheadKind, input: SocketInput) -> bool {
        self.of(kind).borrow().as_ref().is_some_and(|ahead| input.is_within(ahead.until))
    }

    /// Takes back what did not begin.
    pub(super) async fn take_back(&self) {
        for kind in [AheadKind::Response, AheadKind::Transcription] {
            self.take_back_one(kind).await;
        }
    }

    async fn take_back_one(&self, kind: AheadKind) {
        let ahead = self.of(kind).take();
        if let Some(CallAhead { call, .. }) = ahead {
            call.admitted.take_back().await;
        }
    }
}

impl<'a, I: SocketInterface> Session<'a, I> {
    /// Keeps the calls ahead that the conversation needs, until the socket ends.
    pub(super) async fn keep_ahead(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.ending.cancelled() => return,
                () = self.ahead.wanted.notified() => {}
            }
            let mut summary = CallSummary::default();
            if let Some(error) = self.ahead.refusal.take() {
                // No other one may pass the limits.
                self.refusals.set(MOST_REFUSALS);
                self.refuse(error, &Bytes::new(), summary, None).await;
                continue;
            }
            let input = self.conversation.borrow().input();
            match self.hold_ahead(input, &mut summary).await {
                // The next input is refused, if that is still so then.
                Err(error) if is_lasting(&error) => {
                    self.refuse(error, &Bytes::new(), summary, None).await;
                }
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Holds the money for the calls that the provider may begin by itself when it has this input.
    ///
    /// # Errors
    /// The reason why the input may not be sent on.
    pub(super) async fn hold_ahead(
        &self,
        input: SocketInput,
        summary: &mut CallSummary,
    ) -> Result<(), CallError> {
        let needed = {
            let conversation = self.conversation.borrow();
            [
                (AheadKind::Response, conversation.begins_responses()),
                (AheadKind::Transcription, conversation.transcribes()),
            ]
        };
        for (kind, is_needed) in needed {
            if !is_needed {
                continue;
            }
            if self.gateway.calls.is_draining() {
                return Err(CallError::ShuttingDown);
            }
            if !self.ahead.covers(kind, input) {
                self.hold(kind, input, summary).await?;
            }
        }
        Ok(())
    }

    async fn hold(
        &self,
        kind: AheadKind,
        input: SocketInput,
        summary: &mut CallSummary,
    ) -> Result<(), CallError> {
        let _turn = self.ahead.turn.lock().await;
        if self.ahead.covers(kind, input) {
            return Ok(());
        }
        let until = input.plus(SocketInput::AHEAD);
        let mut admitted = self.admit_ahead(kind, until, summary).await;
        if matches!(admitted, Err(CallError::Refused(_))) && self.ahead.of(kind).borrow().is_some()
        {
            // There may be room for one of them.
            self.ahead.take_back_one(kind).await;
            admitted = self.admit_ahead(kind, until, summary).await;
        }
        let ahead = CallAhead { call: admitted?, until };
        let before = self.ahead.of(kind).replace(Some(ahead));
        if let Some(CallAhead { call, .. }) = before {
            call.admitted.take_back().await;
        }
        Ok(())
    }

    async fn admit_ahead(
        &self,
        kind: AheadKind,
        until: SocketInput,
        summary: &mut CallSummary,
    ) -> Result<OpenResponse<'a>, CallError> {
        let request = self.request_of(kind, until, true, summary)?;
        self.admit(request).await
    }

    /// A call that the provider begins by itself when it has this input.
    fn request_of(
        &self,
        kind: AheadKind,
        until: SocketInput,
        ahead: bool,
        summary: &mut CallSummary,
    ) -> Result<SocketRequest, CallError> {
        let (endpoint, body): (&Arc<Endpoint>, _) = {
            let conversation = self.conversation.borrow();
            match kind {
                AheadKind::Response => {
                    (&self.endpoint, conversation.response(None, until, self.open_output()))
                }
                AheadKind::Transcription => {
                    (&self.transcription_endpoint, conversation.transcription(until))
                }
            }
        };
        let input = Some(self.conversation.borrow().input());
        self.request(endpoint, body, input, ahead, summary)
    }

    /// Ends the socket because of a call that the provider has begun and that is not admitted: it has no payer.
    pub(super) fn end_without_payer(&self, error: CallError) {
        let (id, provider) = (self.guard.id, &self.endpoint.provider.name);
        let code = self.code(error);
        log::warn!("{id}: {provider} has begun a response that is not admitted: {code}");
        self.end(SocketEnd::Refused(code));
    }

    /// The call that the provider has begun by itself: the one that is admitted ahead, or a new one.
    ///
    /// # Errors
    /// The reason why the call is not admitted. It has no payer then.
    pub(super) async fn begun_by_provider(
        &self,
        kind: AheadKind,
    ) -> Result<OpenResponse<'a>, CallError> {
        let ahead = self.ahead.of(kind).take();
        let mut call = match ahead {
            Some(CallAhead { mut call, .. }) => {
                // A transcription is settled at once.
                if kind == AheadKind::Response {
                    call.admitted.begin().await;
                }
                call
            }
            None => {
                // There was not enough time, or more began than the input was expected to make.
                let input = self.conversation.borrow().input();
                let request = self.request_of(kind, input, false, &mut CallSummary::default())?;
                let (call, refusal) = self.admit_begun(request).await?;
                self.ahead.refusal.set(refusal);
                call
            }
        };
        self.ahead.want();
        call.is_sent = true;
        call.sent_at = Instant::now();
        call.timings.sent_at = Some(self.gateway.clock.now());
        Ok(call)
    }
}
