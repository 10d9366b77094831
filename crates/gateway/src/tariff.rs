//! The prices of calls by the operator's providers and price lists, without a call.

use tollgate_domain::admission::{CostBound, Refusal};
use tollgate_domain::{Issue, PricedUsage, PricingTerms, Quote, Timestamp, UsageSource};
use tollgate_pricing::{
    BaseCost, CostBreakdown, Overflow, PriceBook, PriceMatch, PriceRow, Rate, ServedCall,
    UnitPrices, Usage,
};
use tollgate_provider::http::Method;
use tollgate_provider::{Endpoint, ProviderTable};
use tollgate_usage::{InspectedBody, OutputBound, TOKENS_PER_IMAGE_MADE, ToolCharge, UsageBound};

use crate::endpoint::find_endpoint;
use crate::error::{CallError, body_invalid};
use crate::settings::UnpricedPolicy;

/// The assumed most output tokens of a call if neither it nor the price list states them.
const UNKNOWN_OUTPUT_TOKENS: u64 = 4_096;

/// The bytes of `"max_completion_tokens": 1000000000, ` and similar fields.
const STATED_MAXIMUM_BYTES: u64 = 40;

/// The providers and prices of calls at a time.
#[derive(Clone, Debug)]
pub struct Tariff<'a> {
    /// The providers that calls may go to.
    pub providers: &'a ProviderTable,
    /// The prices of the providers.
    pub prices: PriceBook,
    /// The handling of calls without a price.
    pub unpriced: UnpricedPolicy,
    /// The time. Its day and hour, in UTC, select the prices.
    pub at: Timestamp,
}

impl Tariff<'_> {
    /// The price row of a model. An endpoint may have no model by nature; then only a row for all models
    /// matches.
    pub fn find(&self, provider: &str, model: Option<&str>) -> Option<PriceMatch<'_>> {
        self.prices.find(provider, model.unwrap_or_default(), self.at)
    }

    /// The base cost of a call. A cost beyond the range of an amount leaves it unpriced.
    pub fn price(&self, served: &ServedCall<'_>) -> CostBreakdown {
        unpriced_on_overflow(self.prices.price(served), served)
    }

    /// As [`Tariff::price`], with the row that was found for the call's own model.
    pub(crate) fn price_with_row(
        &self,
        served: &ServedCall<'_>,
        own: Option<PriceMatch<'_>>,
    ) -> CostBreakdown {
        unpriced_on_overflow(self.prices.price_with_row(served, own), served)
    }

    /// The base cost of a stated usage, of a model at a provider if they are named.
    pub fn price_stated(
        &self,
        served: Option<(&str, &str)>,
        usage: Usage,
    ) -> (PricedUsage, CostBreakdown) {
        let (provider, model) = served.unzip();
        let priced = self.price(&ServedCall {
            provider: provider.unwrap_or_default(),
            models: model.as_slice(),
            tiers: &[],
            on: self.at.date(),
            time: Some(self.at.time()),
            usage: &usage,
            parts: &[],
        });
        let stated = PricedUsage {
            usage,
            usage_source: UsageSource::Reported,
            base: priced.base,
            price_source: priced.source,
        };
        (stated, priced)
    }

    /// The most that a body can cost if it is posted to a URL with the operator's key.
    ///
    /// # Errors
    /// The error that the call itself would get, with issues within `url` and `body`.
    pub fn bound(&self, url: &str, body: &[u8]) -> Result<CallBound, CallError> {
        let endpoint = find_endpoint(&Method::POST, url, true, self.providers)
            .map_err(|refused| refused.within("url"))?;
        let in_body = |refused: CallError| refused.within("body");
        let body = InspectedBody::inspect(body, &endpoint.format, true)
            .map_err(|issues| in_body(body_invalid(issues)))?;
        let listed = self.find(&endpoint.provider.name, body.model.as_deref());
        match endpoint.format.metered() {
            true => self
                .cost_bound(&endpoint, &body, true, listed)
                .map(|bound| CallBound(Some(bound)))
                .map_err(in_body),
            false => Ok(CallBound(None)),
        }
    }

    /// The most that a metered call can use, and the prices that can apply to it. They come from the row that
    /// is `listed` for its model. A call without a price is refused if it needs one.
    pub(crate) fn cost_bound(
        &self,
        endpoint: &Endpoint,
        body: &InspectedBody,
        managed: bool,
        listed: Option<PriceMatch<'_>>,
    ) -> Result<CostBound, CallError> {
        let highest: HighestPrices = |row, tokens, tiers| row.highest_prices(tokens, tiers);
        self.bound_at(highest, endpoint, body, managed, listed)
    }

    /// As [`Tariff::cost_bound`], for a request of a batch.
    pub(crate) fn batch_bound(
        &self,
        endpoint: &Endpoint,
        body: &InspectedBody,
        managed: bool,
        listed: Option<PriceMatch<'_>>,
    ) -> Result<CostBound, CallError> {
        let highest: HighestPrices = |row, tokens, tiers| row.highest_batch_prices(tokens, tiers);
        self.bound_at(highest, endpoint, body, managed, listed)
    }

    fn bound_at(
        &self,
        highest_prices: HighestPrices,
        endpoint: &Endpoint,
        body: &InspectedBody,
        managed: bool,
        listed: Option<PriceMatch<'_>>,
    ) -> Result<CostBound, CallError> {
        let listed = listed.filter(|listed| is_priced(endpoint, listed.row));
        let provider = &endpoint.provider.name;
        if listed.is_none() {
            let issue =
                format!("has no price at {provider}; the operator can set one in [[prices]]");
            check_unpriced_allowed(Issue::at(["model"], issue), managed, self.unpriced)?;
        }
        let mut bound = compute_bound(listed, highest_prices, endpoint, body);
        if let Some(prices) = &mut bound.prices {
            let charges = body.bound(&endpoint.format).tool_charges;
            match highest_tool_price(&charges, prices, bound.input_tokens, provider, self) {
                Ok(price) => prices.tool_call = price,
                Err(path) => {
                    let message = format!("is a tool of {provider} whose price is not known");
                    let issue = Issue { path: path.clone(), message };
                    check_unpriced_allowed(issue, managed, self.unpriced)?;
                    bound.unbounded = Some(path);
                }
            }
        }
        Ok(bound)
    }
}

