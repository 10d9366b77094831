//! The task of a socket: its beginning, its end, and the settlement of its calls.
//!
//! Both directions run side by side in one task, so a call that is being admitted or settled delays no message of the
//! other direction. The message that ends a response passes when the response is settled.
//!
//! What admits or settles a call is boxed. It takes kilobytes, and most sockets are idle most of the time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollgate_domain::admission::Refusal;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::{PendingRecord, UsageSource};
use tollgate_provider::http::header::HeaderMap;
use tollgate_provider::{Endpoint, MessageEncoder, ProviderSocket, SocketMessage};
use tollgate_usage::socket::{ClientMessage, Conversation};
use tollgate_usage::{ResponseEnd, UsageReading};

use super::calls_ahead::CallsAhead;
use super::end::SocketEnd;
use super::open_responses::OpenResponse;
use super::opening::{SocketCall, SocketCaller};
use crate::admitted::MeteredAnswer;
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::metrics::ProviderMetrics;
use crate::open_sockets::SocketGuard;
use crate::outbound::CallSummary;
use crate::relay::{self, RelayReceiver, RelayRoom, RelaySender, RelayedHead};

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
/// The most responses of a socket whose tokens are remembered.
const MOST_REMEMBERED: usize = 1_000;
/// The time in which a client must take an error that it did not cause by a message.
const TAKES_WITHIN: Duration = Duration::from_secs(1);
/// The time in which a provider must take the close of a socket.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

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

/// A socket while messages pass.
pub(super) struct Session<'a, I> {
    pub(super) gateway: &'a Arc<Gateway>,
    interface: &'a I,
    pub(super) caller: SocketCaller,
    pub(super) endpoint: Arc<Endpoint>,
    /// The endpoint of its responses.
    pub(super) response_endpoint: Arc<Endpoint>,
    /// The endpoint of the transcriptions of its input.
    pub(super) transcription_endpoint: Arc<Endpoint>,
    pub(super) guard: SocketGuard,
    /// `None` after the end.
    to_client: RefCell<Option<RelaySender>>,
    client: RelayRoom,
    pub(super) conversation: RefCell<Conversation>,
    /// The open responses, in the order in which they were asked for.
    pub(super) open: RefCell<Vec<OpenResponse<'a>>>,
    pub(super) ahead: CallsAhead<'a>,
    /// The last call that was admitted.
    pub(super) last_call: RefCell<Option<Box<PendingRecord>>>,
    /// The tokens of the responses of this socket, as far as they are reported. The provider may keep a response for
    /// the socket alone.
    pub(super) ended: RefCell<HashMap<String, Option<u64>>>,
    pub(super) refusals: Cell<u32>,
    /// Until when the provider may begin a response because of input that was sent on.
    pub(super) may_begin_until: Cell<Option<Instant>>,
    /// Until when the transcription of input is waited for.
    pub(super) transcribed_until: Cell<Option<Instant>>,
    /// The reason for which it is closed as soon as its open responses have ended.
    pub(super) closing: Cell<Option<&'static str>>,
    /// Notified when `closing` is set.
    closes: Notify,
    pub(super) last_message: Cell<Instant>,
    pub(super) end: RefCell<Option<SocketEnd>>,
    /// Cancelled when `end` is set.
    pub(super) ending: CancellationToken,
    /// Whether a response has ended whose last message has not passed.
    pub(super) is_ending_one: Cell<bool>,
    /// Notified when the last message of a response has passed.
    pub(super) one_ended: Notify,
}

async fn run<I: SocketInterface, E>(
    socket: SocketCall,
    from_client: impl Stream<Item = Result<Bytes, E>> + Unpin,
    to_client: RelaySender,
    gateway: &Arc<Gateway>,
    interface: &I,
) {
    let SocketCall { guard, caller, endpoint, conversation, provider } = socket;
    let ProviderSocket { reader, mut writer, .. } = provider;
    let session = Session {
        gateway,
        interface,
        caller,
        response_endpoint: Arc::new(endpoint.of_responses()),
        transcription_endpoint: Arc::new(endpoint.of_transcriptions()),
        endpoint,
        guard,
        conversation: RefCell::new(conversation),
        ahead: CallsAhead::default(),
        last_call: RefCell::default(),
        client: to_client.room(),
        to_client: RefCell::new(Some(to_client)),
        open: RefCell::default(),
        ended: RefCell::default(),
        refusals: Cell::new(0),
        may_begin_until: Cell::new(None),
        transcribed_until: Cell::new(None),
        closing: Cell::new(None),
        closes: Notify::new(),
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
        session.keep_ahead(),
        session.close_when_ended(),
        session.watch(),
    );
    // A session that is settled needs what was held for it.
    Box::pin(session.settle_open()).await;
    Box::pin(session.ahead.take_back_all()).await;
    let end = session.end.take();
    if let Some(reason) = end.and_then(|end| end.to_provider()) {
        // A provider that does not take it has a connection that ends.
        let close = SocketMessage::Close(reason);
        let _ = tokio::time::timeout(CLOSE_WITHIN, writer.send(&close)).await;
    }
}

