//! The page of metrics for Prometheus.

use std::fmt;
use std::time::Duration;

use actix_web::{HttpResponse, web};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tollgate_domain::Timestamp;
use tollgate_domain::settlement::Ending;
use tollgate_gateway::{CallMetrics, ProviderMetrics, amount_units};
use tollgate_store::{Backlog, Store};

use super::counts::Metrics;
use crate::app::App;

/// The time after which a database without an answer counts as down.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All figures at the moment of a request.
struct MetricsPage {
    app: web::Data<App>,
    read: Option<ScrapeSnapshot>,
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsPage")
    }
}

impl Collector for MetricsPage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (app, read, mut page) = (&self.app, self.read.as_ref(), Families(encoder));
        about_process(app, &mut page)?;
        about_calls(&app.gateway.metrics, &mut page)?;
        about_refusals(&app.metrics, &mut page)?;
        about_waits(&app.gateway.metrics, &mut page)?;
        about_sockets(app, &mut page)?;
        about_usage(&app.gateway.metrics, &mut page)?;
        about_jobs(&app.gateway.metrics, read, &mut page)?;
        about_ledger(&app.store, &mut page)?;
        about_store(read, &mut page)?;
        about_webhooks(&app.metrics, &mut page)
    }
}

/// The families of metrics of a page, as they are written.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    /// Writes a family: its samples, each with its labels.
    fn family<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        samples
            .into_iter()
            .try_for_each(|(labels, metric)| metric.encode(family.encode_family(&labels)?))
    }

    /// Writes a metric without labels. Without a value it has no sample: an old figure would look like a new one.
    fn one(
        &mut self,
        (kind, name, help): (MetricType, &str, &str),
        metric: Option<impl EncodeMetric>,
    ) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, None, kind)?;
        metric.map_or(Ok(()), |metric| metric.encode(family))
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Into<Option<u64>>) -> fmt::Result {
        self.one((MetricType::Gauge, name, help), value.into().map(ConstGauge::new))
    }

    /// As [`Self::gauge`], for a time in seconds.
    fn seconds(&mut self, name: &str, help: &str, value: Option<Duration>) -> fmt::Result {
        let seconds = value.as_ref().map(Duration::as_secs_f64);
        self.one((MetricType::Gauge, name, help), seconds.map(ConstGauge::new))
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        self.one((MetricType::Histogram, name, help), Some(histogram.clone()))
    }

    /// Writes a metric of each provider that was called.
    fn of_providers<M: EncodeMetric + Clone>(
        &mut self,
        metrics: &CallMetrics,
        (kind, name, help): (MetricType, &str, &str),
        of: impl Fn(&ProviderMetrics) -> &M,
    ) -> fmt::Result {
        let providers = metrics.called_providers();
        let samples = providers.map(|(name, series)| ([("provider", name)], of(series).clone()));
        self.family(kind, name, help, samples)
    }
}

/// The figures that are read when the page is requested.
#[derive(Debug)]
struct ScrapeSnapshot {
    /// Whether the store can be written, as far as this node knows.
    is_ready: bool,
    open: Backlog,
    journal: (u64, u64),
    at: Timestamp,
}

/// Read the metrics, for Prometheus.
#[utoipa::path(
    method(get, head),
    path = "/metrics",
    operation_id = "getMetrics",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = MEDIA_TYPE),
    ),
    security(()),
)]
pub(crate) async fn metrics(app: web::Data<App>) -> HttpResponse {
    let read = read(&app).await;
    let mut registry = Registry::with_prefix("tollgate");
    registry.register_collector(Box::new(MetricsPage { app, read }));
    let mut text = String::new();
    // A string takes all that is written.
    let _ = encode(&mut text, &registry);
    HttpResponse::Ok().content_type(MEDIA_TYPE).body(text)
}

/// The figures of the database and the journal, if they come in time. They are read for one request at a
/// time, so that a slow database does not get more and more queries.
async fn read(app: &web::Data<App>) -> Option<ScrapeSnapshot> {
    let (app, reading) = (app.clone(), app.metrics.reading.clone());
    let reading = actix_web::rt::spawn(async move {
        let _alone = reading.acquire().await.ok()?;
        match (app.store.count_backlog().await, app.store.journal_size().await) {
            (Ok(open), Ok(journal)) => {
                let is_ready = app.store.ready().await.is_ok();
                Some(ScrapeSnapshot { is_ready, open, journal, at: app.clock.now() })
            }
            (Err(cause), _) => {
                log::debug!("the metrics lack the database: {cause}");
                None
            }
            (_, Err(cause)) => {
                log::warn!("the metrics lack the journal: {cause}");
                None
            }
        }
    });
    tokio::time::timeout(READ_WITHIN, reading).await.ok()?.ok()?
}

fn about_process(app: &App, page: &mut Families<'_>) -> fmt::Result {
    let labels = vec![("version", env!("CARGO_PKG_VERSION")), ("commit", app.metrics.commit)];
    page.one((MetricType::Info, "build", "What runs"), Some(Info::new(labels)))?;
    let connections = app.metrics.connections.get();
    page.gauge("client_connections", "Connections of clients that are open", connections)?;
    page.gauge("calls_running", "Calls in flight", count(app.gateway.calls.running()))
}

