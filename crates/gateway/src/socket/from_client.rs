//! The messages of the client of a socket.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::Instant;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::{Issue, RequestId};
use tollgate_provider::{CloseCode, MessageDecoder, SocketMessage, SocketWriter};
use tollgate_usage::socket::{ClientMessage, ClientRole, Conversation};

use super::calls_ahead::AheadKind;
use super::end::SocketEnd;
use super::session::{CLOSE_WITHIN, Session, SocketInterface};
use crate::error::{CallError, body_invalid};
use crate::metrics::MessageSender;
use crate::outbound::CallSummary;

/// The time within which a provider begins a response because of input.
const BEGINS_WITHIN: Duration = Duration::from_millis(500);

/// A message of the client, once it is taken.
enum TakenMessage {
    /// It is sent on.
    Free(SocketMessage),
    /// It is sent on, and its response is admitted.
    Admitted(SocketMessage, RequestId),
    /// It is not sent on.
    Refused,
}

impl<I: SocketInterface> Session<'_, I> {
    /// Sends the messages of the client on, until the socket ends. A session that is billed by its time is ended then.
    pub(super) async fn relay_from_client<E>(
        &self,
        from_client: impl Stream<Item = Result<Bytes, E>> + Unpin,
        writer: &mut SocketWriter,
    ) {
        self.relay_all_from_client(from_client, writer).await;
        let is_there = self.end.borrow().as_ref().is_some_and(|end| end.to_provider().is_some());
        if is_there && self.session_passed().is_some() {
            let farewell = SocketMessage::Text(Conversation::FAREWELL.into());
            // A provider that does not take it has a connection that ends.
            let _ = tokio::time::timeout(CLOSE_WITHIN, writer.send(&farewell)).await;
        }
    }

    async fn relay_all_from_client<E>(
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
            let (TakenMessage::Free(message) | TakenMessage::Admitted(message, _)) = &taken else {
                continue;
            };
            if self.has_ended() {
                // A response that was admitted meanwhile is settled as not sent.
                return;
            }
            if let TakenMessage::Admitted(_, id) = &taken {
                let mut open = self.open.borrow_mut();
                let mut admitted = open.iter_mut();
                let admitted = admitted.find(|one| one.admitted.pending.request_id == *id);
                admitted.into_iter().for_each(|admitted| admitted.is_sent = true);
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
        let takes_binary = self.conversation.borrow().takes_binary();
        let text = match &message {
            SocketMessage::Text(text) => text,
            SocketMessage::Binary(bytes) if takes_binary => bytes,
            SocketMessage::Binary(bytes) => {
                let issue = Issue::at([], "the message must be a text");
                let error = CallError::BodyInvalid(vec![issue]);
                self.refuse(error, bytes, CallSummary::default(), None).await;
                return TakenMessage::Refused;
            }
            _ => return TakenMessage::Free(message),
        };
        self.last_message.set(Instant::now());
        let read = self.conversation.borrow().client_message(text);
        let read = match read {
            Ok(read) => read,
            Err(issues) => {
                let unread = self.conversation.borrow().unread_message(text);
                let summary = CallSummary::default();
                self.refuse(body_invalid(issues), text, summary, Some(&unread)).await;
                return TakenMessage::Refused;
            }
        };
        let adds = read.role == ClientRole::Adds || Conversation::is_changed_by(&read);
        if self.closing.get().is_some() && (adds || read.role == ClientRole::Asks) {
            return TakenMessage::Refused;
        }
        let mut summary = CallSummary::default();
        let taken = match read.role {
            ClientRole::Asks => Box::pin(self.ask(text, &read, &mut summary)).await,
            _ if adds => {
                let held = self.hold_ahead(Some(&read), &mut summary).await;
                // Without money, settings may change so that less is needed: no input passes meanwhile.
                let is_harmless = read.role == ClientRole::Other && self.ahead.is_empty();
                match held {
                    Err(CallError::Refused(_) | CallError::PriceUnknown(_)) if is_harmless => {
                        Ok(TakenMessage::Free(message.clone()))
                    }
                    held => held.map(|()| TakenMessage::Free(message.clone())),
                }
            }
            _ => Ok(TakenMessage::Free(message.clone())),
        };
        match taken {
            Ok(taken) => {
                if read.role != ClientRole::Other {
                    self.refusals.set(0);
                }
                let mut conversation = self.conversation.borrow_mut();
                let may_begin = conversation.begins_responses() || conversation.transcribes();
                if read.role == ClientRole::Adds && may_begin {
                    self.may_begin_until.set(Instant::now().checked_add(BEGINS_WITHIN));
                }
                conversation.sent(&read);
                drop(conversation);
                taken
            }
            Err(error) => {
                self.refuse(error, text, summary, Some(&read)).await;
                TakenMessage::Refused
            }
        }
    }

    /// Admits the response that a message asks for.
    async fn ask(
        &self,
        text: &Bytes,
        message: &ClientMessage,
        summary: &mut CallSummary,
    ) -> Result<TakenMessage, CallError> {
        let mut asked = self.admit_asked(text, message, summary).await;
        if matches!(asked, Err(CallError::Refused(_))) && self.ahead.has_response() {
            // The one that is asked for goes first.
            self.ahead.take_back(AheadKind::Response).await;
            asked = self.admit_asked(text, message, summary).await;
        }
        let (body, asked) = asked?;
        let id = asked.admitted.pending.request_id;
        if message.begins_session
            && let Err(error) = Box::pin(self.hold_ahead(Some(message), summary)).await
        {
            // The provider may begin a response as soon as the session has begun.
            asked.admitted.settle(CallReport::not_sent(self.gateway.clock.now())).await;
            return Err(error);
        }
        self.open.borrow_mut().push(asked);
        // A response that the provider begins after it has it as its input. Without money for one, no more input passes.
        let _ = self.hold_ahead(Some(message), &mut CallSummary::default()).await;
        Ok(TakenMessage::Admitted(SocketMessage::Text(body), id))
    }
}
