//! The most that a call can cost.

use tollgate_pricing::{
    Amount, BaseCost, Meter, Overflow, PerUnit, PriceSource, Quote, Terms, Unit, UnitPrices, Usage,
};

use super::refusal::Refusal;
use crate::record::{PricedUsage, UsageSource};

/// The most that one call may hold: a million USD. Whoever states a maximum beyond all sense must
/// not fill what amounts can hold, for the calls of others would find no place.
pub const MOST_HELD: Amount = Amount::from_units(1_000_000 * 10_000_000_000);

/// The most a call can use, and the prices it can meet at most. One that is free has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostBound {
    /// Tokens that go in.
    pub input_tokens: u64,
    /// Tokens of one answer.
    pub max_tokens: u64,
    /// Tokens that go in besides once the call states a maximum of its own: none when it does.
    pub to_state_maximum: u64,
    /// Answers.
    pub answers: u64,
    /// Calls of the provider's own tools.
    pub tool_calls: u64,
    /// What of other units it can use: characters, seconds, images.
    pub others: PerUnit<u64>,
    /// The dearest prices that can apply; none when the model has no price.
    pub prices: Option<UnitPrices>,
    /// The field that leaves the cost without bound: what is held is then an estimate.
    pub unbounded: Option<Vec<String>>,
}

impl CostBound {
    /// The most that the call can use, and what the provider can charge for it: what a call is settled
    /// at whose use is not known and whose limit must not be passed.
    pub fn at_most(&self, source: PriceSource) -> PricedUsage {
        let (usage, base) = self.most(self.max_tokens).unwrap_or_default();
        PricedUsage { usage, usage_source: UsageSource::Estimated, base, price_source: source }
    }

    /// What the call can use if an answer has at most `max_tokens`, and what the provider can
    /// charge for it.
    pub(super) fn most(&self, max_tokens: u64) -> Result<(Usage, BaseCost), Overflow> {
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

    /// What the call costs if an answer has at most `max_tokens`, whatever tier it falls into.
    pub(super) fn quote(&self, max_tokens: u64, terms: &Terms<'_>) -> Result<Quote, Overflow> {
        let (usage, base) = self.most(max_tokens)?;
        let dearest = terms.meter.map(Meter::at_dearest_rate);
        Quote::new(&usage, base, &Terms { meter: dearest.as_ref(), counter: 0, ..*terms })
    }

    /// The most that the call can cost under these terms, in any tier: what it holds.
    ///
    /// # Errors
    /// [`Refusal::BoundTooLarge`].
    pub fn hold(&self, terms: &Terms<'_>) -> Result<Quote, Refusal> {
        let most = self.quote(self.max_tokens, terms).ok();
        most.filter(|most| most.total_request_cost <= MOST_HELD).ok_or(Refusal::BoundTooLarge)
    }
}
