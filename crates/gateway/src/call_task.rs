//! A call from its admission to its settlement: a task that is not dropped with its client.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::time::Instant;
use tollgate_domain::admission;
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    AnswerReport, CallCost, CallDetails, CallFailure, CallTimings, JobId, JobObserver, RequestId,
};
use tollgate_provider::http::header::{CONTENT_LENGTH, HeaderMap};
use tollgate_provider::{
    AnswerHeaders, BodyError, ProviderClient, SendError, UpstreamRequest, UpstreamResponse,
    response_headers,
};
use tollgate_store::jobs::OpenJob;
use tollgate_store::{Conn, StoreError, provider_objects};
use tollgate_usage::dialect::ObjectRole;
use tollgate_usage::{MemoryReservation, ResponseEnd, ResponseMeter, UsageReading};

use crate::admitted::{self, AdmittedCall, MeteredAnswer};
use crate::cost_report::{CostComment, ReportPlace, cost_headers};
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::in_flight::InFlightGuard;
use crate::inbound::InboundCall;
use crate::job::{self, JobBeginning, JobOutcome};
use crate::observer::CallObserver;
use crate::outbound::OutboundCall;
use crate::relay::{ClientLeft, RelayReceiver, RelaySender, RelayedHead, request_id_header};
use crate::settings::OnDisconnect;
use crate::{batch, poller, price, relay};

/// Starts the task of a call on this thread, and returns the end from which its answer is relayed.
///
/// It must be called within a `LocalSet` of tokio, such as a worker of actix.
///
/// # Errors
/// The reason why the call may not go out.
pub fn spawn_call(
    inbound: InboundCall,
    outbound: OutboundCall,
    gateway: &Arc<Gateway>,
    client: &Arc<ProviderClient>,
    observer: impl CallObserver + 'static,
) -> Result<RelayReceiver, CallError> {
    let admission =
        price::prepare_admission(inbound.owner, &inbound.credential, &outbound, gateway)?;
    let (to_client, from_call) = relay::channel();
    let InboundCall { in_flight, began, .. } = inbound;
    let (gateway, client) = (Arc::clone(gateway), Arc::clone(client));
    let call = CallTask { gateway, client, outbound, admission, in_flight, observer, began };
    // Boxed, because it is moved several times before it runs.
    tokio::task::spawn_local(Box::pin(call.run(to_client)));
    Ok(from_call)
}

/// The task of a call, from its admission to its settlement.
struct CallTask<O> {
    gateway: Arc<Gateway>,
    client: Arc<ProviderClient>,
    outbound: OutboundCall,
    admission: Box<admission::Call>,
    in_flight: InFlightGuard,
    observer: O,
    /// The time of its arrival, moved by the time that its body took, which is not the gateway's.
    began: Instant,
}

impl<O: CallObserver> CallTask<O> {
    /// Admits, sends, relays and settles the call.
    async fn run(self, mut to_client: RelaySender) {
        let Self { gateway, client, mut outbound, admission, in_flight, observer, began } = self;
        let admitted = match admitted::admit(admission, &gateway, observer).await {
            Ok(admitted) => admitted,
            Err(refused) => return to_client.refuse(refused),
        };
        if in_flight.is_cancelled() {
            let request_id = admitted.pending.request_id;
            let cost = admitted.settle(CallReport::not_sent(gateway.clock.now())).await;
            return to_client.refuse(CallError::NotSent { request_id, cost });
        }
        let headers = std::mem::take(&mut outbound.headers);
        let body = std::mem::take(&mut outbound.body);
        let method = outbound.endpoint.method.clone();
        let managed = outbound.managed;
        let outgoing =
            UpstreamRequest { endpoint: &outbound.endpoint, method, headers, body, managed };
        let sent_at = Instant::now();
        let timings = CallTimings { sent_at: Some(gateway.clock.now()), ..CallTimings::default() };
        gateway
            .metrics
            .before_provider
            .observe(sent_at.saturating_duration_since(began).as_secs_f64());
        let sent = tokio::select! {
            biased;
            sent = client.send(outgoing) => sent,
            () = in_flight.cancelled() => Err(SendError::NoAnswer { timed_out: false }),
        };
        match sent {
            Ok(incoming) => {
                admitted.metrics.first_byte.observe(sent_at.elapsed().as_secs_f64());
                let timings = CallTimings { first_byte_at: Some(gateway.clock.now()), ..timings };
                let sent = SentCall { admitted, in_flight, sent_at, timings };
                let answer = RelayedResponse::new(&gateway, &client, &outbound, sent, incoming);
                answer.relay(to_client).await;
            }
            Err(why) => end_unanswered(&gateway, admitted, timings, why, to_client).await,
        }
    }
}

