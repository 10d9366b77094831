//! The request for admission of a call, with its bound, and the price of its usage.

use tollgate_domain::admission::{self, CostBound};
use tollgate_domain::{
    ForwardedRequest, MissingPrice, PricedUsage, ProviderKeyType, RequestId, Timestamp, UsageSource,
};
use tollgate_pricing::{Amount, AppliedPrices, BaseCost, PriceMatch, ServedCall, Usage};
use tollgate_usage::{InspectedBody, UsageReading, estimate_input};

use crate::credential::Credential;
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::keys::KeyOwner;
use crate::metrics::ProviderMetrics;
use crate::outbound::{OutboundCall, recorded};

/// The call to be admitted. A call without a price is refused here if it needs one.
pub(crate) fn prepare_admission(
    owner: KeyOwner,
    credential: &Credential,
    outbound: &OutboundCall,
    gateway: &Gateway,
) -> Result<Box<admission::Call>, CallError> {
    let connection_id = credential.connection_id.as_deref().map(str::parse).transpose();
    let now = gateway.clock.now();
    let OutboundCall { endpoint, call_body, managed, .. } = outbound;
    let metered = endpoint.format.metered();
    let (bound, input_estimate) = match (&outbound.batch, metered) {
        (Some(plan), _) => (plan.bound.clone(), plan.input_estimate),
        (None, true) => {
            let tariff = gateway.tariff(now);
            let listed = tariff.find(&endpoint.provider.name, call_body.model.as_deref());
            let bound = tariff.cost_bound(endpoint, call_body, *managed, listed);
            let bound = bound.inspect_err(|refused| {
                if matches!(refused, CallError::PriceUnknown(issue) if issue.path == ["model"]) {
                    let model = call_body.model.as_deref().unwrap_or_default();
                    let missing = MissingPrice::of_model(&endpoint.provider.name, model);
                    gateway.store.report_missing_price(owner.merchant_id, missing);
                }
            })?;
            (bound, input_estimate(call_body, listed))
        }
        (None, false) => (CostBound::default(), PricedUsage::nothing()),
    };
    Ok(Box::new(admission::Call {
        request_id: RequestId::generate(now),
        merchant_id: owner.merchant_id,
        key: owner.key,
        connection_id: connection_id
            .map_err(|_| CallError::Refused(admission::Refusal::ConnectionNotFound))?,
        meter_slug: credential.meter_slug.clone(),
        disable_billing: credential.disable_billing,
        forwarded: ForwardedRequest {
            provider: endpoint.provider.name.clone(),
            endpoint: recorded(endpoint),
            metered,
            provider_key_type: match managed {
                true => ProviderKeyType::Managed,
                false => ProviderKeyType::Unmanaged,
            },
            model: call_body.model.clone(),
            metadata: outbound.metadata.clone(),
            socket_id: outbound.socket_id,
            input_estimate,
        },
        shape: endpoint.shape(),
        names_other_models: call_body.names_other_models,
        run: outbound.run.clone(),
        bound,
        report: outbound.report.report,
        ahead: false,
        created_at: now,
    }))
}

/// The cost of the input alone by the price row of its model, for a call without an answer.
pub(crate) fn input_estimate(body: &InspectedBody, listed: Option<PriceMatch<'_>>) -> PricedUsage {
    let usage = estimate_input(body);
    // A cost beyond the range of an amount leaves the call unpriced.
    let cost = listed.and_then(|listed| Some((listed.base_cost(&usage).ok()?, listed.source)));
    let (base, price_source) = cost.unwrap_or_default();
    PricedUsage { usage, usage_source: UsageSource::Estimated, base, price_source }
}

/// The usage of an answer. An estimate is bounded by the most that the model can answer, because the answer
/// also has parts that are not text.
fn plausible_usage(
    reading: &UsageReading,
    call: &PricedCall<'_>,
    listed: Option<PriceMatch<'_>>,
) -> Usage {
    let mut usage = reading.usage;
    let most = listed.and_then(|listed| listed.row.max_output_tokens);
    if let (UsageSource::Estimated | UsageSource::Partial, Some(most)) = (reading.source, most) {
        let most = most.saturating_mul(call.answers);
        usage.quantities.output = usage.quantities.output.min(most);
    }
    usage
}

