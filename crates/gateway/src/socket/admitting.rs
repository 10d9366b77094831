//! The admission of the calls of a socket.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tollgate_domain::{CallTimings, admission};
use tollgate_provider::http::Method;
use tollgate_provider::{Endpoint, RequestBody};
use tollgate_usage::socket::{ClientMessage, SocketInput};
use tollgate_usage::{InspectedBody, ResponseMeter};

use super::calls_ahead::{SESSION_MICROS, SocketCallKind};
use super::open_responses::OpenResponse;
use super::opening::SocketCaller;
use super::session::Session;
use crate::admitted::{AdmittedCall, admit};
use crate::error::CallError;
use crate::in_flight::InFlightGuard;
use crate::inbound::InboundCall;
use crate::outbound::{CallSummary, OutboundCall};
use crate::price;
use crate::request::RequestHead;

/// The most responses of a socket that are open at once.
const MOST_OPEN: usize = 256;

/// A call of a socket, before its admission.
pub(super) struct SocketRequest {
    outbound: OutboundCall,
    in_flight: InFlightGuard,
    is_session: bool,
    /// Whether the provider may begin it by itself.
    ahead: bool,
    /// The input of the conversation that it may have.
    input: Option<SocketInput>,
}

impl<'a, I> Session<'a, I> {
    /// Admits the response that a message asks for. Returns the text that is sent to the provider.
    pub(super) async fn admit_asked(
        &self,
        text: &Bytes,
        message: &ClientMessage,
        summary: &mut CallSummary,
    ) -> Result<(Bytes, OpenResponse<'a>), CallError> {
        let began = Instant::now();
        let has_whole_bodies = self.conversation.borrow().has_whole_bodies();
        let (body, request) = match has_whole_bodies {
            true => self.request_of_body(text, summary).await?,
            false if message.begins_session => {
                let call_body = self.conversation.borrow().session(Some(message), SESSION_MICROS);
                let request =
                    self.request(SocketCallKind::Session, call_body, None, false, summary)?;
                (text.clone(), request)
            }
            false => {
                let (call_body, input) = {
                    let conversation = self.conversation.borrow();
                    let until = conversation.input_with(message);
                    let open = self.open_output();
                    (conversation.response(Some(message), until, open), until)
                };
                let input = Some(input).filter(|_| !message.is_apart);
                let kind = SocketCallKind::Response;
                (text.clone(), self.request(kind, call_body, input, false, summary)?)
            }
        };
        let admitted = self.admit(request).await?;
        self.gateway.metrics.before_provider.observe(began.elapsed().as_secs_f64());
        Ok((body, OpenResponse { message: message.clone(), ..admitted }))
    }

    /// The most tokens of the open responses, which are input of the next one.
    pub(super) fn open_output(&self) -> u64 {
        let open = self.open.borrow();
        let of_conversation = open.iter().filter(|response| response.input.is_some());
        of_conversation.map(OpenResponse::most_output).fold(0, u64::saturating_add)
    }

    /// The call that a message is the body of, and the text that is sent to the provider.
    async fn request_of_body(
        &self,
        text: &Bytes,
        summary: &mut CallSummary,
    ) -> Result<(Bytes, SocketRequest), CallError> {
        let SocketCaller { credential, owner, headers, metadata, .. } = &self.caller;
        let head = RequestHead { method: &Method::POST, path: "", query: "", headers };
        let inbound = InboundCall {
            in_flight: self.enter()?,
            credential: credential.clone(),
            owner: *owner,
            body: text.clone(),
            upload: None,
            began: Instant::now(),
        };
        let endpoint = Arc::clone(&self.endpoint);
        let mut outbound =
            OutboundCall::for_endpoint(&head, &inbound, endpoint, metadata.clone(), None)?;
        *summary = outbound.summary();
        let named = outbound.call_body.model.clone();
        if let Some(model) = &named
            && let Some(known) = self.caller.model_at(&self.endpoint, model, self.gateway)?
        {
            outbound.name_model(known, text);
        }
        let continued = outbound.call_body.previous_response_id.clone();
        let own = continued.and_then(|id| self.ended.borrow().get(&id).copied());
        if let Some(tokens) = own {
            outbound.call_body.previous_response_id = None;
            outbound.call_body.continue_from(tokens);
        }
        outbound.check_objects(&inbound, self.gateway).await?;
        let body = match std::mem::take(&mut outbound.body) {
            RequestBody::Bytes(body) => body,
            RequestBody::File(_) => Bytes::new(),
        };
        let InboundCall { in_flight, .. } = inbound;
        let request =
            SocketRequest { outbound, in_flight, is_session: false, ahead: false, input: None };
        Ok((body, request))
    }

