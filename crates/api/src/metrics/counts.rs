//! The metrics of a process.
//!
//! Labels are names of configured providers and words that this service defines, so clients cannot make them
//! grow. The counters of a call are atomics that are looked up once for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{Attempt, DeliveryFault, UsageSource};
use tollgate_metrics::{Counter, Gauge, Histogram};
use tollgate_pricing::{Amount, CostBreakdown, PriceSource, Unit};
use tollgate_provider::ProviderTable;
use tollgate_usage::UsageReading;

use crate::http::error::{ApiError, ErrorCode};

/// The buckets of the time that this service adds, in microseconds.
const OWN: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];
/// The buckets of a provider's time, in microseconds.
const PROVIDERS: &[u64] = &[
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
];

/// The counters, histograms and gauges.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(super) by_provider: BTreeMap<String, ProviderMetrics>,
    /// For a name that the table does not have, which does not occur.
    unknown_provider: ProviderMetrics,
    /// Calls that were not admitted, by code.
    pub(super) refused: Vec<(ErrorCode, Counter)>,
    /// The time that Tollgate adds before the provider is called.
    pub(crate) before_provider: Histogram,
    /// The time that it adds after the provider's last byte.
    pub(crate) after_provider: Histogram,
    /// The attempts of deliveries, by outcome.
    pub(super) attempts: Vec<(&'static str, Counter)>,
    /// The open connections of clients.
    pub(crate) connections: Arc<Gauge>,
    pub(super) commit: &'static str,
    /// Held by the request that reads the database for the page: one at a time.
    pub(super) reading: Arc<Semaphore>,
}

/// The metrics of the calls of one provider.
#[derive(Debug)]
pub(crate) struct ProviderMetrics {
    pub(super) admitted: Counter,
    pub(super) endings: [(Ending, Counter); 6],
    /// The time from the sending of a call to the head of its answer.
    pub(crate) first_byte: Histogram,
    /// The time from the sending of a call to the last byte of its answer.
    pub(crate) answer: Histogram,
    pub(super) tokens: Vec<(Unit, Counter)>,
    pub(super) cost: Counter,
    pub(super) totals_differ: Counter,
    pub(super) suspicious: Counter,
    pub(super) masked: Counter,
    pub(super) unreported: Counter,
    pub(super) unpriced: Counter,
    pub(super) units_unpriced: Counter,
    pub(super) tiers_unlisted: Counter,
    pub(super) stated_cost: Counter,
    pub(super) listed_cost: Counter,
}

impl Metrics {
    pub(crate) fn new(providers: &ProviderTable, commit: &'static str) -> Self {
        let of_providers =
            providers.iter().map(|provider| (provider.name.clone(), ProviderMetrics::new()));
        let codes = ErrorCode::ALL.iter();
        Self {
            by_provider: of_providers.collect(),
            unknown_provider: ProviderMetrics::new(),
            refused: codes.map(|code| (*code, Counter::default())).collect(),
            before_provider: Histogram::of_times(OWN),
            after_provider: Histogram::of_times(OWN),
            attempts: ATTEMPTS.into_iter().map(|outcome| (outcome, Counter::default())).collect(),
            connections: Arc::default(),
            commit,
            reading: Arc::new(Semaphore::new(1)),
        }
    }

    /// The metrics of a provider's calls. A call looks them up once.
    pub(crate) fn of(&self, provider: &str) -> &ProviderMetrics {
        self.by_provider.get(provider).unwrap_or(&self.unknown_provider)
    }

    /// Counts a call that is answered with an error of this service, unless it was admitted before.
    pub(crate) fn refused(&self, error: &ApiError) {
        let code = error.code();
        if matches!(code, ErrorCode::ProviderUnreachable | ErrorCode::ProviderTimeout) {
            return;
        }
        let found = self.refused.iter().find(|(refused, _)| *refused == code);
        found.into_iter().for_each(|(_, count)| count.inc());
    }

    /// Counts an attempt of a delivery.
    pub(crate) fn attempted(&self, attempt: &Attempt) {
        let outcome = outcome(attempt);
        let found = self.attempts.iter().find(|(word, _)| *word == outcome);
        found.into_iter().for_each(|(_, count)| count.inc());
    }
}

