//! The money that is held for calls that the provider begins by itself.
//!
//! With voice activity, and at Gemini Live, the provider begins a response because of the input. Each such response needs
//! its money before the input is sent on, so one call is admitted ahead of the responses that have begun. The
//! transcription of the input is another such call. A call ahead has no record until it begins.
//!
//! A session that is billed by its time is one call. It is admitted for the first minute. The time after that is held by
//! calls ahead, which never begin: the session is settled as a whole.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tollgate_usage::InspectedBody;
use tollgate_usage::socket::{ClientMessage, Conversation, SocketInput};

use super::calls_ahead::{AheadKind, CallAhead, SESSION_MICROS, SocketCallKind};
use super::end::SocketEnd;
use super::open_responses::OpenResponse;
use super::session::{Session, SocketInterface, is_lasting};
use crate::error::CallError;
use crate::outbound::CallSummary;

/// The time that is held in addition, each time.
const SESSION_STEP: Duration = Duration::from_secs(60);
/// The time that is held at least. The provider may need some of it to end the session.
const SESSION_RESERVE: Duration = Duration::from_secs(15);
/// The time between two checks. It is less than the reserve, so that there are several attempts.
const SESSION_CHECK: Duration = Duration::from_secs(3);

/// The facts of a call that the provider may begin by itself.
struct NeededCall {
    kind: AheadKind,
    /// Now.
    now: InspectedBody,
    /// After some more input.
    later: InspectedBody,
}

impl<'a, I: SocketInterface> Session<'a, I> {
    /// Keeps the calls ahead that the conversation needs, until the socket ends.
    pub(super) async fn keep_ahead(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.ending.cancelled() => return,
                () = self.ahead.wanted.notified() => {}
                () = tokio::time::sleep(SESSION_CHECK), if self.session_passed().is_some() => {}
            }
            self.extend_session().await;
            let mut summary = CallSummary::default();
            if self.closing.get().is_some() {
                continue;
            }
            match self.hold_ahead(None, &mut summary).await {
                // The next input is refused, if that is still so then.
                Err(error) if is_lasting(&error) => {
                    self.refuse(error, &Bytes::new(), summary, None).await;
                }
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// The time that the open session has lasted. `None` without one.
    pub(super) fn session_passed(&self) -> Option<Duration> {
        let open = self.open.borrow();
        let passed = open.iter().find(|call| call.is_session).map(OpenResponse::passed)?;
        Some(passed.max(Duration::from_micros(self.conversation.borrow().session_micros())))
    }

    /// Holds the money for more time of the session. Without it, the socket ends before the time that is paid.
    async fn extend_session(&self) {
        let held = SESSION_MICROS.saturating_add(self.ahead.session_micros());
        let missing = |more: Duration| {
            let until = self.session_passed()?.saturating_add(more);
            let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
            until.checked_sub(held).filter(|missing| *missing > 0)
        };
        let Some(least) = missing(SESSION_RESERVE) else { return };
        let mut summary = CallSummary::default();
        let step = missing(SESSION_RESERVE.saturating_add(SESSION_STEP)).unwrap_or(least);
        // There may be money for the least time only.
        let extended = match self.admit_time(step, &mut summary).await {
            Err(CallError::Refused(_)) => self.admit_time(least, &mut summary).await,
            extended => extended,
        };
        let Err(error) = extended else { return };
        if missing(SESSION_CHECK).is_none() {
            // There is time for another attempt.
            return;
        }
        let code = self.refuse(error, &Bytes::new(), summary, None).await;
        self.end(SocketEnd::Refused(code));
    }

    /// Admits a call for more time of the session.
    async fn admit_time(&self, micros: u64, summary: &mut CallSummary) -> Result<(), CallError> {
        let body = self.conversation.borrow().session(None, micros);
        let request = self.request(SocketCallKind::Session, body, None, true, summary)?;
        self.ahead.add_to_session(Box::pin(self.admit(request)).await?, micros);
        Ok(())
    }

    /// Holds the money for the calls that the provider may begin by itself, also when it has this message.
    ///
    /// # Errors
    /// The reason why the message may not be sent on.
    pub(super) async fn hold_ahead(
        &self,
        message: Option<&ClientMessage>,
        summary: &mut CallSummary,
    ) -> Result<(), CallError> {
        for kind in [AheadKind::Response, AheadKind::Transcription] {
            let Some(needed) = self.needed(kind, message) else { continue };
            if self.gateway.calls.is_draining() {
                return Err(CallError::ShuttingDown);
            }
            if !self.covers(&needed) {
                Box::pin(self.hold(needed, summary)).await?;
            }
        }
        Ok(())
    }

    /// The call of this kind that the provider may begin when it has a message.
    fn needed(&self, kind: AheadKind, message: Option<&ClientMessage>) -> Option<NeededCall> {
        let current = self.conversation.borrow();
        let changed =
            message.filter(|message| Conversation::is_changed_by(message)).map(|message| {
                let mut changed = current.clone();
                changed.sent(message);
                changed
            });
        let (conversation, until) = match (&changed, message) {
            (Some(changed), _) => (changed, changed.input()),
            (None, Some(message)) => (&*current, current.input_with(message)),
            (None, None) => (&*current, current.input()),
        };
        let is_needed = match kind {
            AheadKind::Response => conversation.begins_responses(),
            AheadKind::Transcription => conversation.transcribes(),
        };
        let body = |until| self.body(kind, conversation, conversation.transcriber(), until);
        is_needed.then(|| NeededCall {
            kind,
            now: body(until),
            later: body(until.plus(SocketInput::AHEAD)),
        })
    }

    /// The facts of a call of this kind, whose input is all that is sent `until` then.
    fn body(
        &self,
        kind: AheadKind,
        conversation: &Conversation,
        transcriber: Option<&str>,
        until: SocketInput,
    ) -> InspectedBody {
        match kind {
            AheadKind::Response => conversation.response(None, until, self.open_output()),
            AheadKind::Transcription => conversation.transcription(transcriber, until),
        }
    }

    fn covers(&self, needed: &NeededCall) -> bool {
        self.ahead.covers(needed.kind, &needed.now, self.endpoint_of(needed.kind.into()))
    }

    async fn hold(&self, needed: NeededCall, summary: &mut CallSummary) -> Result<(), CallError> {
        let _turn = self.ahead.turn.lock().await;
        if self.covers(&needed) {
            return Ok(());
        }
        let NeededCall { kind, later, .. } = needed;
        let mut admitted = self.admit_ahead(kind, later.clone(), summary).await;
        let mut before = None;
        if matches!(admitted, Err(CallError::Refused(_))) {
            // There may be room for one of them.
            before = self.ahead.take_back(kind).await;
            if before.is_some() {
                admitted = self.admit_ahead(kind, later, summary).await;
            }
        }
        match (admitted, before) {
            (Ok(ahead), _) => {
                self.ahead.replace(kind, ahead).await;
                Ok(())
            }
            (Err(error), before) => {
                // It is for input that was sent on.
                if let Some(before) = before {
                    let again = self.admit_ahead(kind, before, &mut CallSummary::default()).await;
                    if let Ok(again) = again {
                        self.ahead.replace(kind, again).await;
                    }
                }
                Err(error)
            }
        }
    }

    async fn admit_ahead(
        &self,
        kind: AheadKind,
        body: InspectedBody,
        summary: &mut CallSummary,
    ) -> Result<CallAhead<'a>, CallError> {
        let input = Some(self.conversation.borrow().input());
        let request = self.request(kind.into(), body.clone(), input, true, summary)?;
        Ok(CallAhead::new(self.admit(request).await?, body, self.endpoint_of(kind.into())))
    }