fn about_calls(metrics: &CallMetrics, page: &mut Families<'_>) -> fmt::Result {
    let admitted = (MetricType::Counter, "calls_admitted", "Calls that were admitted");
    page.of_providers(metrics, admitted, |of| &of.admitted)?;
    let ended = metrics.called_providers().flat_map(|(provider, of)| {
        of.endings.iter().map(move |(ending, count)| {
            ([("provider", provider), ("outcome", word(*ending))], count.clone())
        })
    });
    let help = "Admitted calls that have ended, by how";
    page.family(MetricType::Counter, "calls_ended", help, ended)
}

fn about_refusals(metrics: &Metrics, page: &mut Families<'_>) -> fmt::Result {
    let help = "Calls that were not admitted, by the code of the error";
    let counted = metrics.refused.iter().filter(|(_, count)| count.get() > 0);
    let refused = counted.map(|(code, count)| ([("code", code.name())], count.clone()));
    page.family(MetricType::Counter, "calls_refused", help, refused)
}

fn about_waits(metrics: &CallMetrics, page: &mut Families<'_>) -> fmt::Result {
    let help =
        "What a call waits for here until its provider is called, without the wait for its body";
    page.histogram("call_before_provider_seconds", help, &metrics.before_provider)?;
    let help = "What a call waits for here from the end of its answer until the client may have it";
    page.histogram("call_after_provider_seconds", help, &metrics.after_provider)?;
    let help = "From calling a provider, connecting included, to the head of its answer";
    let first_byte = (MetricType::Histogram, "provider_first_byte_seconds", help);
    page.of_providers(metrics, first_byte, |of| &of.first_byte)?;
    let help = "From calling a provider, connecting included, to the last byte of its answer";
    let answer = (MetricType::Histogram, "provider_answer_seconds", help);
    page.of_providers(metrics, answer, |of| &of.answer)
}

fn about_sockets(app: &App, page: &mut Families<'_>) -> fmt::Result {
    let metrics = &app.gateway.metrics;
    page.gauge("sockets_open", "WebSockets that are open", count(app.gateway.sockets.len()))?;
    let opened = (MetricType::Counter, "sockets_opened", "WebSockets that were opened");
    page.of_providers(metrics, opened, |of| &of.sockets_opened)?;
    let messages = || {
        metrics.called_providers().flat_map(|(provider, of)| {
            of.messages.iter().map(move |(sender, counts)| {
                ([("provider", provider), ("from", sender.as_str())], counts)
            })
        })
    };
    let counts = messages().map(|(labels, counts)| (labels, counts.count.clone()));
    let help = "Messages on WebSockets, by their sender";
    page.family(MetricType::Counter, "socket_messages", help, counts)?;
    let bytes = messages().map(|(labels, counts)| (labels, counts.bytes.clone()));
    let help = "Bytes of messages on WebSockets, by their sender";
    page.family(MetricType::Counter, "socket_message_bytes", help, bytes)?;
    let help = "Messages of clients on WebSockets that were refused";
    let refused = (MetricType::Counter, "socket_messages_refused", help);
    page.one(refused, Some(metrics.messages_refused.clone()))?;
    let help = "What a message waits for here that begins and ends no response";
    page.histogram("socket_message_delay_seconds", help, &metrics.message_delay)
}

fn about_usage(metrics: &CallMetrics, page: &mut Families<'_>) -> fmt::Result {
    let tokens = metrics.called_providers().flat_map(|(provider, of)| {
        of.tokens.iter().map(move |(unit, count)| {
            ([("provider", provider), ("kind", unit.price_key())], count.clone())
        })
    });
    let help = "Tokens of calls that have ended, each in one kind";
    page.family(MetricType::Counter, "tokens", help, tokens)?;
    let mut counter = |name: &str, help: &str, of: fn(&ProviderMetrics) -> &Counter| {
        page.of_providers(metrics, (MetricType::Counter, name, help), of)
    };
    counter("cost_usd_e10", "What calls cost at their provider, in units of 10^-10 USD", |of| {
        &of.cost
    })?;
    counter(
        "usage_total_mismatches",
        "Answers whose figures do not come to the total that the provider states",
        |of| &of.totals_differ,
    )?;
    counter(
        "usage_suspicious",
        "Answers that report more than a hundred times of what their call could use",
        |of| &of.suspicious,
    )?;
    counter(
        "credentials_masked",
        "How often the operator's key stood in an answer, where it is blanked",
        |of| &of.masked,
    )?;
    counter(
        "usage_unreported",
        "Accepted calls of which the provider reported no usage, or none that is complete",
        |of| &of.unreported,
    )?;
    counter("unpriced_calls", "Calls without a price", |of| &of.unpriced)?;
    counter(
        "unpriced_units",
        "Calls that used a unit for which their price list has no price",
        |of| &of.units_unpriced,
    )?;
    counter(
        "unlisted_tiers",
        "Calls served in a tier without prices of its own, priced as the standard",
        |of| &of.tiers_unlisted,
    )?;
    counter(
        "provider_stated_cost_usd_e10",
        "What providers state that calls cost, in units of 10^-10 USD, where it is known from the price \
         list too",
        |of| &of.stated_cost,
    )?;
    counter(
        "provider_listed_cost_usd_e10",
        "What the same calls cost by the price list, in units of 10^-10 USD",
        |of| &of.listed_cost,
    )
}