/// The outcomes of an attempt of a delivery.
const ATTEMPTS: [&str; 10] = [
    "delivered",
    "rejected",
    "url_refused",
    "name_not_found",
    "address_private",
    "unreachable",
    "tls_failed",
    "timed_out",
    "no_answer",
    "event_lost",
];

fn outcome(attempt: &Attempt) -> &'static str {
    match attempt.fault {
        _ if attempt.has_arrived() => "delivered",
        None => "rejected",
        Some(DeliveryFault::UrlRefused) => "url_refused",
        Some(DeliveryFault::NameNotFound) => "name_not_found",
        Some(DeliveryFault::AddressPrivate) => "address_private",
        Some(DeliveryFault::Unreachable) => "unreachable",
        Some(DeliveryFault::TlsFailed) => "tls_failed",
        Some(DeliveryFault::TimedOut) => "timed_out",
        Some(DeliveryFault::NoAnswer) => "no_answer",
        Some(DeliveryFault::EventLost) => "event_lost",
    }
}

impl ProviderMetrics {
    fn new() -> Self {
        let endings = [
            Ending::Answered,
            Ending::Abandoned,
            Ending::Broken,
            Ending::Rejected,
            Ending::NotSent,
            Ending::Unanswered,
        ];
        let tokens = Unit::ALL.iter().filter(|unit| unit.counts_tokens());
        Self {
            admitted: Counter::default(),
            endings: endings.map(|ending| (ending, Counter::default())),
            first_byte: Histogram::of_times(PROVIDERS),
            answer: Histogram::of_times(PROVIDERS),
            tokens: tokens.map(|unit| (*unit, Counter::default())).collect(),
            cost: Counter::default(),
            totals_differ: Counter::default(),
            suspicious: Counter::default(),
            masked: Counter::default(),
            unreported: Counter::default(),
            unpriced: Counter::default(),
            units_unpriced: Counter::default(),
            tiers_unlisted: Counter::default(),
            stated_cost: Counter::default(),
            listed_cost: Counter::default(),
        }
    }

    /// Counts an admitted call.
    pub(crate) fn admitted(&self) {
        self.admitted.inc();
    }

    /// Counts an answer that claims far more than its call could use.
    pub(crate) fn suspicious(&self) {
        self.suspicious.inc();
    }

    /// Counts how often the operator's key was masked in an answer.
    pub(crate) fn masked(&self, times: u64) {
        self.masked.add(times);
    }

    /// Counts the end of a call, with its usage and cost.
    pub(crate) fn ended(&self, report: &CallReport) {
        let found = self.endings.iter().find(|(ending, _)| *ending == report.ending);
        found.into_iter().for_each(|(_, count)| count.inc());
        let CallReport { priced, .. } = report;
        for (unit, count) in &self.tokens {
            count.add(*priced.usage.quantities.get(*unit));
        }
        self.cost.add(units(priced.base.input.saturating_add(priced.base.output)));
    }

    /// Counts an answer that was read and priced.
    pub(crate) fn answered(&self, reading: &UsageReading, priced: &CostBreakdown) {
        let count = |counter: &Counter, holds: bool| {
            if holds {
                counter.inc();
            }
        };
        count(&self.totals_differ, reading.total_differs);
        let unreported = matches!(reading.source, UsageSource::Estimated | UsageSource::Partial);
        count(&self.unreported, unreported);
        let is_used = reading.source != UsageSource::None;
        count(&self.unpriced, is_used && priced.source == PriceSource::Unpriced);
        count(&self.units_unpriced, priced.unpriced_unit.is_some());
        count(&self.tiers_unlisted, !priced.unlisted_tiers.is_empty());
        if let (Some(listed), Some(stated)) = (priced.listed, reading.usage.provider_cost) {
            self.stated_cost.add(units(stated));
            self.listed_cost.add(units(listed));
        }
    }
}

pub(super) fn units(amount: Amount) -> u64 {
    u64::try_from(amount.units()).unwrap_or(0)
}