/// Ends a call that got no answer.
async fn end_unanswered(
    gateway: &Gateway,
    admitted: AdmittedCall<'_, impl CallObserver>,
    timings: CallTimings,
    why: SendError,
    mut to_client: RelaySender,
) {
    let request_id = admitted.pending.request_id;
    log::warn!("{request_id}: {}: {why}", admitted.pending.forwarded.provider);
    let now = gateway.clock.now();
    let report = match why {
        SendError::NotSent(_) => CallReport::not_sent(now),
        SendError::NoAnswer { timed_out } => {
            let message = "The provider took the call and did not answer in time.";
            let failure = timed_out.then(|| CallFailure::of_service("provider_timeout", message));
            let details = CallDetails { failure, timings, ..CallDetails::default() };
            let report = CallReport::unknown(&admitted.pending, Ending::Unanswered, now);
            CallReport { details, ..report }
        }
    };
    let cost = admitted.settle(report).await;
    to_client.refuse(match why {
        SendError::NotSent(_) => CallError::NotSent { request_id, cost },
        SendError::NoAnswer { timed_out } => CallError::NoAnswer { request_id, cost, timed_out },
    });
}

/// A call that was sent to its provider.
struct SentCall<'a, O: CallObserver> {
    admitted: AdmittedCall<'a, O>,
    in_flight: InFlightGuard,
    sent_at: Instant,
    timings: CallTimings,
}

/// A provider's answer that is being relayed to the client.
struct RelayedResponse<'a, O: CallObserver> {
    gateway: &'a Arc<Gateway>,
    client: &'a Arc<ProviderClient>,
    outbound: &'a OutboundCall,
    /// The call and its meter until the settlement, which may be before the provider's last byte.
    unsettled: Option<(AdmittedCall<'a, O>, ResponseMeter)>,
    /// When the provider was called.
    sent_at: Instant,
    timings: CallTimings,
    /// The provider's id of the request.
    provider_request_id: Option<String>,
    /// When the provider's answer ended; `None` again once the client may have all of it.
    ended: Option<Instant>,
    request_id: RequestId,
    incoming: UpstreamResponse,
    in_flight: InFlightGuard,
    /// The job that the call has become.
    job: Option<JobId>,
    /// Pieces that wait for the settlement.
    deferred: Vec<Bytes>,
    report: ReportPlace,
    /// The cost of the call, until it is in the answer.
    cost: Option<CallCost>,
    /// The bytes of a body with a length that are still to come.
    remaining: Option<u64>,
    /// When the client left, and the bytes that were read since.
    disconnect: Option<(Instant, u64)>,
}

/// The next step of a call.
enum RelayEvent {
    Piece(Bytes),
    End,
    Broken(BodyError),
    /// The client left.
    Left,
    /// The client left and the bound is reached, or the service ends.
    Stop,
}

impl RelayEvent {
    fn of(piece: Option<Result<Bytes, BodyError>>) -> Self {
        match piece {
            Some(Ok(piece)) => Self::Piece(piece),
            Some(Err(why)) => Self::Broken(why),
            None => Self::End,
        }
    }
}

impl<'a, O: CallObserver> RelayedResponse<'a, O> {
    fn new(
        gateway: &'a Arc<Gateway>,
        client: &'a Arc<ProviderClient>,
        outbound: &'a OutboundCall,
        sent: SentCall<'a, O>,
        incoming: UpstreamResponse,
    ) -> Self {
        let SentCall { admitted, in_flight, sent_at, timings } = sent;
        let meter = ResponseMeter::new(
            &outbound.endpoint.format,
            incoming.status,
            &AnswerHeaders(&incoming.headers),
            &outbound.call_body,
            outbound.call_body.inserts_usage(),
        )
        .with_memory(&gateway.answer_memory);
        let length = incoming.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        Self {
            remaining: length.and_then(|length| length.parse().ok()),
            request_id: admitted.pending.request_id,
            timings,
            provider_request_id: provider_request_id(&incoming.headers),
            unsettled: Some((admitted, meter)),
            sent_at,
            ended: None,
            job: None,
            deferred: Vec::new(),
            report: ReportPlace::None,
            cost: None,
            disconnect: None,
            gateway,
            client,
            outbound,
            incoming,
            in_flight,
        }
    }