fn unpriced_on_overflow(
    priced: Result<CostBreakdown, Overflow>,
    served: &ServedCall<'_>,
) -> CostBreakdown {
    priced.unwrap_or_else(|Overflow| {
        log::error!("a call at {} costs more than an amount can say", served.provider);
        CostBreakdown::default()
    })
}

/// The most that a call can cost at its provider; `None` for a free call.
#[derive(Clone, Debug)]
pub struct CallBound(Option<CostBound>);

impl CallBound {
    /// The most that it can cost in all, which is its hold.
    ///
    /// # Errors
    /// [`Refusal::BoundTooLarge`] when that is more than any call may hold.
    pub fn hold(&self, terms: &PricingTerms<'_>) -> Result<Quote, Refusal> {
        match &self.0 {
            Some(bound) => bound.hold(terms),
            None => Ok(Quote::free(terms)),
        }
    }

    /// The bound on usage and prices that it is computed from.
    pub fn cost(&self) -> Option<&CostBound> {
        self.0.as_ref()
    }
}

/// Whether a row has prices for the units that an endpoint bills. By a row for another kind of use a call
/// would cost nothing.
pub(crate) fn is_priced(endpoint: &Endpoint, row: &PriceRow) -> bool {
    let mut sets = endpoint.format.billed_units().iter();
    sets.all(|units| units.iter().any(|unit| row.prices.price(*unit).is_some()))
}