    /// A call whose input is in earlier messages, `until` which it is counted.
    pub(super) fn request(
        &self,
        kind: SocketCallKind,
        call_body: InspectedBody,
        input: Option<SocketInput>,
        ahead: bool,
        summary: &mut CallSummary,
    ) -> Result<SocketRequest, CallError> {
        let SocketCaller { credential, headers, metadata, .. } = &self.caller;
        let in_flight = self.enter()?;
        let head = RequestHead { method: &Method::POST, path: "", query: "", headers };
        let endpoint = Arc::clone(self.endpoint_of(kind));
        let outbound =
            OutboundCall::of_body(&head, credential, endpoint, metadata.clone(), call_body)?;
        *summary = outbound.summary();
        let is_session = kind == SocketCallKind::Session;
        Ok(SocketRequest { outbound, in_flight, is_session, ahead, input })
    }

    pub(super) const fn endpoint_of(&self, kind: SocketCallKind) -> &Arc<Endpoint> {
        match kind {
            SocketCallKind::Session => &self.endpoint,
            SocketCallKind::Response => &self.response_endpoint,
            SocketCallKind::Transcription => &self.transcription_endpoint,
        }
    }

    /// Counts a call in. The number of sockets is limited, and so is that of the responses of each.
    fn enter(&self) -> Result<InFlightGuard, CallError> {
        match self.open.borrow().len() >= MOST_OPEN {
            true => Err(CallError::TooManyResponses),
            false => self.gateway.calls.enter(usize::MAX),
        }
    }

    /// Admits a call.
    pub(super) async fn admit(
        &self,
        request: SocketRequest,
    ) -> Result<OpenResponse<'a>, CallError> {
        let (request, admission) = self.prepare(request)?;
        let admitted = admit(admission, self.gateway, ()).await?;
        self.last_call.replace(Some(admitted.pending.clone()));
        Ok(self.open(request, admitted))
    }

    /// Admits a call that the provider has begun. If it cannot be admitted, it is made all the same, and the error is
    /// returned with it: [`AdmittedCall::without_admission`] says who pays.
    pub(super) async fn admit_begun(
        &self,
        request: SocketRequest,
    ) -> Result<(OpenResponse<'a>, Option<CallError>), CallError> {
        let (request, admission) = self.prepare(request)?;
        let call = admission.clone();
        let (admitted, error) = match admit(admission, self.gateway, ()).await {
            Ok(admitted) => (admitted, None),
            Err(error) => {
                let earlier = self.last_call.borrow();
                let Some(earlier) = earlier.as_deref() else { return Err(error) };
                let is_refused = matches!(error, CallError::Refused(_));
                let made =
                    AdmittedCall::without_admission(&call, earlier, is_refused, self.gateway);
                (made, Some(error))
            }
        };
        Ok((self.open(request, admitted), error))
    }

    fn prepare(
        &self,
        mut request: SocketRequest,
    ) -> Result<(SocketRequest, Box<admission::Call>), CallError> {
        let SocketCaller { credential, owner, .. } = &self.caller;
        let outbound = &mut request.outbound;
        outbound.socket_id = Some(self.guard.id);
        let mut admission = price::prepare_admission(*owner, credential, outbound, self.gateway)?;
        admission.ahead = request.ahead;
        Ok((request, admission))
    }

    fn open(&self, request: SocketRequest, admitted: AdmittedCall<'a, ()>) -> OpenResponse<'a> {
        let SocketRequest { outbound, in_flight, is_session, input, .. } = request;
        let meter = ResponseMeter::of_socket(&outbound.endpoint.format, &outbound.call_body);
        let sent_at = Some(self.gateway.clock.now());
        OpenResponse {
            message: ClientMessage::default(),
            admitted,
            is_session,
            outbound,
            meter,
            _in_flight: in_flight,
            input,
            is_sent: false,
            id: None,
            begun_at: None,
            sent_at: Instant::now(),
            timings: CallTimings { sent_at, ..CallTimings::default() },
        }
    }
}
