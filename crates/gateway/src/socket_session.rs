//! The messages of a socket, in both directions. Each response on it is a call, from its admission to its settlement.
//!
//! Both directions run side by side in one task, so a response that is being admitted or settled delays no message of
//! the other direction. The message that ends a response passes when the response is settled.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollgate_domain::admission::Refusal;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::{CallTimings, Issue, UsageSource};
use tollgate_provider::http::Method;
use tollgate_provider::http::header::HeaderMap;
use tollgate_provider::{
    CloseCode, Endpoint, MessageDecoder, MessageEncoder, ProviderSocket, RequestBody,
    SocketMessage, SocketReader, SocketWriter,
};
use tollgate_usage::socket::{ClientMessage, Lane, ProviderFact, ProviderMessage, error_message};
use tollgate_usage::{ResponseEnd, ResponseMeter, UsageReading};

use crate::admitted::{MeteredAnswer, admit};
use crate::error::{CallError, body_invalid};
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::metrics::{MessageSender, ProviderMetrics};
use crate::open_responses::{OpenResponse, owner_of};
use crate::open_sockets::SocketGuard;
use crate::outbound::{CallSummary, OutboundCall};
use crate::price;
use crate::relay::{self, RelayReceiver, RelayRoom, RelaySender, RelayedHead};
use crate::request::RequestHead;
use crate::settings::OnDisconnect;
use crate::socket::{SocketCall, SocketCaller};
use crate::socket_end::SocketEnd;

/// The interface of the server to the refusals of a socket.
pub trait SocketInterface {
    /// Keeps the refusal of a response whose message is `text`, and returns its words.
    fn refused(&self, error: CallError, text: &Bytes, summary: CallSummary) -> SocketRefusal;

    /// The code of an error.
    fn code(&self, error: CallError) -> &'static str;
}

/// The words of a refusal.
pub struct SocketRefusal {
    /// The code of the error.
    pub code: &'static str,
    /// The HTTP status of the error.
    pub status: u16,
    /// The error, as a JSON object.
    pub error: Box<RawValue>,
}

/// The refusals one after another at which a socket is closed.
const MOST_REFUSALS: u32 = 3;
/// The most responses of a socket that are open at once.
const MOST_OPEN: usize = 256;
/// The most responses of a socket whose tokens are remembered.
const MOST_REMEMBERED: usize = 1_000;
/// The time in which a provider must take the close of a socket.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Starts the task of a socket on this thread, and returns the end from which the bytes to its client are relayed.
/// `from_client` are the bytes that come from the client.
///
/// It must be called within a `LocalSet` of tokio, such as a worker of actix.
pub fn spawn_socket<E>(
    socket: SocketCall,
    from_client: impl Stream<Item = Result<Bytes, E>> + Unpin + 'static,
    gateway: &Arc<Gateway>,
    interface: impl SocketInterface + 'static,
) -> RelayReceiver {
    let (to_client, from_socket) = relay::channel();
    let gateway = Arc::clone(gateway);
    let task = async move { run(socket, from_client, to_client, &gateway, &interface).await };
    tokio::task::spawn_local(Box::pin(task));
    from_socket
}

/// A message of the client, once it is taken.
enum TakenMessage {
    /// A ping or pong, which is sent on.
    Free(SocketMessage),
    /// It is sent on, and its response is admitted.
    Admitted(SocketMessage),
    /// It is not sent on.
    Refused,
}

/// A socket while messages pass.
struct Session<'a, I> {
    gateway: &'a Arc<Gateway>,
    interface: &'a I,
    caller: SocketCaller,
    endpoint: Arc<Endpoint>,
    guard: SocketGuard,
    /// `None` after the end.
    to_client: RefCell<Option<RelaySender>>,
    client: RelayRoom,
    /// The open responses, in the order in which they were asked for.
    open: RefCell<Vec<OpenResponse<'a>>>,
    /// The tokens of the responses of this socket, as far as they are reported. The provider may keep a response for
    /// the socket alone.
    ended: RefCell<HashMap<String, Option<u64>>>,
    refusals: Cell<u32>,
    last_message: Cell<Instant>,
    end: RefCell<Option<SocketEnd>>,
    /// Cancelled when `end` is set.
    ending: CancellationToken,
    /// Whether a response has ended whose last message has not passed.
    is_ending_one: Cell<bool>,
    /// Notified when the last message of a response has passed.
    one_ended: Notify,
}