/// The price of the most expensive tool call that the body offers, if it offers any.
///
/// # Errors
/// The path to the first tool without a price. The price of one kind of tool does not apply to another.
fn highest_tool_price(
    charges: &[(ToolCharge, Vec<String>)],
    prices: &UnitPrices,
    input_tokens: u64,
    provider: &str,
    tariff: &Tariff<'_>,
) -> Result<Option<Rate>, Vec<String>> {
    let price = |charge| match charge {
        ToolCharge::Tokens => Some(Rate::ZERO),
        ToolCharge::Each(unit) => prices.price(unit),
        ToolCharge::Image(model) => {
            let row = tariff.find(provider, Some(model))?.row;
            let most = Usage::tokens(input_tokens, TOKENS_PER_IMAGE_MADE);
            let cost = BaseCost::of(&most, &row.highest_prices::<&str>(input_tokens, &[])).ok()?;
            cost.total().ok()?.to_string().parse().ok()
        }
        ToolCharge::Unknown => None,
    };
    charges.iter().try_fold(None, |highest: Option<Rate>, (charge, path)| {
        price(*charge).map(|price| highest.max(Some(price))).ok_or_else(|| path.clone())
    })
}

fn check_unpriced_allowed(
    issue: Issue,
    managed: bool,
    unpriced: UnpricedPolicy,
) -> Result<(), CallError> {
    let allowed = match unpriced {
        UnpricedPolicy::Allow => true,
        UnpricedPolicy::Refuse => false,
        UnpricedPolicy::RefuseManaged => !managed,
    };
    if allowed {
        return Ok(());
    }
    Err(CallError::PriceUnknown(issue))
}

/// The highest prices of a row for a prompt of this length, in these tiers.
type HighestPrices = fn(&PriceRow, u64, &[&str]) -> UnitPrices;

/// The most that the call can use, and the highest prices of its row.
fn compute_bound(
    listed: Option<PriceMatch<'_>>,
    highest_prices: HighestPrices,
    endpoint: &Endpoint,
    body: &InspectedBody,
) -> CostBound {
    let UsageBound { input_tokens, output, answers, tool_calls, others, unbounded, .. } =
        body.bound(&endpoint.format);
    let row = listed.map(|listed| listed.row);
    let (max_tokens, is_unknown) = match (output, row.and_then(|row| row.max_output_tokens)) {
        (OutputBound::None, _) => (0, false),
        (OutputBound::Stated(most), _) | (OutputBound::Unstated, Some(most)) => (most, false),
        (OutputBound::Unstated, None) => (UNKNOWN_OUTPUT_TOKENS, true),
    };
    let (listed, unlisted): (Vec<_>, Vec<_>) = body
        .tiers()
        .iter()
        .partition(|(_, tier)| row.is_some_and(|row| row.tiers.contains_key(tier)));
    // A size without a tier has the standard prices.
    let unlisted: Vec<_> = unlisted.into_iter().filter(|(field, _)| *field != "size").collect();
    let tiers: Vec<&str> = listed.iter().map(|(_, tier)| tier.as_str()).collect();
    let prices = row.map(|row| highest_prices(row, input_tokens, &tiers));
    let without_bound = [(prices.is_none(), "model"), (is_unknown, max_tokens_field(endpoint))];
    let unlisted = unlisted.first().map(|(field, _)| (true, *field));
    let field = without_bound.into_iter().chain(unlisted).find(|(holds, _)| *holds);
    // A field with the maximum, added to the body, is input, too, in each round of a tool.
    let max_tokens_field_bytes = match output {
        OutputBound::Unstated => STATED_MAXIMUM_BYTES.saturating_mul(tool_calls.saturating_add(1)),
        OutputBound::None | OutputBound::Stated(_) => 0,
    };
    CostBound {
        input_tokens,
        max_tokens,
        to_state_maximum: max_tokens_field_bytes,
        answers,
        tool_calls,
        others,
        prices,
        unbounded: unbounded.or_else(|| field.map(|(_, field)| vec![field.to_owned()])),
    }
}

/// The field for the most tokens of an answer, in the format of the endpoint.
fn max_tokens_field(endpoint: &Endpoint) -> &'static str {
    match endpoint.format.operation {
        Some(operation) if operation.path == "/responses" => "max_output_tokens",
        _ => "max_tokens",
    }
}
