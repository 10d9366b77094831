//! The most that a call can cost.

use crate::quote::{FeeModel, PricingTerms, Quote};
use tollgate_pricing::{
    Amount, BaseCost, Overflow, PerUnit, PriceSource, Unit, UnitPrices, Usage, UsageSource,
};

use super::refusal::Refusal;
use crate::record::PricedUsage;

/// The most that one call may hold: a million USD. One absurd maximum must not use up the range of
/// an amount, which the calls of others need.
pub const MOST_HELD: Amount = Amount::from_units(1_000_000 * 10_000_000_000);

/// The most that a call can use, and the highest prices that can apply. All is zero for a free
/// call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostBound {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens of one answer.
    pub max_tokens: u64,
    /// Additional input tokens once the call states a maximum; zero when it already does.
    pub to_state_maximum: u64,
    /// The number of answers.
    pub answers: u64,
    /// The number of calls of the provider's own tools.
    pub tool_calls: u64,
    /// The number of other units: characters, seconds, images.
    pub others: PerUnit<u64>,
    /// The highest prices that can apply; `None` when the model has no price.
    pub prices: Option<UnitPrices>,
    /// The field that leaves the cost without a bound. The hold is then an estimate.
    pub unbounded: Option<Vec<String>>,
}

impl CostBound {
    /// The most that the call can use, with its base cost. A call is settled at this when its usage
    /// is not known and its limit must not be passed.
    pub fn max_usage(&self, source: PriceSource) -> PricedUsage {
        let (usage, base) = self.usage_for(self.max_tokens).unwrap_or_default();
        PricedUsage { usage, usage_source: UsageSource::Estimated, base, price_source: source }
    }

    /// The usage and base cost if an answer has at most `max_tokens`.
    pub(super) fn usage_for(&self, max_tokens: u64) -> Result<(Usage, BaseCost), Overflow> {
        let stated = if max_tokens == self.max_tokens { 0 } else { self.to_state_maximum };
        let input_tokens = self.input_tokens.saturating_add(stated);
        let mut usage = Usage::tokens(input_tokens, max_tokens.saturating_mul(self.answers));
        for &unit in Unit::ALL.iter().filter(|unit| !unit.counts_tokens()) {
            *usage.quantities.get_mut(unit) = *self.others.get(unit);
        }
        usage.quantities.tool_call = self.tool_calls;
        usage.quantities.request = 1;
        let base = self.prices.as_ref().map(|prices| BaseCost::of(&usage, prices)).transpose()?;
        Ok((usage, base.unwrap_or_default()))
    }

    /// The cost if an answer has at most `max_tokens`, at the highest rate of all tiers.
    pub(super) fn quote(
        &self,
        max_tokens: u64,
        terms: &PricingTerms<'_>,
    ) -> Result<Quote, Overflow> {
        let (usage, base) = self.usage_for(max_tokens)?;
        let highest = terms.meter.map(FeeModel::at_highest_rate);
        Quote::new(&usage, base, &PricingTerms { meter: highest.as_ref(), counter: 0, ..*terms })
    }

    /// The most that the call can cost under these terms, in any tier: its hold.
    ///
    /// # Errors
    /// [`Refusal::BoundTooLarge`] when it exceeds [`MOST_HELD`].
    pub fn hold(&self, terms: &PricingTerms<'_>) -> Result<Quote, Refusal> {
        let most = self.quote(self.max_tokens, terms).ok();
        most.filter(|most| most.total_request_cost <= MOST_HELD).ok_or(Refusal::BoundTooLarge)
    }
}