    /// Passes the answer on piece by piece. Its last bytes leave when the call is settled.
    async fn relay(mut self, mut to_client: RelaySender) {
        let head = self.take_head();
        if head.length == Some(0) {
            self.settle(ResponseEnd::Complete).await;
        }
        self.send_head(head, &mut to_client);
        let ended = loop {
            match self.next_event(&to_client).await {
                RelayEvent::Piece(piece) => self.relay_piece(piece, &mut to_client).await,
                RelayEvent::Left => self.client_left(),
                RelayEvent::End => break ResponseEnd::Complete,
                RelayEvent::Stop => break ResponseEnd::Left,
                RelayEvent::Broken(why) => {
                    log::warn!("{}: {why}", self.outbound.endpoint.provider.name);
                    break ResponseEnd::Broken;
                }
            }
        };
        self.settle(ended).await;
        self.flush_deferred(&mut to_client).await;
        let trailers = self.cost.take().filter(|_| matches!(self.report, ReportPlace::Trailers));
        let trailers = trailers.iter().flat_map(cost_headers).collect();
        to_client.end(ended == ResponseEnd::Complete, trailers);
    }

    fn take_head(&mut self) -> RelayedHead {
        // The event with the requested usage is taken out of the stream, so its length is not known.
        let strips = self.outbound.call_body.inserts_usage();
        let headers = std::mem::take(&mut self.incoming.headers);
        if let Some((AdmittedCall { pending, .. }, meter)) = &self.unsettled
            && pending.report == Some(AnswerReport::Cost)
        {
            let memory = MemoryReservation::new(&self.gateway.withheld_memory);
            let takes_trailers = self.outbound.report.takes_trailers;
            self.report = ReportPlace::of(meter.answer_form(), &headers, takes_trailers, memory);
        }
        let changes_body = strips
            || self.outbound.results_base.is_some()
            || matches!(self.report, ReportPlace::Comment(_));
        let mut headers = response_headers(headers, changes_body);
        let (name, value) = request_id_header(self.request_id);
        headers.insert(name, value);
        let has_no_body = matches!(self.incoming.status, 204 | 304);
        let length = if has_no_body { Some(0) } else { self.remaining.filter(|_| !changes_body) };
        let has_trailers = !has_no_body && matches!(self.report, ReportPlace::Trailers);
        RelayedHead { status: self.incoming.status, headers, length, has_trailers }
    }

    /// Sends the head, unless it waits for the cost.
    fn send_head(&mut self, mut head: RelayedHead, to_client: &mut RelaySender) {
        if let ReportPlace::Headers { waiting, .. } = &mut self.report {
            if self.unsettled.is_some() {
                *waiting = Some(head);
                return;
            }
            for (name, value) in self.cost.take().iter().flat_map(cost_headers) {
                head.headers.insert(name, value);
            }
        }
        if to_client.send_head(head).is_err() {
            self.client_left();
        }
    }