async fn run<I: SocketInterface, E>(
    socket: SocketCall,
    from_client: impl Stream<Item = Result<Bytes, E>> + Unpin,
    to_client: RelaySender,
    gateway: &Arc<Gateway>,
    interface: &I,
) {
    let SocketCall { guard, caller, endpoint, provider } = socket;
    let ProviderSocket { reader, mut writer, .. } = provider;
    let session = Session {
        gateway,
        interface,
        caller,
        endpoint,
        guard,
        client: to_client.room(),
        to_client: RefCell::new(Some(to_client)),
        open: RefCell::default(),
        ended: RefCell::default(),
        refusals: Cell::new(0),
        last_message: Cell::new(Instant::now()),
        end: RefCell::default(),
        ending: CancellationToken::new(),
        is_ending_one: Cell::new(false),
        one_ended: Notify::new(),
    };
    session.metrics().sockets_opened.inc();
    session.begin();
    tokio::join!(
        session.relay_from_client(from_client, &mut writer),
        session.relay_from_provider(reader),
        session.watch(),
    );
    session.settle_open().await;
    let end = session.end.take();
    if let Some(reason) = end.and_then(|end| end.to_provider()) {
        // A provider that does not take it has a connection that ends.
        let close = SocketMessage::Close(reason);
        let _ = tokio::time::timeout(CLOSE_WITHIN, writer.send(&close)).await;
    }
}

