//! The messages of the provider of a socket.

use std::time::Duration;

use tokio::time::Instant;
use tollgate_provider::{SocketMessage, SocketReader};
use tollgate_usage::ResponseEnd;
use tollgate_usage::socket::{ProviderFact, ProviderMessage};

use super::calls_ahead::SocketCallKind;
use super::end::SocketEnd;
use super::open_responses::owner_of;
use super::session::{Session, SocketInterface, sleep_until};
use crate::metrics::MessageSender;
use crate::settings::OnDisconnect;

/// The time within which input is transcribed.
const TRANSCRIBED_WITHIN: Duration = Duration::from_secs(5);

/// The time within which a session ends that is asked to.
const SESSION_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The time within which the usage of a response comes behind its end.
const USAGE_WITHIN: Duration = Duration::from_secs(5);

impl<I: SocketInterface> Session<'_, I> {
    /// Sends the messages of the provider on, until the socket ends or nothing more is read of it.
    pub(super) async fn relay_from_provider(&self, mut reader: SocketReader) {
        let (mut drain, mut usage_until) = (None, None);
        loop {
            if self.has_ended() && !self.may_drain(&mut drain) {
                return;
            }
            let deadline = drain.and_then(|drain: Drain| drain.until);
            let may_begin_until = self.may_begin_until().filter(|_| self.has_ended());
            let message = tokio::select! {
                biased;
                () = self.gateway.calls.cancelled(), if self.has_ended() => return,
                () = sleep_until(deadline) => return,
                () = sleep_until(may_begin_until), if may_begin_until.is_some() => continue,
                () = self.ending.cancelled(), if !self.has_ended() => continue,
                () = sleep_until(usage_until), if usage_until.is_some() => {
                    usage_until = None;
                    self.give_up_usage().await;
                    continue;
                }
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
            let mut waited = false;
            if let SocketMessage::Text(text) | SocketMessage::Binary(text) = &message {
                self.last_message.set(Instant::now());
                if let Some(drain) = &mut drain {
                    drain.bytes = drain.bytes.saturating_add(text.len());
                }
                waited = self.measure(text).await;
                usage_until = match self.conversation.borrow().waits_for_usage() {
                    true => usage_until.or_else(|| Instant::now().checked_add(USAGE_WITHIN)),
                    false => None,
                };
            }
            self.send(&message).await;
            match waited {
                true => self.tell_ended(),
                false => self.delayed_since(read_at),
            }
        }
    }

    /// Whether the provider is read on after the end, to learn the real usage of the open responses.
    fn may_drain(&self, drain: &mut Option<Drain>) -> bool {
        let settings = &self.gateway.settings;
        let leaves_provider = self.end.borrow().as_ref().is_some_and(SocketEnd::leaves_provider);
        let drain = drain.get_or_insert_with(|| {
            // A session is asked to close, and nothing is held for the time after that.
            let most = match self.session_passed() {
                Some(_) => settings.disconnect_drain_max.min(SESSION_ENDS_WITHIN),
                None => settings.disconnect_drain_max,
            };
            Drain { until: Instant::now().checked_add(most), bytes: 0 }
        });
        let most = usize::try_from(settings.disconnect_drain_max_bytes).unwrap_or(usize::MAX);
        leaves_provider
            && settings.on_disconnect == OnDisconnect::Drain
            && (self.open.borrow().iter().any(|response| response.is_sent)
                || self.may_begin_until().is_some())
            && drain.bytes <= most
    }

    /// Measures a message of the provider. Returns whether the message has waited for the database, because it begins or
    /// ends a call there.
    async fn measure(&self, text: &[u8]) -> bool {
        let messages = self.conversation.borrow_mut().provider_messages(text);
        let mut waited = false;
        for message in messages {
            waited |= match message.fact {
                ProviderFact::Settings => {
                    self.ahead.want();
                    false
                }
                ProviderFact::Transcribed => Box::pin(self.transcribed(text)).await,
                ProviderFact::Committed => {
                    self.transcribed_until.set(Instant::now().checked_add(TRANSCRIBED_WITHIN));
                    false
                }
                _ => {
                    if message.of_session {
                        // It may have lasted longer than is held.
                        self.ahead.want();
                    }
                    self.measure_response(message, text).await
                }
            };
        }
        waited
    }

    /// Measures a message about a response, as [`measure`](Self::measure).
    async fn measure_response(&self, message: ProviderMessage, text: &[u8]) -> bool {
        let mut owner = owner_of(&self.open.borrow(), &message);
        let is_unasked = owner.is_none() && self.makes(&message);
        if is_unasked {
            owner = Box::pin(self.begin_unasked(&message)).await;
        }
        let Some(at) = owner else { return false };
        let ProviderMessage { fact, response_id, is_apart, .. } = message;
        let has_begun = {
            let mut open = self.open.borrow_mut();
            let Some(response) = open.get_mut(at) else { return false };
            let is_instead = match fact {
                ProviderFact::Failed { .. } => !response.has_begun(),
                ProviderFact::Refused { .. } | ProviderFact::EndedBefore => true,
                _ => false,
            };
            if !is_instead {
                response.meter.message(self.conversation.borrow().event_of(text));
            }
            if fact == ProviderFact::Begun && !response.has_begun() {
                response.begun_at = Some(Instant::now());
                response.id = response_id;
                response.timings.first_byte_at = Some(self.gateway.clock.now());
                let waited = response.sent_at.elapsed().as_secs_f64();
                response.admitted.metrics.first_byte.observe(waited);
            }
            response.has_begun()
        };
        let mut ended = match fact {
            ProviderFact::Ended
            | ProviderFact::EndedBefore
            | ProviderFact::Failed { .. }
            | ProviderFact::Refused { .. } => self.open.borrow_mut().remove(at),
            _ => return is_unasked,
        };
        ended.input = ended.input.filter(|_| !is_apart);
        self.is_ending_one.set(true);
        let (status, error) = match fact {
            ProviderFact::Failed { status } if !has_begun => {
                (status.filter(|status| !(200..300).contains(status)).unwrap_or(400), Some(text))
            }
            ProviderFact::Refused { .. } => (400, Some(text)),
            _ => (200, None),
        };
        Box::pin(self.settle(ended, status, ResponseEnd::Complete, error)).await;
        true
    }

    /// Whether a message begins or ends a response that was not asked for.
    fn makes(&self, message: &ProviderMessage) -> bool {
        let is_known =
            message.response_id.as_ref().is_some_and(|id| self.ended.borrow().contains_key(id));
        let makes = match message.fact {
            ProviderFact::Begun => true,
            // The end of a session that is not open says nothing new.
            ProviderFact::Ended => !message.of_session,
            _ => false,
        };
        makes && !is_known
    }

    /// Opens a response that the provider has begun by itself, and returns its place. Its call was admitted ahead, or is
    /// admitted now. If it is not, the socket ends: the response has no payer.
    async fn begin_unasked(&self, message: &ProviderMessage) -> Option<usize> {
        let may_begin = !self.conversation.borrow().has_whole_bodies();
        let kind = match message.of_session {
            true => SocketCallKind::Session,
            false => SocketCallKind::Response,
        };
        let begun = match may_begin {
            true => self.begun_by_provider(kind).await,
            false => {
                self.end(SocketEnd::NotAskedFor);
                let (id, provider) = (self.guard.id, &self.endpoint.provider.name);
                log::warn!("{id}: {provider} makes a response that was not asked for");
                return None;
            }
        };
        match begun {
            Ok(mut begun) => {
                begun.message.lane.clone_from(&message.lane);
                let mut open = self.open.borrow_mut();
                open.push(begun);
                Some(open.len().saturating_sub(1))
            }
            Err(error) => {
                self.end_without_payer(error);
                None
            }
        }
    }

    /// Settles the call of a transcription.
    async fn transcribed(&self, text: &[u8]) -> bool {
        match self.begun_by_provider(SocketCallKind::Transcription).await {
            Ok(mut call) => {
                self.is_ending_one.set(true);
                call.input = None;
                call.meter.message(text);
                self.conversation.borrow_mut().transcribed();
                self.settle(call, 200, ResponseEnd::Complete, None).await;
                true
            }
            Err(error) => {
                self.end_without_payer(error);
                false
            }
        }
    }

    /// Settles the response whose usage does not come.
    async fn give_up_usage(&self) {
        self.conversation.borrow_mut().give_up_usage();
        let message = ProviderMessage::of(ProviderFact::EndedBefore);
        if self.measure_response(message, &[]).await {
            self.tell_ended();
        }
    }

    /// Notes that the last message of a response has passed.
    fn tell_ended(&self) {
        self.is_ending_one.set(false);
        self.one_ended.notify_waiters();
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
