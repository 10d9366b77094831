//! What a process counts of its calls, as Prometheus reads it. Labels are names of providers, of
//! which there are as many as the operator configured: nobody else can make them grow.

use actix_web::{HttpResponse, web};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tollgate_domain::UsageSource;
use tollgate_pricing::{Amount, PriceSource, Priced};
use tollgate_provider::Reading;

use crate::app::App;

/// What is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    totals_differ: Family<Provider, Counter>,
    unreported: Family<Provider, Counter>,
    unpriced: Family<Provider, Counter>,
    units_unpriced: Family<Provider, Counter>,
    tiers_unlisted: Family<Provider, Counter>,
    stated_cost: Family<Provider, Counter>,
    listed_cost: Family<Provider, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Provider {
    provider: String,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let mut counter = |name: &str, help: &str| {
            let family = Family::<Provider, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        Self {
            totals_differ: counter(
                "usage_total_mismatches",
                "Answers whose figures do not come to the total that the provider states",
            ),
            unreported: counter(
                "usage_unreported",
                "Accepted calls of which the provider reported no usage, or none that is complete",
            ),
            unpriced: counter("unpriced_calls", "Calls without a price"),
            units_unpriced: counter(
                "unpriced_units",
                "Calls that used a unit for which their price list has no price",
            ),
            tiers_unlisted: counter(
                "unlisted_tiers",
                "Calls served in a tier without prices of its own, priced as the standard",
            ),
            stated_cost: counter(
                "provider_stated_cost_usd_e10",
                "What providers state that calls cost, in units of 10^-10 USD, where it is known \
                 from the price list too",
            ),
            listed_cost: counter(
                "provider_listed_cost_usd_e10",
                "What the same calls cost by the price list, in units of 10^-10 USD",
            ),
            registry,
        }
    }

    /// Counts an answer that was read and priced.
    pub(crate) fn answered(&self, provider: &str, reading: &Reading, priced: &Priced) {
        let of = || Provider { provider: provider.to_owned() };
        let count = |family: &Family<Provider, Counter>, holds: bool| {
            if holds {
                family.get_or_create(&of()).inc();
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
            let units = |amount: Amount| u64::try_from(amount.units()).unwrap_or(0);
            self.stated_cost.get_or_create(&of()).inc_by(units(stated));
            self.listed_cost.get_or_create(&of()).inc_by(units(listed));
        }
    }
}

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Read the metrics, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = METRICS_TYPE),
    ),
    security(()),
)]
pub(crate) async fn metrics(app: web::Data<App>) -> HttpResponse {
    let mut text = String::new();
    match encode(&mut text, &app.metrics.registry) {
        Ok(()) => HttpResponse::Ok().content_type(METRICS_TYPE).body(text),
        // Writing to a string cannot fail.
        Err(_) => HttpResponse::InternalServerError().finish(),
    }
}
