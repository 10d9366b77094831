//! The page of metrics for Prometheus.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use tollgate_domain::Timestamp;
use tollgate_domain::settlement::Ending;
use tollgate_gateway::{CallMetrics, ProviderMetrics, amount_units};
use tollgate_metrics::{Counter, Exposition, Histogram, MetricType, MicrosAsSeconds};
use tollgate_store::{Backlog, Store};

use super::counts::Metrics;
use crate::app::App;

/// The time after which a database without an answer counts as down.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The figures that are read when the page is requested.
struct ScrapeSnapshot {
    /// Whether the store can be written, as far as this node knows.
    is_ready: bool,
    open: Backlog,
    journal: (u64, u64),
    at: Timestamp,
}

/// Read the metrics, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = Exposition::MEDIA_TYPE),
    ),
    security(()),
)]
pub(crate) async fn metrics(app: web::Data<App>) -> HttpResponse {
    let read = read(&app).await;
    HttpResponse::Ok().content_type(Exposition::MEDIA_TYPE).body(text(&app, read.as_ref()))
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

fn text(app: &App, read: Option<&ScrapeSnapshot>) -> String {
    let mut page = Exposition::new("tollgate");
    about_process(app, &mut page);
    about_calls(&app.gateway.metrics, &mut page);
    about_refusals(&app.metrics, &mut page);
    about_waits(&app.gateway.metrics, &mut page);
    about_usage(&app.gateway.metrics, &mut page);
    about_ledger(&app.store, &mut page);
    about_store(read, &mut page);
    about_webhooks(&app.metrics, &mut page);
    page.end()
}

fn about_process(app: &App, page: &mut Exposition) {
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", app.metrics.commit)];
    page.family(MetricType::Info, "build", "What runs").sample(&labels, 1);
    let connections = app.metrics.connections.get();
    page.gauge("client_connections", "Connections of clients that are open", connections);
    page.gauge("calls_running", "Calls in flight", app.gateway.calls.running());
}

fn about_calls(metrics: &CallMetrics, page: &mut Exposition) {
    of_providers(metrics, page, "calls_admitted", "Calls that were admitted", |of| &of.admitted);
    let help = "Admitted calls that have ended, by how";
    let mut family = page.family(MetricType::Counter, "calls_ended", help);
    for (provider, of) in metrics.called_providers() {
        for (ending, count) in &of.endings {
            family.sample(&[("provider", provider), ("outcome", word(*ending))], count.get());
        }
    }
}

fn about_refusals(metrics: &Metrics, page: &mut Exposition) {
    let help = "Calls that were not admitted, by the code of the error";
    let mut family = page.family(MetricType::Counter, "calls_refused", help);
    for (code, count) in metrics.refused.iter().filter(|(_, count)| count.get() > 0) {
        family.sample(&[("code", code.name())], count.get());
    }
}

fn about_waits(metrics: &CallMetrics, page: &mut Exposition) {
    let help =
        "What a call waits for here until its provider is called, without the wait for its body";
    page.family(MetricType::Histogram, "call_before_provider_seconds", help)
        .histogram(&[], &metrics.before_provider);
    let help = "What a call waits for here from the end of its answer until the client may have it";
    page.family(MetricType::Histogram, "call_after_provider_seconds", help)
        .histogram(&[], &metrics.after_provider);
    let mut times = |name: &str, help: &str, of: fn(&ProviderMetrics) -> &Histogram| {
        let mut family = page.family(MetricType::Histogram, name, help);
        for (provider, series) in metrics.called_providers() {
            family.histogram(&[("provider", provider)], of(series));
        }
    };
    let help = "From calling a provider, connecting included, to the head of its answer";
    times("provider_first_byte_seconds", help, |of| &of.first_byte);
    let help = "From calling a provider, connecting included, to the last byte of its answer";
    times("provider_answer_seconds", help, |of| &of.answer);
}

fn about_usage(metrics: &CallMetrics, page: &mut Exposition) {
    let help = "Tokens of calls that have ended, each in one kind";
    let mut family = page.family(MetricType::Counter, "tokens", help);
    for (provider, of) in metrics.called_providers() {
        for (unit, count) in &of.tokens {
            family.sample(&[("provider", provider), ("kind", unit.price_key())], count.get());
        }
    }
    let mut counter = |name: &str, help: &str, of: fn(&ProviderMetrics) -> &Counter| {
        of_providers(metrics, page, name, help, of);
    };
    counter("cost_usd_e10", "What calls cost at their provider, in units of 10^-10 USD", |of| {
        &of.cost
    });
    counter(
        "usage_total_mismatches",
        "Answers whose figures do not come to the total that the provider states",
        |of| &of.totals_differ,
    );
    counter(
        "usage_suspicious",
        "Answers that report more than a hundred times of what their call could use",
        |of| &of.suspicious,
    );
    counter(
        "credentials_masked",
        "How often the operator's key stood in an answer, where it is blanked",
        |of| &of.masked,
    );
    counter(
        "usage_unreported",
        "Accepted calls of which the provider reported no usage, or none that is complete",
        |of| &of.unreported,
    );
    counter("unpriced_calls", "Calls without a price", |of| &of.unpriced);
    counter(
        "unpriced_units",
        "Calls that used a unit for which their price list has no price",
        |of| &of.units_unpriced,
    );
    counter(
        "unlisted_tiers",
        "Calls served in a tier without prices of its own, priced as the standard",
        |of| &of.tiers_unlisted,
    );
    counter(
        "provider_stated_cost_usd_e10",
        "What providers state that calls cost, in units of 10^-10 USD, where it is known from the price \
         list too",
        |of| &of.stated_cost,
    );
    counter(
        "provider_listed_cost_usd_e10",
        "What the same calls cost by the price list, in units of 10^-10 USD",
        |of| &of.listed_cost,
    );
}

fn about_ledger(store: &Store, page: &mut Exposition) {
    let ledger = store.metrics();
    page.gauge("ledger_queue_jobs", "Jobs that wait for the ledger", store.queue_length());
    let mut histogram = |name: &str, help: &str, histogram: &Histogram| {
        page.family(MetricType::Histogram, name, help).histogram(&[], histogram);
    };
    histogram(
        "ledger_batch_calls",
        "Admissions and settlements that were booked together",
        &ledger.groups,
    );
    histogram(
        "ledger_admission_seconds",
        "How long an admission takes, from the ledger's queue to its answer",
        &ledger.admissions,
    );
    histogram(
        "ledger_settlement_seconds",
        "How long a settlement takes, from the ledger's queue to its answer",
        &ledger.settlements,
    );
    let help = "The size of SQLite's own log (in the file PATH-wal) at the last checkpoint";
    let bytes = ledger.sqlite_log_pages.get().saturating_mul(4_096);
    page.gauge("sqlite_log_bytes", help, bytes);
    let help = "Settlements in memory that neither the database nor the journal took";
    page.gauge("unkept_settlements", help, store.unjournaled());
}

/// Figures that were not read have no sample: an old figure would look like a new one.
fn about_store(read: Option<&ScrapeSnapshot>, page: &mut Exposition) {
    let is_up = u8::from(read.is_some_and(|read| read.is_ready));
    page.gauge("store_up", "Whether the store takes calls", is_up);
    let mut gauge = |name: &str, help: &str, of: fn(&ScrapeSnapshot) -> u64| {
        let mut family = page.family(MetricType::Gauge, name, help);
        read.into_iter().for_each(|read| family.sample(&[], of(read)));
    };
    let help = "Settlements in the journal of this node";
    gauge("journal_settlements", help, |read| read.journal.0);
    gauge("journal_bytes", "What they take of its disk", |read| read.journal.1);
    let help = "Calls that hold money, of all nodes";
    gauge("holds_open", help, |read| count(read.open.holds));
    let help = "What they hold on wallets, in units of 10^-10 USD";
    gauge("holds_open_usd_e10", help, |read| amount_units(read.open.held));
    let help = "How long the oldest settled call has waited to be added to the roll-ups";
    let mut family = page.family(MetricType::Gauge, "rollup_lag_seconds", help);
    read.into_iter().for_each(|read| family.sample(&[], age(read, read.open.oldest_unfolded)));
    let mut gauge = |name: &str, help: &str, of: fn(&ScrapeSnapshot) -> u64| {
        let mut family = page.family(MetricType::Gauge, name, help);
        read.into_iter().for_each(|read| family.sample(&[], of(read)));
    };
    let help = "Events and deliveries that wait for webhooks, of all nodes";
    gauge("webhook_backlog", help, |read| count(read.open.messages));
    let help = "How long the oldest of them has waited";
    let mut family = page.family(MetricType::Gauge, "webhook_backlog_age_seconds", help);
    read.into_iter().for_each(|read| family.sample(&[], age(read, read.open.oldest_message)));
}

/// The age of the oldest of some waiting things; 0 if nothing waits.
fn age(read: &ScrapeSnapshot, since: Option<Timestamp>) -> MicrosAsSeconds {
    let since = since.unwrap_or(read.at).unix_micros();
    MicrosAsSeconds(u64::try_from(read.at.unix_micros().saturating_sub(since)).unwrap_or(0))
}

fn about_webhooks(metrics: &Metrics, page: &mut Exposition) {
    let help = "Attempts to tell webhooks, by what became of them";
    let mut family = page.family(MetricType::Counter, "webhook_attempts", help);
    for (outcome, count) in &metrics.attempts {
        family.sample(&[("outcome", outcome)], count.get());
    }
}

/// A counter of each provider that was called.
fn of_providers(
    metrics: &CallMetrics,
    page: &mut Exposition,
    name: &str,
    help: &str,
    of: impl Fn(&ProviderMetrics) -> &Counter,
) {
    let mut family = page.family(MetricType::Counter, name, help);
    for (provider, series) in metrics.called_providers() {
        family.sample(&[("provider", provider)], of(series).get());
    }
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