impl<'a, I: SocketInterface> Session<'a, I> {
    fn metrics(&self) -> &'a ProviderMetrics {
        self.gateway.metrics.of(&self.endpoint.provider.name)
    }

    /// Sends the head of the answer, which the server completes.
    fn begin(&self) {
        let head = RelayedHead {
            status: 101,
            headers: HeaderMap::new(),
            length: None,
            has_trailers: false,
        };
        if let Some(to_client) = &mut *self.to_client.borrow_mut() {
            // A client that has left is noticed by `watch`.
            let _ = to_client.send_head(head);
        }
    }

    /// Ends the socket. The first reason counts.
    fn end(&self, end: SocketEnd) {
        if self.end.borrow().is_some() {
            return;
        }
        if let Some(mut to_client) = self.to_client.take() {
            if let Some(reason) = end.to_client() {
                let frame = MessageEncoder::to_client().frame(&SocketMessage::Close(reason));
                // A client that has left needs none.
                let _ = to_client.send_piece(frame);
            }
            to_client.end(true, HeaderMap::new());
        }
        *self.end.borrow_mut() = Some(end);
        self.ending.cancel();
    }

    fn has_ended(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Ends the socket when its key, its time or this service does.
    async fn watch(&self) {
        let limits = self.gateway.settings.sockets;
        let max = tokio::time::sleep(limits.max);
        let end = tokio::select! {
            () = self.ending.cancelled() => return,
            why = self.guard.revoked() => SocketEnd::Refused(self.interface.code(why.into())),
            () = self.client.wait_until_left() => SocketEnd::Client(None),
            () = max => SocketEnd::TooLong,
            () = self.idle(limits.idle) => SocketEnd::Idle,
            () = self.drained() => SocketEnd::ShuttingDown,
        };
        self.end(end);
    }

    /// Resolves when no message has come for this time.
    async fn idle(&self, most: Duration) {
        loop {
            let Some(until) = self.last_message.get().checked_add(most) else {
                return std::future::pending().await;
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Resolves when this service shuts down and no response is open, or none may be open any more.
    async fn drained(&self) {
        self.gateway.calls.drain_begun().await;
        tokio::select! {
            () = self.all_ended() => {}
            () = self.gateway.calls.cancelled() => {}
        }
    }

    /// Resolves when no response is open, or the socket has ended.
    async fn all_ended(&self) {
        loop {
            let one_ended = self.one_ended.notified();
            let none_is_open = self.open.borrow().is_empty() && !self.is_ending_one.get();
            if none_is_open || self.has_ended() {
                return;
            }
            tokio::select! {
                () = one_ended => {}
                () = self.ending.cancelled() => return,
            }
        }
    }

    fn delayed_since(&self, read_at: Instant) {
        self.gateway.metrics.message_delay.observe(read_at.elapsed().as_secs_f64());
    }

    /// Sends a message to the client. It waits while too much waits for the client.
    async fn send(&self, message: &SocketMessage) {
        tokio::select! {
            biased;
            () = self.ending.cancelled() => return,
            () = self.client.wait() => {}
        }
        if let Some(to_client) = &mut *self.to_client.borrow_mut() {
            // A client that has left is noticed by `watch`.
            let _ = to_client.send_piece(MessageEncoder::to_client().frame(message));
        }
    }

    async fn relay_from_client<E>(
        &self,
        mut from_client: impl Stream<Item = Result<Bytes, E>> + Unpin,
        writer: &mut SocketWriter,
    ) {
        let limit = self.gateway.settings.sockets.message_bytes;
        let mut decoder = MessageDecoder::of_client(limit);
        while let Some(message) = self.next_from_client(&mut from_client, &mut decoder).await {
            let read_at = Instant::now();
            self.metrics().message(MessageSender::Client, message.len());
            let taken = self.take(message).await;
            let (TakenMessage::Free(message) | TakenMessage::Admitted(message)) = &taken else {
                continue;
            };
            if self.has_ended() {
                // A response that was admitted meanwhile is settled as not sent.
                return;
            }
            if matches!(taken, TakenMessage::Admitted(_))
                && let Some(admitted) = self.open.borrow_mut().last_mut()
            {
                admitted.is_sent = true;
            }
            let sent = tokio::select! {
                biased;
                sent = writer.send(message) => sent,
                () = self.ending.cancelled() => return,
            };
            match (sent, &taken) {
                (Err(fault), _) => return self.end(SocketEnd::ProviderFault(fault)),
                (Ok(()), TakenMessage::Free(_)) => self.delayed_since(read_at),
                (Ok(()), _) => {}
            }
        }
    }

    /// The next message of the client. `None` when the socket has ended, also by this message.
    async fn next_from_client<E>(
        &self,
        from_client: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
        decoder: &mut MessageDecoder,
    ) -> Option<SocketMessage> {
        let end = loop {
            match decoder.next_message() {
                Ok(Some(SocketMessage::Close(reason))) => {
                    // A close without a code is answered by one.
                    let reason = reason.unwrap_or_else(|| CloseCode::Normal.into());
                    break SocketEnd::Client(Some(reason));
                }
                Ok(Some(message)) => return Some(message),
                Err(fault) => break SocketEnd::ClientFault(fault),
                Ok(None) => {}
            }
            let piece = tokio::select! {
                biased;
                () = self.ending.cancelled() => return None,
                piece = from_client.next() => piece,
            };
            match piece {
                Some(Ok(piece)) => decoder.feed(&piece),
                Some(Err(_)) | None => break SocketEnd::Client(None),
            }
        };
        self.end(end);
        None
    }

    /// Takes a message of the client: admits the call that it asks for, or answers it with an error.
    async fn take(&self, message: SocketMessage) -> TakenMessage {
        let text = match message {
            SocketMessage::Text(text) => text,
            SocketMessage::Binary(bytes) => {
                let issue = Issue::at([], "the message must be a text");
                let error = CallError::BodyInvalid(vec![issue]);
                self.refuse(error, &bytes, CallSummary::default(), &None).await;
                return TakenMessage::Refused;
            }
            control => return TakenMessage::Free(control),
        };
        self.last_message.set(Instant::now());
        let mut summary = CallSummary::default();
        let (error, lane) = match ClientMessage::read(&text) {
            Ok(ClientMessage { lane }) => match self.admit(&text, &lane, &mut summary).await {
                Ok(body) => {
                    self.refusals.set(0);
                    return TakenMessage::Admitted(SocketMessage::Text(body));
                }
                Err(error) => (error, lane),
            },
            Err(issues) => (body_invalid(issues), None),
        };
        self.refuse(error, &text, summary, &lane).await;
        TakenMessage::Refused
    }

    /// Admits the call that a message asks for, and returns the text that is sent to the provider.
    async fn admit(
        &self,
        text: &Bytes,
        lane: &Lane,
        summary: &mut CallSummary,
    ) -> Result<Bytes, CallError> {
        let SocketCaller { credential, owner, headers, metadata, .. } = &self.caller;
        if self.open.borrow().len() >= MOST_OPEN {
            return Err(CallError::TooManyResponses);
        }
        // The number of sockets is limited, and so is that of the responses of each.
        let in_flight = self.gateway.calls.enter(usize::MAX)?;
        let head = RequestHead { method: &Method::POST, path: "", query: "", headers };
        let inbound = InboundCall {
            in_flight,
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
        outbound.socket_id = Some(self.guard.id);
        let continued = outbound.call_body.previous_response_id.clone();
        let own = continued.and_then(|id| self.ended.borrow().get(&id).copied());
        if let Some(tokens) = own {
            outbound.call_body.previous_response_id = None;
            outbound.call_body.continue_from(tokens);
        }
        outbound.check_objects(&inbound, self.gateway).await?;
        let admission = price::prepare_admission(*owner, credential, &outbound, self.gateway)?;
        let admitted = admit(admission, self.gateway, ()).await?;
        let body = match std::mem::take(&mut outbound.body) {
            RequestBody::Bytes(body) => body,
            RequestBody::File(_) => Bytes::new(),
        };
        self.gateway.metrics.before_provider.observe(inbound.began.elapsed().as_secs_f64());
        let meter = ResponseMeter::of_socket(&self.endpoint.format, &outbound.call_body);
        let sent_at = Some(self.gateway.clock.now());
        self.open.borrow_mut().push(OpenResponse {
            lane: lane.clone(),
            admitted,
            outbound,
            meter,
            _in_flight: inbound.in_flight,
            is_sent: false,
            id: None,
            has_begun: false,
            sent_at: Instant::now(),
            timings: CallTimings { sent_at, ..CallTimings::default() },
        });
        Ok(body)
    }

    /// Answers a message with an error, and closes the socket if the next one would be refused as well.
    async fn refuse(&self, error: CallError, text: &Bytes, summary: CallSummary, lane: &Lane) {
        let is_lasting = is_lasting(&error);
        self.gateway.metrics.messages_refused.inc();
        let refusal = self.interface.refused(error, text, summary);
        let text = error_message(refusal.status, &refusal.error, lane);
        self.send(&SocketMessage::Text(text.into())).await;
        self.refusals.set(self.refusals.get().saturating_add(1));
        if is_lasting || self.refusals.get() >= MOST_REFUSALS {
            // Responses that are paid for are delivered.
            self.all_ended().await;
            self.end(SocketEnd::Refused(refusal.code));
        }
    }

    async fn relay_from_provider(&self, mut reader: SocketReader) {
        let mut drain = None;
        loop {
            if self.has_ended() && !self.may_drain(&mut drain) {
                return;
            }
            let deadline = drain.and_then(|drain: Drain| drain.until);
            let message = tokio::select! {
                biased;
                () = self.gateway.calls.cancelled(), if self.has_ended() => return,
                () = sleep_until(deadline) => return,
                () = self.ending.cancelled(), if !self.has_ended() => continue,
                message = reader.next() => message,
            };
            let read_at = Instant::now();
            self.metrics().masked(reader.take_masked());
            let message = match message {
                Ok(SocketMessage::Close(reason)) => return self.end(SocketEnd::Provider(reason)),
                Ok(message) => message,
                Err(fault) => return self.end(SocketEnd::ProviderFault(fault)),
            };
            self.metrics().message(MessageSender::Provider, message.len());
            let mut waits = false;
            if let SocketMessage::Text(text) | SocketMessage::Binary(text) = &message {
                self.last_message.set(Instant::now());
                if let Some(drain) = &mut drain {
                    drain.bytes = drain.bytes.saturating_add(text.len());
                }
                waits = self.measure(text).await;
            }
            self.send(&message).await;
            match waits {
                true => {
                    self.is_ending_one.set(false);
                    self.one_ended.notify_waiters();
                }
                false => self.delayed_since(read_at),
            }
        }
    }

    /// Whether the provider is read on after the end, to learn the real usage of the open responses.
    fn may_drain(&self, drain: &mut Option<Drain>) -> bool {
        let settings = &self.gateway.settings;
        let leaves_provider = self.end.borrow().as_ref().is_some_and(SocketEnd::leaves_provider);
        let drain = drain.get_or_insert_with(|| Drain {
            until: Instant::now().checked_add(settings.disconnect_drain_max),
            bytes: 0,
        });
        let most = usize::try_from(settings.disconnect_drain_max_bytes).unwrap_or(usize::MAX);
        leaves_provider
            && settings.on_disconnect == OnDisconnect::Drain
            && self.open.borrow().iter().any(|response| response.is_sent)
            && drain.bytes <= most
    }

    /// Measures a message of the provider. If it ends a response, that is settled, and the answer is true.
    async fn measure(&self, text: &[u8]) -> bool {
        let message = ProviderMessage::read(text);
        let owner = owner_of(&self.open.borrow(), &message);
        let Some(at) = owner else {
            self.check_unowned(&message);
            return false;
        };
        let ended = {
            let mut open = self.open.borrow_mut();
            let Some(response) = open.get_mut(at) else { return false };
            let is_rejected =
                matches!(message.fact, ProviderFact::Failed { .. }) && !response.has_begun;
            if !is_rejected {
                response.meter.message(text);
            }
            if message.fact == ProviderFact::Begun && !response.has_begun {
                response.has_begun = true;
                response.id = message.response_id;
                response.timings.first_byte_at = Some(self.gateway.clock.now());
                let waited = response.sent_at.elapsed().as_secs_f64();
                response.admitted.metrics.first_byte.observe(waited);
            }
            match message.fact {
                ProviderFact::Ended | ProviderFact::Failed { .. } => open.remove(at),
                ProviderFact::Begun | ProviderFact::Other => return false,
            }
        };
        self.is_ending_one.set(true);
        match message.fact {
            ProviderFact::Failed { status } if !ended.has_begun => {
                let status = status.filter(|status| !(200..300).contains(status)).unwrap_or(400);
                self.settle(ended, status, ResponseEnd::Complete, Some(text)).await;
            }
            _ => self.settle(ended, 200, ResponseEnd::Complete, None).await,
        }
        true
    }

    /// Ends the socket if a response begins or ends that was not asked for: its cost would have no payer.
    fn check_unowned(&self, message: &ProviderMessage) {
        let is_known =
            message.response_id.as_ref().is_some_and(|id| self.ended.borrow().contains_key(id));
        if matches!(message.fact, ProviderFact::Begun | ProviderFact::Ended) && !is_known {
            let (id, provider) = (self.guard.id, &self.endpoint.provider.name);
            log::warn!("{id}: {provider} makes a response that was not asked for");
            self.end(SocketEnd::NotAskedFor);
        }
    }

    /// Settles a response. `error` is the message of an error that stands in its place.
    async fn settle(
        &self,
        response: OpenResponse<'a>,
        status: u16,
        ended: ResponseEnd,
        error: Option<&[u8]>,
    ) {
        let OpenResponse { admitted, outbound, meter, sent_at, timings, .. } = response;
        admitted.metrics.answer.observe(sent_at.elapsed().as_secs_f64());
        let reading = match error {
            Some(error) => UsageReading::of_error(error),
            None => meter.finish(ended),
        };
        let id = reading.response_id.clone();
        let answer = MeteredAnswer {
            status,
            ended,
            reading,
            job: None,
            objects: Vec::new(),
            provider_request_id: None,
            timings,
        };
        let report = admitted.report(answer, &outbound, self.gateway);
        if let Some(id) = id {
            self.remember(id, &report);
        }
        admitted.settle(report).await;
    }

    /// Remembers the tokens of a response, for a later one that continues it.
    fn remember(&self, id: String, report: &CallReport) {
        let used = &report.priced;
        let is_reported = used.usage_source == UsageSource::Reported;
        let tokens = used.usage.input_tokens().saturating_add(used.usage.output_tokens());
        let mut ended = self.ended.borrow_mut();
        if ended.len() >= MOST_REMEMBERED {
            ended.clear();
        }
        ended.insert(id, is_reported.then_some(tokens));
    }

    /// Settles the responses that are open at the end.
    async fn settle_open(&self) {
        let (sent, unsent): (Vec<_>, Vec<_>) =
            self.open.take().into_iter().partition(|response| response.is_sent);
        for OpenResponse { admitted, .. } in unsent {
            admitted.settle(CallReport::not_sent(self.gateway.clock.now())).await;
        }
        let ended = match &*self.end.borrow() {
            Some(end) if !end.leaves_provider() => ResponseEnd::Broken,
            _ => ResponseEnd::Left,
        };
        let settled = sent.into_iter().map(|response| self.settle(response, 200, ended, None));
        futures_util::future::join_all(settled).await;
    }
}

/// The reading of a provider after the end of its socket.
#[derive(Clone, Copy)]
struct Drain {
    /// When it stops; `None` for never.
    until: Option<Instant>,
    /// The bytes that were read.
    bytes: usize,
}

/// Never resolves without a deadline.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Whether the next call of the same kind is refused as well.
fn is_lasting(error: &CallError) -> bool {
    let CallError::Refused(refusal) = error else { return false };
    match refusal {
        Refusal::KeyInvalid
        | Refusal::ConnectionDisabled
        | Refusal::ConnectionSuspended
        | Refusal::SpendKeyPaused
        | Refusal::SpendKeyExpired { .. }
        | Refusal::BudgetPaused { .. }
        | Refusal::RequestLimitReached { .. } => true,
        Refusal::SpendLimitReached { shortage, .. }
        | Refusal::WalletInsufficient { shortage, .. } => {
            !shortage.left.saturating_add(shortage.held).is_positive()
        }
        _ => false,
    }
}