    /// Ends the socket because of a call that the provider has begun and that is not admitted. The provider is not read
    /// on, so that it stops.
    pub(super) fn end_without_payer(&self, error: CallError) {
        let (id, provider) = (self.guard.id, &self.endpoint.provider.name);
        let code = self.code(error);
        log::warn!("{id}: {provider} has begun a response that is not admitted: {code}");
        self.end(SocketEnd::NotAdmitted(code));
    }

    /// The call that the provider has begun by itself: the one that is admitted ahead, or a new one.
    ///
    /// # Errors
    /// The reason why the call is not admitted. It has no payer then.
    pub(super) async fn begun_by_provider(
        &self,
        kind: SocketCallKind,
    ) -> Result<OpenResponse<'a>, CallError> {
        let transcriber = match kind {
            SocketCallKind::Session | SocketCallKind::Response => None,
            SocketCallKind::Transcription => self.conversation.borrow_mut().ended_transcriber(),
        };
        let ahead = match kind {
            SocketCallKind::Session => None,
            SocketCallKind::Response => self.ahead.take(AheadKind::Response, None),
            SocketCallKind::Transcription => {
                self.ahead.take(AheadKind::Transcription, transcriber.as_deref())
            }
        };
        let mut call = match ahead {
            Some(mut call) => {
                // A transcription is settled at once.
                if kind == SocketCallKind::Response {
                    call.admitted.begin().await;
                }
                call
            }
            None => {
                // There was not enough time, or more began than the input was expected to make.
                let (body, input) = {
                    let conversation = self.conversation.borrow();
                    let input = conversation.input();
                    let body = match kind {
                        SocketCallKind::Session => conversation.session(None, SESSION_MICROS),
                        SocketCallKind::Response => {
                            conversation.response(None, input, self.open_output())
                        }
                        SocketCallKind::Transcription => {
                            conversation.transcription(transcriber.as_deref(), input)
                        }
                    };
                    (body, Some(input).filter(|_| kind != SocketCallKind::Session))
                };
                let mut summary = CallSummary::default();
                let request = self.request(kind, body, input, false, &mut summary)?;
                let (call, error) = self.admit_begun(request).await?;
                if let Some(error) = error {
                    self.end_without_payer(error);
                }
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
