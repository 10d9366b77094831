//! An admitted call, until it is settled.

use std::time::Duration;

use tollgate_domain::admission::{self, Refusal};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    AnswerReport, CallBudgets, CallCost, CallDetails, CallTimings, Enforcement, JobEnd,
    PendingRecord, ProviderObject, Timestamp,
};
use tollgate_store::{Store, StoreError, merchants};
use tollgate_usage::{ResponseEnd, UsageReading};

use crate::error::CallError;
use crate::gateway::Gateway;
use crate::metrics::ProviderMetrics;
use crate::observer::CallObserver;
use crate::outbound::OutboundCall;
use crate::price::{PricedCall, PricedReading};
use crate::settlement::ChargeFacts;
use crate::{job, price, settlement};

/// The longest wait for an admission; after it the database counts as away.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Admits a call.
///
/// # Errors
/// The reason why the call may not go out.
pub(crate) async fn admit<O: CallObserver>(
    admission: Box<admission::Call>,
    gateway: &Gateway,
    observer: O,
) -> Result<AdmittedCall<'_, O>, CallError> {
    let (key, request_id) = (admission.key, admission.request_id);
    let bound = price::RequestedBound::of(&admission);
    let admission_result =
        tokio::time::timeout(ADMISSION_TIMEOUT, gateway.store.admit(admission)).await;
    // If it is admitted after all, the store ends it.
    let too_slow = |_| Err(StoreError::Unavailable("it is too slow to admit calls".to_owned()));
    match admission_result.unwrap_or_else(too_slow) {
        Ok(Ok(pending)) => {
            let metrics = gateway.metrics.of(&pending.forwarded.provider);
            if !pending.ahead {
                metrics.admitted();
            }
            observer.admitted(&pending);
            let store = gateway.store.clone();
            Ok(AdmittedCall {
                store,
                pending,
                bound,
                metrics,
                observer,
                is_extended: false,
                is_unadmitted: false,
                counted: false,
                settled: false,
            })
        }
        Ok(Err(refusal)) => {
            if refusal == Refusal::KeyInvalid {
                gateway.forget_key(key);
                // A merchant may have moved to another cell.
                gateway.store.read(move |conn| merchants::require_key_here(conn, key)).await?;
            }
            Err(refusal.into())
        }
        Err(cause) => {
            if matches!(cause, StoreError::Interrupted) {
                // It may have been admitted although no answer came: it must not hold money.
                let not_sent = CallReport::not_sent(gateway.clock.now());
                gateway.store.settle_in_background(request_id, not_sent);
            }
            Err(cause.into())
        }
    }
}

/// An admitted call. It is settled in every case: dropped before, by a panic or by a worker that stops, it is
/// settled as a call with an unknown end, or taken back if it has not begun.
pub(crate) struct AdmittedCall<'a, O: CallObserver> {
    store: Store,
    pub(crate) pending: Box<PendingRecord>,
    /// The most that the call can use.
    pub(crate) bound: price::RequestedBound,
    pub(crate) metrics: &'a ProviderMetrics,
    observer: O,
    /// Whether other calls hold money for it as well, as for the time of a long session.
    pub(crate) is_extended: bool,
    /// Whether the database does not know it.
    is_unadmitted: bool,
    /// Whether its end was counted, which may be before its settlement.
    counted: bool,
    settled: bool,
}

impl<'a> AdmittedCall<'a, ()> {
    /// A call that was not admitted and is made all the same, without a hold: the provider has begun it. It has the payers
    /// and the limits of an earlier call. If these refuse it, the merchant pays, and no limit counts it.
    pub(crate) fn without_admission(
        call: &admission::Call,
        earlier: &PendingRecord,
        is_refused: bool,
        gateway: &'a Gateway,
    ) -> Self {
        let mut pending = PendingRecord {
            request_id: call.request_id,
            forwarded: call.forwarded.clone(),
            created_at: call.created_at,
            ahead: false,
            ..earlier.clone().without_holds()
        };
        if is_refused {
            (pending.spend_key_id, pending.wallet_id, pending.run_id) = (None, None, None);
            (pending.meter, pending.credit_hold) = (None, None);
            pending.budgets = CallBudgets::default();
        }
        let metrics = gateway.metrics.of(&pending.forwarded.provider);
        metrics.admitted();
        Self {
            store: gateway.store.clone(),
            bound: price::RequestedBound::of(call),
            pending: Box::new(pending),
            metrics,
            observer: (),
            is_extended: false,
            is_unadmitted: true,
            counted: false,
            settled: false,
        }
    }
}