    async fn next_event(&mut self, to_client: &RelaySender) -> RelayEvent {
        let settings = &self.gateway.settings;
        if let Some((_, read)) = self.disconnect
            && (settings.on_disconnect == OnDisconnect::Cancel
                || read > settings.disconnect_drain_max_bytes)
        {
            return RelayEvent::Stop;
        }
        // A time beyond the clock's range never comes.
        let drain_end =
            |(since, _): (Instant, u64)| since.checked_add(settings.disconnect_drain_max);
        let deadline = self.disconnect.and_then(drain_end);
        let waits_for_client = self.disconnect.is_none();
        // The end of the call is checked first: pieces may arrive without a pause.
        if self.in_flight.is_cancelled()
            || deadline.is_some_and(|deadline| deadline <= Instant::now())
        {
            return RelayEvent::Stop;
        }
        if waits_for_client && to_client.has_left() {
            return RelayEvent::Left;
        }
        // Most pieces are there already.
        if let Poll::Ready(piece) = poll_fn(|cx| Poll::Ready(self.incoming.poll_next(cx))).await {
            return RelayEvent::of(piece);
        }
        let too_late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.in_flight.cancelled() => RelayEvent::Stop,
            () = too_late => RelayEvent::Stop,
            () = to_client.wait_until_left(), if waits_for_client => RelayEvent::Left,
            piece = self.incoming.next() => RelayEvent::of(piece),
        }
    }

    fn client_left(&mut self) {
        self.disconnect.get_or_insert((Instant::now(), 0));
    }

    /// Measures a piece, and passes on the part that may go before the settlement.
    async fn relay_piece(&mut self, piece: Bytes, to_client: &mut RelaySender) {
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if let Some((_, read)) = &mut self.disconnect {
            *read = read.saturating_add(length);
        }
        let is_last = match &mut self.remaining {
            Some(remaining) => {
                *remaining = remaining.saturating_sub(length);
                *remaining == 0
            }
            None => false,
        };
        let Some((_, meter)) = &mut self.unsettled else {
            return self.send_piece(piece, to_client).await;
        };
        let fed = meter.feed(piece);
        let is_done = meter.done();
        if self.outbound.makes_job() && self.job.is_none() {
            self.begin_streamed_job().await;
        }
        match is_last && !is_done {
            true => self.defer(fed.pass),
            false => self.pass(fed.pass, to_client).await,
        }
        if let Some(held) = fed.held {
            self.withhold(held);
        }
        if is_done {
            self.settle(ResponseEnd::Complete).await;
            self.flush_deferred(to_client).await;
        }
    }

    /// Sends a piece that need not wait for the settlement, unless the head waits for it.
    async fn pass(&mut self, piece: Bytes, to_client: &mut RelaySender) {
        if self.outbound.results_base.is_some() {
            // It is short, and passes as a whole.
            return self.defer(piece);
        }
        match &mut self.report {
            ReportPlace::Headers { waiting: waiting @ Some(_), memory } => {
                if ReportPlace::has_room(memory, &piece) {
                    return self.defer(piece);
                }
                // The body is too large to wait: the answer has no report.
                let head = waiting.take();
                self.report = ReportPlace::None;
                head.into_iter().for_each(|head| self.send_head(head, to_client));
                self.flush_deferred(to_client).await;
            }
            ReportPlace::Comment(place) => place.pass(&piece),
            ReportPlace::Headers { .. } | ReportPlace::Trailers | ReportPlace::None => {}
        }
        self.send_piece(piece, to_client).await;
    }

    /// Keeps a piece until the settlement.
    fn defer(&mut self, piece: Bytes) {
        if let ReportPlace::Comment(place) = &mut self.report {
            place.pass(&piece);
        }
        self.deferred.push(piece);
    }

    /// Keeps a piece of the last event until the settlement.
    fn withhold(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        if let ReportPlace::Comment(place) = &mut self.report {
            place.withhold(self.deferred.len());
        }
        self.deferred.push(piece);
    }

    /// Sends a piece to a client that is still there. A client counts as gone if it takes nothing for the
    /// time that a provider may be silent; a shutdown does not wait for it.
    async fn send_piece(&mut self, piece: Bytes, to_client: &mut RelaySender) {
        if self.disconnect.is_some() {
            return;
        }
        let mut sent = Ok(());
        if to_client.is_full() {
            sent = tokio::select! {
                biased;
                () = to_client.wait_for_room() => Ok(()),
                () = self.in_flight.cancelled() => Err(ClientLeft),
                () = tokio::time::sleep(self.gateway.settings.timeouts.idle) => Err(ClientLeft),
            };
        }
        if sent.and_then(|()| to_client.send_piece(piece)).is_err() {
            self.client_left();
        }
    }

    /// Sends the head and the pieces that waited for the settlement, with the cost of the call.
    async fn flush_deferred(&mut self, to_client: &mut RelaySender) {
        if let Some(ended) = self.ended.take() {
            self.gateway.metrics.after_provider.observe(ended.elapsed().as_secs_f64());
        }
        match &mut self.report {
            ReportPlace::Headers { waiting, .. } => {
                let head = waiting.take();
                head.into_iter().for_each(|head| self.send_head(head, to_client));
            }
            ReportPlace::Comment(place) => {
                if let Some(cost) = self.cost.take() {
                    place.insert(&CostComment::new(self.request_id, &cost), &mut self.deferred);
                }
            }
            ReportPlace::Trailers | ReportPlace::None => {}
        }
        if let Some(base) = &self.outbound.results_base {
            let whole = std::mem::take(&mut self.deferred).concat();
            self.deferred = vec![batch::with_results_at(base, &whole)];
        }
        for piece in std::mem::take(&mut self.deferred) {
            self.send_piece(piece, to_client).await;
        }
    }

    /// Begins the job of a stream when its first event names the object, before the client has that event.
    async fn begin_streamed_job(&mut self) {
        let Some((admitted, meter)) = &self.unsettled else { return };
        let Some((id, _)) = meter.object() else { return };
        let new = job::job_of(
            self.outbound,
            &admitted.pending,
            &admitted.bound,
            (id, None),
            self.gateway,
        );
        if let Some(new) = new
            && let JobBeginning::Begun(job_id) = job::begin(&self.gateway.store, new).await
        {
            self.job = Some(job_id);
        }
    }

    /// Prices the usage that was read, and settles the call, once. The call of a job stays open until the job has ended.
    async fn settle(&mut self, ended: ResponseEnd) {
        let Some((admitted, meter)) = self.unsettled.take() else { return };
        let now = Instant::now();
        admitted.metrics.answer.observe(now.saturating_duration_since(self.sent_at).as_secs_f64());
        self.ended = Some(now);
        admitted.metrics.masked(self.incoming.take_masked());
        let mut reading = meter.finish(ended);
        match reading.complete {
            // The line that ends the stream, without an end of its own.
            true => self.withhold(reading.rest.clone()),
            false => self.defer(reading.rest.clone()),
        }
        let is_accepted = (200..300).contains(&self.incoming.status);
        let is_metered = self.outbound.endpoint.format.metered();
        let mut objects = Vec::new();
        if !is_metered {
            if is_accepted {
                self.observe_object(&reading).await;
                objects = job::kept_by_free_call(self.outbound, &reading, self.gateway.clock.now());
            }
            // The facts of an object are those of the call that created it.
            let UsageReading { complete, error, .. } = reading;
            reading = UsageReading { complete, error, ..UsageReading::nothing() };
        }
        let mut job = None;
        if self.outbound.makes_job() && is_accepted {
            let (call, bound) = (&admitted.pending, &admitted.bound);
            let outcome =
                job::outcome(self.outbound, call, bound, self.job, &reading, self.gateway);
            match outcome.await {
                JobOutcome::Runs => return admitted.hand_over(),
                JobOutcome::Ended(end) => job = Some(end),
                // The call that made the object is billed for it.
                JobOutcome::OfAnotherCall => {
                    let now = self.gateway.clock.now();
                    let report = CallReport::not_sent(now);
                    let report = CallReport { ending: Ending::Answered, ..report };
                    self.cost = admitted.settle(report).await;
                    return;
                }
                JobOutcome::None => {}
            }
        }
        let answer = MeteredAnswer {
            status: self.incoming.status,
            ended,
            reading,
            job,
            objects,
            provider_request_id: self.provider_request_id.take(),
            timings: self.timings,
        };
        let report = admitted.report(answer, self.outbound, self.gateway);
        self.cost = admitted.settle(report).await;
    }

    /// Settles the job whose object was retrieved, or forgets an object that was deleted.
    async fn observe_object(&self, reading: &UsageReading) {
        let format = &self.outbound.endpoint.format;
        if let Some(open) = &self.outbound.observed
            && reading.complete
        {
            let has_results = job::observe(self.gateway, open, reading).await;
            let key = job::key_of(open, self.gateway.settings.job_keys.as_ref());
            if has_results && key.is_none() {
                let announced_by = Some(JobObserver::Client);
                self.read_results(OpenJob { announced_by, ..OpenJob::clone(open) });
            }
        }
        if format.object_role() == ObjectRole::Deletes
            && let Some(id) = format.object_id()
        {
            let provider = self.outbound.endpoint.provider.name.clone();
            let forget = move |conn: &mut Conn| provider_objects::forget(conn, &provider, &id);
            let forgotten: Result<(), StoreError> =
                self.gateway.store.write_outside_calls(forget).await;
            if let Err(cause) = forgotten {
                log::warn!("{}: a deleted object is not forgotten: {cause}", self.request_id);
            }
        }
    }

    /// Reads the results of a batch with the caller's own provider key, which no other task has.
    fn read_results(&self, open: OpenJob) {
        let (gateway, client) = (Arc::clone(self.gateway), Arc::clone(self.client));
        let key = self.outbound.provider_key.clone();
        tokio::task::spawn_local(async move {
            let look = poller::look_with(&gateway, &client, &open, Some(&key));
            if let Err(cause) = look.await {
                log::warn!("{}: a look is not written: {cause}", open.job.job_id);
            }
        });
    }
}

/// The headers in which providers name a request.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id"];
/// The longest id that is kept.
const REQUEST_ID_BYTES: usize = 128;

/// The provider's id of a request, from the headers of its answer.
fn provider_request_id(headers: &HeaderMap) -> Option<String> {
    let mut named = REQUEST_ID_HEADERS.iter().filter_map(|name| headers.get(*name));
    let id = named.next()?.to_str().ok()?;
    (!id.is_empty() && id.len() <= REQUEST_ID_BYTES).then(|| id.to_owned())
}