/// The most that an admitted call can use.
pub(crate) struct RequestedBound {
    /// The most that it can use, and the cost of that.
    pub(crate) at_most: PricedUsage,
    /// Whether the bound covers all of the call.
    pub(crate) is_complete: bool,
}

impl RequestedBound {
    pub(crate) fn of(call: &admission::Call) -> Self {
        let bound = &call.bound;
        let source = call.forwarded.input_estimate.price_source;
        Self { at_most: bound.max_usage(source), is_complete: bound.unbounded.is_none() }
    }

    /// Adds a bound, for a call that goes on.
    pub(crate) fn extend(&mut self, more: &Self) {
        self.is_complete &= more.is_complete;
        // A cost beyond all amounts is not held.
        self.at_most = self.at_most.checked_add(&more.at_most).unwrap_or(self.at_most);
    }

    /// The bound of a call that uses no more than this.
    #[cfg(test)]
    pub(crate) const fn of_usage(at_most: PricedUsage) -> Self {
        Self { at_most, is_complete: true }
    }

    /// Whether a provider claims more than a hundred times the bound, in tokens or in money.
    pub(crate) fn is_far_exceeded_by(&self, claimed: &PricedUsage) -> bool {
        const TIMES: u64 = 100;
        let is_beyond = |claimed: u64, most: u64| claimed > most.saturating_mul(TIMES);
        let units = |cost: BaseCost| {
            let total = cost.total().unwrap_or(Amount::MAX);
            total.units().max(0).unsigned_abs()
        };
        let (most, used) = (&self.at_most.usage, &claimed.usage);
        self.is_complete
            && claimed.usage_source == UsageSource::Reported
            && (is_beyond(used.input_tokens(), most.input_tokens())
                || is_beyond(used.output_tokens(), most.output_tokens())
                || is_beyond(units(claimed.base), units(self.at_most.base)))
    }
}

/// The usage of an answer, priced.
pub(crate) struct PricedReading {
    pub(crate) priced: PricedUsage,
    pub(crate) applied: Vec<AppliedPrices>,
    pub(crate) missing: Option<MissingPrice>,
}

impl PricedReading {
    /// No usage, at no cost.
    pub(crate) fn nothing() -> Self {
        Self { priced: PricedUsage::nothing(), applied: Vec::new(), missing: None }
    }
}

/// The facts of a call by which its answer is priced.
pub(crate) struct PricedCall<'a> {
    /// The provider's name.
    pub(crate) provider: &'a str,
    /// The requested model.
    pub(crate) requested: Option<&'a str>,
    /// The most answers that are made.
    pub(crate) answers: u64,
    /// The time at which the call came in.
    pub(crate) came_in: Timestamp,
}

/// Prices the usage of an answer by the model that served it. The prices are from the moment when the call
/// came in. If no price list has that model's name, the requested model is priced.
pub(crate) fn price_reading(
    reading: &UsageReading,
    call: &PricedCall<'_>,
    gateway: &Gateway,
    counts: &ProviderMetrics,
) -> PricedReading {
    let PricedCall { provider, requested, came_in, .. } = *call;
    let models: Vec<&str> = reading.model.as_deref().into_iter().chain(requested).collect();
    // A call may name no model by nature; then a row for all models prices it.
    let models = if models.is_empty() { vec![""] } else { models };
    let tariff = gateway.tariff(came_in);
    let listed = tariff.find(provider, models.first().copied());
    let others = || models.iter().skip(1).find_map(|model| tariff.find(provider, Some(*model)));
    let own = listed.or_else(others);
    let used = plausible_usage(reading, call, own);
    let served = ServedCall {
        provider,
        models: &models,
        tiers: &reading.tiers,
        on: came_in.date(),
        time: Some(came_in.time()),
        usage: &used,
        parts: &reading.parts,
    };
    let priced = tariff.price_with_row(&served, own);
    counts.answered(reading, &priced);
    let missing = MissingPrice::of(provider, models.first().unwrap_or(&""), &used, &priced);
    let usage = PricedUsage {
        usage: used,
        usage_source: reading.source,
        base: priced.base,
        price_source: priced.source,
    };
    PricedReading { priced: usage, applied: priced.applied, missing }
}