impl<O: CallObserver> AdmittedCall<'_, O> {
    /// Makes a call that was admitted ahead a call as any other.
    pub(crate) async fn begin(&mut self) {
        self.count_begun();
        match self.store.begin(self.pending.request_id).await {
            Ok(Some(begun)) => {
                let PendingRecord { request_id, created_at, .. } = *begun;
                (self.pending.request_id, self.pending.created_at) = (request_id, created_at);
            }
            // It has a record by the report of its end.
            Ok(None) => log::warn!("{}: it is not open any more", self.pending.request_id),
            Err(cause) => {
                log::error!("{}: its beginning is not written: {cause}", self.pending.request_id);
            }
        }
    }

    /// Counts a call that was admitted ahead as admitted.
    fn count_begun(&mut self) {
        if std::mem::take(&mut self.pending.ahead) {
            self.metrics.admitted();
        }
    }

    /// Takes back a call that was admitted ahead and has not begun.
    pub(crate) async fn take_back(mut self) {
        self.settled = true;
        let not_sent = CallReport::not_sent(self.pending.created_at);
        self.store.settle(self.pending.request_id, not_sent).await;
    }

    /// Settles the call. Returns its cost, if its answer reports it and the database has it.
    pub(crate) async fn settle(mut self, report: CallReport) -> Option<CallCost> {
        self.count_begun();
        self.count(&report);
        let call = self.is_unadmitted.then(|| PendingRecord::clone(&self.pending));
        let outcome = self.store.settle_call(self.pending.request_id, report, call).await;
        self.settled = true;
        self.pending.report.and_then(|AnswerReport::Cost| outcome.cost())
    }

    /// Prices an answer of the provider to the call.
    pub(crate) fn report(
        &self,
        answer: MeteredAnswer,
        outbound: &OutboundCall,
        gateway: &Gateway,
    ) -> CallReport {
        let MeteredAnswer { status, ended, reading, job, mut objects, .. } = answer;
        let ending = settlement::ending_of(status, ended, &reading);
        let keeps_message = gateway.settings.keep_error_messages;
        let failure = settlement::failure_of(ending, &reading, keeps_message);
        let now = gateway.clock.now();
        let stated = reading.created_unix_s.and_then(Timestamp::from_unix_seconds);
        let call = PricedCall {
            provider: &outbound.endpoint.provider.name,
            requested: outbound.call_body.model.as_deref(),
            answers: outbound.call_body.answers(),
            came_in: self.pending.created_at,
        };
        let read = match outbound.endpoint.format.metered() {
            true => price::price_reading(&reading, &call, gateway, self.metrics),
            false => PricedReading::nothing(),
        };
        let is_suspicious = self.bound.is_far_exceeded_by(&read.priced);
        if is_suspicious {
            self.metrics.suspicious();
            let (request_id, claimed) = (self.pending.request_id, &read.priced.usage.quantities);
            log::warn!("{request_id}: far more is reported than it could use: {claimed:?}");
        }
        let facts = ChargeFacts {
            ending,
            is_stream: outbound.call_body.stream,
            is_strict: self.pending.enforcement == Some(Enforcement::Strict),
            provider_error: reading.provider_error,
            is_suspicious,
        };
        let PricedReading { priced, applied, missing } = facts.charged(read, &self.bound);
        let is_accepted = (200..300).contains(&status);
        let id = reading.response_id.as_deref().filter(|_| is_accepted && outbound.managed);
        objects.extend(id.and_then(|id| job::kept_answer(outbound, id, &priced, now)));
        if let Some(end) = job {
            self.metrics.job_ended(end);
        }
        CallReport {
            ending,
            provider_status: Some(status),
            priced,
            applied,
            missing,
            model: reading.model,
            response_id: reading.response_id,
            timestamp: stated.unwrap_or(now),
            suspicious: is_suspicious,
            extended: self.is_extended,
            job,
            lines: Vec::new(),
            objects,
            details: CallDetails {
                failure,
                provider_request_id: answer.provider_request_id,
                timings: CallTimings { last_byte_at: Some(now), ..answer.timings },
            },
        }
    }

    /// Leaves the call open for its job, which is settled when its end is observed.
    pub(crate) fn hand_over(mut self) {
        let answered = CallReport::not_sent(self.pending.created_at);
        self.observer.ended(&CallReport { ending: Ending::Answered, ..answered });
        self.counted = true;
        self.settled = true;
    }

    /// Counts the end of the call, and tells its observer, once.
    fn count(&mut self, report: &CallReport) {
        if !std::mem::replace(&mut self.counted, true) {
            self.metrics.ended(report);
            self.observer.ended(report);
        }
    }
}

impl<O: CallObserver> Drop for AdmittedCall<'_, O> {
    fn drop(&mut self) {
        if !self.settled && self.pending.ahead {
            let not_sent = CallReport::not_sent(self.pending.created_at);
            self.store.settle_in_background(self.pending.request_id, not_sent);
        } else if !self.settled && !self.is_unadmitted {
            let now = self.pending.created_at;
            let report = CallReport::unknown(&self.pending, Ending::Unanswered, now);
            self.count(&report);
            self.store.settle_in_background(self.pending.request_id, report);
        }
    }
}

/// An answer of a provider, as it was read.
pub(crate) struct MeteredAnswer {
    pub(crate) status: u16,
    pub(crate) ended: ResponseEnd,
    pub(crate) reading: UsageReading,
    /// The job of the call, if it has ended with this answer.
    pub(crate) job: Option<JobEnd>,
    /// The objects that it shows, beside the answer itself.
    pub(crate) objects: Vec<ProviderObject>,
    pub(crate) provider_request_id: Option<String>,
    pub(crate) timings: CallTimings,
}