fn about_jobs(
    metrics: &CallMetrics,
    read: Option<&ScrapeSnapshot>,
    page: &mut Families<'_>,
) -> fmt::Result {
    let help = "Jobs that run, of all nodes";
    page.gauge("jobs_running", help, read.map(|read| count(read.open.jobs)))?;
    let help = "How long the oldest of them has run";
    page.seconds("jobs_oldest_seconds", help, read.map(|read| age(read, read.open.oldest_job)))?;
    let settled = metrics.called_providers().flat_map(|(provider, of)| {
        of.jobs_settled.iter().map(move |(observer, count)| {
            ([("provider", provider), ("observer", observer.as_str())], count.clone())
        })
    });
    let help = "Jobs that have ended, by the first observer of their end";
    page.family(MetricType::Counter, "jobs_settled", help, settled)?;
    let help = "Jobs that their provider no longer knew, or whose end was never seen";
    page.of_providers(metrics, (MetricType::Counter, "jobs_lost", help), |of| &of.jobs_lost)
}

fn about_ledger(store: &Store, page: &mut Families<'_>) -> fmt::Result {
    let ledger = store.metrics();
    let waiting = count(store.queue_length());
    page.gauge("ledger_queue_jobs", "Jobs that wait for the ledger", waiting)?;
    let help = "Admissions and settlements that were booked together";
    page.histogram("ledger_batch_calls", help, &ledger.groups)?;
    let help = "How long an admission takes, from the ledger's queue to its answer";
    page.histogram("ledger_admission_seconds", help, &ledger.admissions)?;
    let help = "How long a settlement takes, from the ledger's queue to its answer";
    page.histogram("ledger_settlement_seconds", help, &ledger.settlements)?;
    let help = "The size of SQLite's own log (in the file PATH-wal) at the last checkpoint";
    let bytes = ledger.sqlite_log_pages.get().saturating_mul(4_096);
    page.gauge("sqlite_log_bytes", help, bytes)?;
    let help = "Refused calls that were counted and not kept, because too many waited";
    page.one(
        (MetricType::Counter, "refusals_dropped", help),
        Some(ledger.refusals_dropped.clone()),
    )?;
    let help = "Settlements in memory that neither the database nor the journal took";
    page.gauge("unkept_settlements", help, count(store.unjournaled()))
}

fn about_store(read: Option<&ScrapeSnapshot>, page: &mut Families<'_>) -> fmt::Result {
    let is_up = u64::from(read.is_some_and(|read| read.is_ready));
    page.gauge("store_up", "Whether the store takes calls", is_up)?;
    let help = "Settlements in the journal of this node";
    page.gauge("journal_settlements", help, read.map(|read| read.journal.0))?;
    let help = "What they take of its disk";
    page.gauge("journal_bytes", help, read.map(|read| read.journal.1))?;
    let help = "Calls that hold money, of all nodes";
    page.gauge("holds_open", help, read.map(|read| count(read.open.holds)))?;
    let help = "What they hold on wallets, in units of 10^-10 USD";
    page.gauge("holds_open_usd_e10", help, read.map(|read| amount_units(read.open.held)))?;
    let help = "How long the oldest settled call has waited to be added to the roll-ups";
    let lag = read.map(|read| age(read, read.open.oldest_unfolded));
    page.seconds("rollup_lag_seconds", help, lag)?;
    let help = "Events and deliveries that wait for webhooks, of all nodes";
    page.gauge("webhook_backlog", help, read.map(|read| count(read.open.messages)))?;
    let help = "How long the oldest of them has waited";
    let waited = read.map(|read| age(read, read.open.oldest_message));
    page.seconds("webhook_backlog_age_seconds", help, waited)
}

/// The age of the oldest of some waiting things; 0 if nothing waits.
fn age(read: &ScrapeSnapshot, since: Option<Timestamp>) -> Duration {
    let since = since.unwrap_or(read.at).unix_micros();
    let micros = read.at.unix_micros().saturating_sub(since);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn about_webhooks(metrics: &Metrics, page: &mut Families<'_>) -> fmt::Result {
    let help = "Attempts to tell webhooks, by what became of them";
    let attempts = metrics.attempts.iter();
    let attempts = attempts.map(|(outcome, count)| ([("outcome", *outcome)], count.clone()));
    page.family(MetricType::Counter, "webhook_attempts", help, attempts)
}

const fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Answered => "answered",
        Ending::Abandoned => "abandoned",
        Ending::Broken => "broken",
        Ending::Rejected => "rejected",
        Ending::NotSent => "not_sent",
        Ending::Unanswered => "unanswered",
        Ending::Lost => "lost",
    }
}

fn count(things: usize) -> u64 {
    u64::try_from(things).unwrap_or(u64::MAX)
}
