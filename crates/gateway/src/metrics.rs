//! The metrics of calls.
//!
//! They are kept for each configured provider, so clients cannot make them grow. The counters of a call are atomics that are looked up once for it.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{JobEnd, JobObserver, JobState, UsageSource};
use tollgate_pricing::{Amount, CostBreakdown, PriceSource, Unit};
use tollgate_provider::ProviderTable;
use tollgate_usage::UsageReading;

/// The bounds of the time that this service adds, in seconds.
const OVERHEAD_BUCKETS: [f64; 16] = [
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 10.0,
];
/// The bounds of a provider's time, in seconds.
const PROVIDER_BUCKETS: [f64; 14] =
    [0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0];

/// The metrics of all calls.
#[derive(Debug)]
pub struct CallMetrics {
    by_provider: BTreeMap<String, ProviderMetrics>,
    /// For a name that the table does not have, which does not occur.
    unknown_provider: ProviderMetrics,
    /// The time that Tollgate adds before the provider is called.
    pub before_provider: Histogram,
    /// The time that it adds after the provider's last byte.
    pub after_provider: Histogram,
    /// The time that it adds to a message of a socket that begins and ends no response.
    pub message_delay: Histogram,
    /// Refused messages of sockets.
    pub messages_refused: Counter,
}

/// The metrics of the calls of one provider.
#[derive(Debug)]
pub struct ProviderMetrics {
    /// Admitted calls.
    pub admitted: Counter,
    /// Calls that have ended, by how.
    pub endings: [(Ending, Counter); 6],
    /// The time from the sending of a call to the head of its answer.
    pub first_byte: Histogram,
    /// The time from the sending of a call to its terminal event, or else to the last byte of its answer.
    pub answer: Histogram,
    /// Tokens, by unit.
    pub tokens: Vec<(Unit, Counter)>,
    /// The base cost, in units of 10⁻¹⁰ USD.
    pub cost: Counter,
    /// Answers whose figures do not come to the total that the provider states.
    pub totals_differ: Counter,
    /// Answers that claim far more than their call could use.
    pub suspicious: Counter,
    /// How often the operator's key was masked in an answer.
    pub masked: Counter,
    /// Accepted calls without complete usage from the provider.
    pub unreported: Counter,
    /// Calls without a price.
    pub unpriced: Counter,
    /// Calls that used a unit without a price.
    pub units_unpriced: Counter,
    /// Calls in a tier without prices of its own.
    pub tiers_unlisted: Counter,
    /// The cost that providers state, in units of 10⁻¹⁰ USD, where the price list has one too.
    pub stated_cost: Counter,
    /// The cost of the same calls by the price list.
    pub listed_cost: Counter,
    /// Settled jobs, by the first observer of their end.
    pub jobs_settled: [(JobObserver, Counter); 3],
    /// Lost jobs.
    pub jobs_lost: Counter,
    /// Sockets that were opened.
    pub sockets_opened: Counter,
    /// The messages of sockets, by their sender.
    pub messages: [(MessageSender, MessageCounts); 2],
}

/// The sender of a message on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSender {
    /// The client.
    Client,
    /// The provider.
    Provider,
}

impl MessageSender {
    /// The word of the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Provider => "provider",
        }
    }
}

/// The messages of one sender.
#[derive(Debug, Default)]
pub struct MessageCounts {
    /// Their number.
    pub count: Counter,
    /// Their bytes, without the heads of frames.
    pub bytes: Counter,
}

impl CallMetrics {
    pub(crate) fn new(providers: &ProviderTable) -> Self {
        let of_providers =
            providers.iter().map(|provider| (provider.name.clone(), ProviderMetrics::new()));
        Self {
            by_provider: of_providers.collect(),
            unknown_provider: ProviderMetrics::new(),
            before_provider: Histogram::new(OVERHEAD_BUCKETS),
            after_provider: Histogram::new(OVERHEAD_BUCKETS),
            message_delay: Histogram::new(OVERHEAD_BUCKETS),
            messages_refused: Counter::default(),
        }
    }

    /// The metrics of a provider's calls. A call looks them up once.
    pub(crate) fn of(&self, provider: &str) -> &ProviderMetrics {
        self.by_provider.get(provider).unwrap_or(&self.unknown_provider)
    }

    /// The metrics of each provider that was called, by its name.
    pub fn called_providers(&self) -> impl Iterator<Item = (&str, &ProviderMetrics)> {
        let is_called = |of: &&ProviderMetrics| {
            of.admitted.get() > 0 || of.has_jobs() || of.sockets_opened.get() > 0
        };
        let called = self.by_provider.iter().filter(move |(_, of)| is_called(of));
        called.map(|(provider, of)| (provider.as_str(), of))
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
            first_byte: Histogram::new(PROVIDER_BUCKETS),
            answer: Histogram::new(PROVIDER_BUCKETS),
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
            jobs_settled: JobObserver::ALL.map(|observer| (observer, Counter::default())),
            jobs_lost: Counter::default(),
            sockets_opened: Counter::default(),
            messages: [MessageSender::Client, MessageSender::Provider]
                .map(|sender| (sender, MessageCounts::default())),
        }
    }

    /// Whether jobs have ended. Their calls may have been admitted by another process.
    fn has_jobs(&self) -> bool {
        self.jobs_lost.get() > 0 || self.jobs_settled.iter().any(|(_, count)| count.get() > 0)
    }

    /// Counts a message of a socket.
    pub(crate) fn message(&self, sender: MessageSender, bytes: usize) {
        if let Some((_, counts)) = self.messages.iter().find(|(of, _)| *of == sender) {
            counts.count.inc();
            counts.bytes.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Counts an admitted call.
    pub(crate) fn admitted(&self) {
        self.admitted.inc();
    }

    /// Counts the end of a job.
    pub(crate) fn job_ended(&self, end: JobEnd) {
        if end.state == JobState::Lost {
            self.jobs_lost.inc();
        } else if let Some((_, count)) =
            self.jobs_settled.iter().find(|(observer, _)| *observer == end.observer)
        {
            count.inc();
        }
    }

    /// Counts an answer that claims far more than its call could use.
    pub(crate) fn suspicious(&self) {
        self.suspicious.inc();
    }

    /// Counts how often the operator's key was masked in an answer.
    pub(crate) fn masked(&self, times: u64) {
        self.masked.inc_by(times);
    }

    /// Counts the end of a call, with its usage and cost.
    pub(crate) fn ended(&self, report: &CallReport) {
        let found = self.endings.iter().find(|(ending, _)| *ending == report.ending);
        if let Some((_, count)) = found {
            count.inc();
        }
        let CallReport { priced, .. } = report;
        for (unit, count) in &self.tokens {
            count.inc_by(*priced.usage.quantities.get(*unit));
        }
        self.cost.inc_by(amount_units(priced.base.input.saturating_add(priced.base.output)));
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
            self.stated_cost.inc_by(amount_units(stated));
            self.listed_cost.inc_by(amount_units(listed));
        }
    }
}

/// The units of an amount as a count; a negative amount is none.
pub fn amount_units(amount: Amount) -> u64 {
    u64::try_from(amount.units()).unwrap_or(0)
}