impl<'a, I: SocketInterface> Session<'a, I> {
    /// The code of an error.
    pub(super) fn code(&self, error: CallError) -> &'static str {
        self.interface.code(error)
    }

    pub(super) fn metrics(&self) -> &'a ProviderMetrics {
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
    pub(super) fn end(&self, end: SocketEnd) {
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

    pub(super) fn has_ended(&self) -> bool {
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

    /// Resolves when no response is open and none is about to begin, or the socket has ended.
    async fn all_ended(&self) {
        loop {
            let one_ended = self.one_ended.notified();
            // A session would last.
            let none_is_open =
                self.open.borrow().iter().all(|call| call.is_session) && !self.is_ending_one.get();
            let may_begin_until = self.may_begin_until();
            if (none_is_open && may_begin_until.is_none()) || self.has_ended() {
                return;
            }
            tokio::select! {
                () = one_ended => {}
                () = sleep_until(may_begin_until), if none_is_open => {}
                () = self.ending.cancelled() => return,
            }
        }
    }

    /// Until when a call may begin because of input that was sent on. `None` if that has passed.
    pub(super) fn may_begin_until(&self) -> Option<Instant> {
        let transcribed_until = self.transcribed_until.get();
        let transcribed_until =
            transcribed_until.filter(|_| self.conversation.borrow().is_transcribing());
        let until = self.may_begin_until.get().max(transcribed_until);
        until.filter(|until| *until > Instant::now())
    }

    pub(super) fn delayed_since(&self, read_at: Instant) {
        self.gateway.metrics.message_delay.observe(read_at.elapsed().as_secs_f64());
    }

    /// Sends a message to the client. It waits while too much waits for the client.
    pub(super) async fn send(&self, message: &SocketMessage) {
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

    /// Answers a message with an error, and closes the socket if the next one would be refused as well.
    /// `message` is what was read of it. Returns the code of the error.
    pub(super) async fn refuse(
        &self,
        error: CallError,
        text: &Bytes,
        summary: CallSummary,
        message: Option<&ClientMessage>,
    ) -> &'static str {
        let is_shutdown = matches!(error, CallError::ShuttingDown);
        let is_lasting = is_lasting(&error);
        self.gateway.metrics.messages_refused.inc();
        let refusal = self.interface.refused(error, text, summary);
        let told = {
            let conversation = self.conversation.borrow();
            conversation.error_message(refusal.status, &refusal.error, message)
        };
        let is_last = is_lasting || told.is_none();
        if let Some(told) = told {
            let told = SocketMessage::Text(told.into());
            match message {
                Some(_) => self.send(&told).await,
                // The client has sent nothing, and may take nothing: the end of the socket cannot wait for it.
                None => drop(tokio::time::timeout(TAKES_WITHIN, self.send(&told)).await),
            }
        }
        if is_shutdown {
            // The socket is closed when its open responses have ended.
            return refusal.code;
        }
        self.refusals.set(self.refusals.get().saturating_add(1));
        if is_last || self.refusals.get() >= MOST_REFUSALS {
            self.closing.set(self.closing.get().or(Some(refusal.code)));
            self.closes.notify_one();
        }
        refusal.code
    }

    /// Closes the socket when it is to be closed and its open responses have ended: those that are paid for are
    /// delivered.
    async fn close_when_ended(&self) {
        tokio::select! {
            () = self.ending.cancelled() => return,
            () = self.closes.notified() => {}
        }
        self.all_ended().await;
        if let Some(code) = self.closing.get() {
            self.end(SocketEnd::Refused(code));
        }
    }

    /// Settles a response. `error` is the message of an error that stands in its place.
    pub(super) async fn settle(
        &self,
        mut response: OpenResponse<'a>,
        status: u16,
        ended: ResponseEnd,
        error: Option<&[u8]>,
    ) {
        let is_session = response.is_session;
        if is_session {
            self.ahead.extend_session(&mut response);
        }
        let most_tokens = response.most_output().saturating_add(response.most_input());
        if error.is_some() {
            self.conversation.borrow_mut().refused(&response.message);
        }
        let passed = response.passed();
        let OpenResponse { admitted, outbound, mut meter, sent_at, timings, input, .. } = response;
        meter.passed(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX));
        admitted.metrics.answer.observe(sent_at.elapsed().as_secs_f64());
        let reading = match error {
            Some(error) => UsageReading::of_error(error),
            None => meter.finish(ended),
        };
        let id = reading.response_id.clone();
        let is_reported = reading.source == UsageSource::Reported;
        let reported = (reading.usage.input_tokens(), reading.usage.output_tokens());
        let reported = is_reported.then_some(reported);
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
        // One that was refused has no part in the conversation.
        if let Some(input) = input.filter(|_| error.is_none()) {
            self.conversation.borrow_mut().ended(reported, most_tokens, input);
        }
        if let Some(id) = id {
            self.remember(id, reported.map(|(input, output)| input.saturating_add(output)));
        }
        admitted.settle(report).await;
        if is_session {
            self.ahead.take_back_session().await;
        }
        // The next response has this one as its input.
        self.ahead.want();
    }

    /// Remembers the tokens of a response, for a later one that continues it.
    fn remember(&self, id: String, tokens: Option<u64>) {
        let mut ended = self.ended.borrow_mut();
        if ended.len() >= MOST_REMEMBERED {
            ended.clear();
        }
        ended.insert(id, tokens);
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

/// Never resolves without a deadline.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Whether the next call of the same kind is refused as well.
pub(super) fn is_lasting(error: &CallError) -> bool {
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
